// Makes the directory agree with the sessions this node serves, after anything that may have parted them: Redis was away or lost data, events
// were missed, the node was declared dead, a removal was not answered; and once a minute, so that a lost event has no lasting effect and no entry
// expires. It never ends a session that logged in later. State: the sessions still to be compared, the removals still to be made.
//
// A missing session was either ended by another node or lost by Redis. Where a later login is recorded as the newest one, the session is ended here.
// A new token or a logout changed the device, which the credential shows. Otherwise Redis lost the session, and it is entered again.

import { type CloseReason, isAway } from "../../broker/errors.ts";
import type { SessionRecord } from "../../broker/model.ts";
import type { ClusterEvent, SessionName } from "../../broker/ports.ts";
import type { LocalSession, LocalSessions } from "./local-sessions.ts";
import type { Registry } from "./registry.ts";
import type { DirectorySteps } from "./steps.ts";

const AT_ONCE = 200;
/** Over it the oldest pending removal is left to the entry's expiry. */
const MAX_REMOVALS = 100_000;

export interface RestorerParts {
  readonly steps: DirectorySteps;
  readonly registry: Registry;
  readonly local: LocalSessions;
  readonly heartbeatMs: number;
  /** In about so long every session is looked at once, whatever happens. */
  readonly recheckMs: number;
  /** To this node's own listener. */
  readonly tell: (event: ClusterEvent) => void;
  /** Why a session with this credential may not go on; undefined: it may. Throws `unavailable`. */
  readonly judge: (session: SessionRecord) => Promise<CloseReason | undefined>;
  readonly onProblem: (error: unknown, what: string) => void;
}

export class Restorer {
  readonly #parts: RestorerParts;
  #isWanted = false;
  /** Users whose sessions may have lost the right to go on. */
  readonly #doubted = new Set<string>();
  /** Sessions that may be in the directory and are not served. */
  readonly #removals = new Map<string, SessionName>();
  /** Sessions to be looked at without a reason; broken, because a beat may be due less than one. */
  #due = 0;
  #running: Promise<void> | undefined;

  constructor(parts: RestorerParts) {
    this.#parts = parts;
  }

  /** All sessions are to be looked at, soon. */
  want(): void {
    this.#isWanted = true;
    this.proceed();
  }

  /**
   * Looks at the sessions of these users: once resolved, those that may not go on are ended. Rejects `unavailable`, also while no heartbeat of this
   * node is confirmed: by an old one its sessions may be there though the others no longer see them.
   */
  async judgeUsers(uids: readonly string[]): Promise<void> {
    const { registry, local } = this.#parts;
    const all = uids.flatMap((uid) => local.of(uid));
    if (all.length === 0) return;
    await registry.refresh();
    registry.assertBeating();
    await this.#inTurns(all, async (one) => {
      try {
        await this.#restore(one);
      } catch (error) {
        if (isAway(error)) throw error;
        this.#failed(error);
        this.#letGo(one.session, "unavailable"); // whether it may go on cannot be found out
      }
    });
  }

  /** The credentials of the user's sessions are to be judged, soon. */
  doubt(uid: string): void {
    if (this.#parts.local.of(uid).length === 0) return;
    this.#doubted.add(uid);
    this.proceed();
  }

  /** A session that nobody serves may be in the directory: it is to be removed, as soon as Redis answers. */
  remove(session: SessionName): void {
    this.#removals.set(session.sessionId, session);
    const oldest = this.#removals.keys().next();
    if (this.#removals.size > MAX_REMOVALS && !oldest.done)
      this.#removals.delete(oldest.value);
    this.proceed();
  }

  /** A heartbeat was answered. */
  beat(): void {
    const { local, heartbeatMs, recheckMs } = this.#parts;
    const due = this.#due + (local.size * heartbeatMs) / recheckMs;
    this.#due = Math.min(due, local.size);
    this.proceed();
  }

  /** Goes on with what is wanted: called with every sign that Redis answers. */
  proceed(): void {
    const count = this.#doubted.size + this.#removals.size + this.#due;
    const isIdle = !this.#isWanted && count < 1;
    if (isIdle || this.#running !== undefined) return;
    this.#running = this.#run()
      .then(() => true)
      .catch((error: unknown) => this.#failed(error))
      .then((isDone) => {
        this.#running = undefined;
        if (isDone) this.proceed();
      });
  }

  /** Resolves when nothing runs. */
  async idle(): Promise<void> {
    await this.#running;
  }

  /** Makes sure of one session of this node, if it still is one. */
  async one(sessionId: string): Promise<void> {
    const found = this.#parts.local.get(sessionId);
    if (found !== undefined) await this.#restore(found);
  }

  /** None keeps another from its turn: of a Redis Cluster one server may be away. Throws the first failure. */
  async #run(): Promise<void> {
    const failures: unknown[] = [];
    for (const stage of [
      () => this.#confirmSome(),
      () => this.#inTurns([...this.#doubted], (uid) => this.#judgeAll(uid)),
      () => this.#removeAll(),
      () => (this.#isWanted ? this.#restoreAll() : undefined),
    ])
      try {
        await stage();
      } catch (error) {
        failures.push(error);
      }
    if (failures.length > 0) throw failures[0];
  }

  async #removeAll(): Promise<void> {
    const { steps } = this.#parts;
    await this.#inTurns([...this.#removals.values()], async (session) => {
      try {
        await steps.remove(session);
      } catch (error) {
        if (isAway(error)) throw error;
        this.#failed(error); // it would fail each time: the entry is left to its expiry
      }
      this.#removals.delete(session.sessionId);
    });
  }

  async #restoreAll(): Promise<void> {
    const { registry, local } = this.#parts;
    await registry.refresh(); // if this incarnation is dead, the sessions are entered under the next one
    this.#isWanted = false;
    try {
      await this.#inTurns(local.all(), (one) => this.#restore(one));
    } catch (error) {
      this.#isWanted = true;
      throw error;
    }
  }

  /** The next few: one that is missing was ended by an event that did not come, or lost. */
  async #confirmSome(): Promise<void> {
    const count = Math.floor(this.#due);
    this.#due -= count;
    const { local } = this.#parts;
    await this.#inTurns(local.next(count), (one) => this.#restore(one));
  }

  async #judgeAll(uid: string): Promise<void> {
    this.#doubted.delete(uid);
    try {
      for (const { session } of this.#parts.local.of(uid))
        await this.#judge(session);
    } catch (error) {
      if (isAway(error)) this.#doubted.add(uid); // else once more would end no better
      throw error;
    }
  }

  async #restore(one: LocalSession): Promise<void> {
    const { steps, registry, local } = this.#parts;
    const { session } = one;
    if (!local.has(session.sessionId)) return; // it ended meanwhile
    const { sessionId } = session;
    const result = await steps.restore(one, registry.incarnation);
    if (result.kind === "refused") return this.#letGo(session, result.reason);
    const isThere = result.kind === "there";
    if (!local.has(sessionId))
      return isThere ? undefined : this.remove(session);
    if (!isThere) local.unjudged.add(sessionId);
    if (!local.unjudged.has(sessionId)) return;
    await this.#judge(session);
    local.unjudged.delete(sessionId);
  }

  async #judge(session: SessionRecord): Promise<void> {
    const reason = await this.#parts.judge(session);
    if (reason === undefined) return;
    await this.#parts.steps.revoke(session, reason);
    this.#letGo(session, reason);
  }

  #letGo({ uid, sessionId }: SessionRecord, reason: CloseReason): void {
    const { local, tell } = this.#parts;
    if (!local.forget(sessionId)) return;
    tell({ kind: "end_session", uid, sessionId, reason });
  }

  /**
   * One that fails keeps no other from its turn, unless all of a turn find Redis away. What fails by itself is reported. Throws `unavailable`,
   * `overloaded` at the end.
   */
  async #inTurns<T>(
    all: readonly T[],
    act: (one: T) => Promise<void>,
  ): Promise<void> {
    let away: unknown;
    for (let at = 0; at < all.length; at += AT_ONCE) {
      const some = all.slice(at, at + AT_ONCE).map(act);
      let answered = false;
      for (const result of await Promise.allSettled(some)) {
        if (result.status === "rejected" && isAway(result.reason))
          away ??= result.reason;
        else answered = true;
        if (result.status === "rejected") this.#failed(result.reason);
      }
      if (!answered) break;
    }
    if (away !== undefined) throw away;
  }

  #failed(error: unknown): false {
    if (!isAway(error))
      this.#parts.onProblem(
        error,
        "Sessions could not be entered in the directory again",
      );
    return false;
  }
}
