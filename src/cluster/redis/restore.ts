// Makes the directory agree with the sessions this node serves, after anything that may have parted them: Redis was away or lost data, events
// were missed, the node was declared dead; and periodically, so that a lost event has no lasting effect. State: the sessions still to be compared.
// It never ends a session that logged in later.
//
// A missing session was either ended by another node or lost by Redis. Where a later login is recorded as the newest one, the session is ended here.
// A new token or a logout changed the device, which the credential shows. Otherwise Redis lost the session, and it is entered again.

import { type CloseReason, isAway } from "../../broker/errors.ts";
import type { SessionRecord } from "../../broker/model.ts";
import type { ClusterEvent } from "../../broker/ports.ts";
import type { LocalSession, LocalSessions } from "./local-sessions.ts";
import type { Registry } from "./registry.ts";
import type { DirectorySteps } from "./steps.ts";

const AT_ONCE = 200;

export interface RestorerParts {
  readonly steps: DirectorySteps;
  readonly registry: Registry;
  readonly local: LocalSessions;
  readonly heartbeatMs: number;
  /** In about so long every session is looked at once, whatever happens. */
  readonly recheckMs: number;
  /** To all nodes. */
  readonly publish: (event: ClusterEvent) => void;
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

  /** The credentials of the user's sessions are to be judged, soon. */
  doubt(uid: string): void {
    if (this.#parts.local.of(uid).length === 0) return;
    this.#doubted.add(uid);
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
    const isIdle = !this.#isWanted && this.#doubted.size === 0 && this.#due < 1;
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
    const { local, registry } = this.#parts;
    const found = local.get(sessionId);
    if (found === undefined) return;
    await local.index(registry.life, [found.session.uid]);
    await this.#restore(found);
  }

  async #run(): Promise<void> {
    for (const uid of [...this.#doubted]) await this.#judgeAll(uid);
    if (this.#isWanted) await this.#restoreAll();
    await this.#glance();
  }

  async #restoreAll(): Promise<void> {
    await this.#parts.registry.refresh(); // if this life is over, it is the next one's sessions that are to be looked at
    this.#isWanted = false;
    try {
      await this.#lookAtAll();
    } catch (error) {
      this.#isWanted = true;
      throw error;
    }
  }

  async #lookAtAll(): Promise<void> {
    const { registry, local } = this.#parts;
    await this.#inTurns(local.owed(), (one) => this.#settle(one));
    const all = local.all();
    for (let at = 0; at < all.length; at += AT_ONCE) {
      const some = all.slice(at, at + AT_ONCE);
      await local.index(
        registry.life,
        some.map(({ session }) => session.uid),
      );
      await Promise.all(some.map((one) => this.#restore(one)));
    }
  }

  /** At the next few: whoever is missing was ended by word that did not come, or lost. */
  async #glance(): Promise<void> {
    const { steps, local } = this.#parts;
    const count = Math.floor(this.#due);
    this.#due -= count;
    await this.#inTurns(local.next(count), async ({ session }) => {
      if (!(await steps.has(session))) await this.one(session.sessionId);
    });
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
    const { steps, registry, local, publish } = this.#parts;
    const { session } = one;
    if (!local.has(session.sessionId)) return; // it ended meanwhile
    const result = await steps.restore(one, registry.life);
    if (result.kind === "there") return;
    if (result.kind === "refused") return this.#letGo(session, result.reason);
    publish({ kind: "presence", uid: session.uid });
    await this.#judge(session); // one of a life that counted as dead is passed over by who ends sessions
  }

  async #judge(session: SessionRecord): Promise<void> {
    const { steps, publish } = this.#parts;
    const reason = await this.#parts.judge(session);
    if (reason === undefined) return;
    await steps.revoke(session, reason);
    this.#letGo(session, reason);
    publish({ kind: "presence", uid: session.uid });
  }

  /** A session that was to be taken out while Redis did not answer. If it is still served, who wanted it out could not say so. */
  async #settle(session: SessionRecord): Promise<void> {
    const { steps, registry, local, publish, tell, judge } = this.#parts;
    const { sessionId, uid } = session;
    await steps.remove(session);
    const reason = (await judge(session)) ?? "unavailable";
    if (!local.settled(sessionId)) return;
    local.release(uid, registry.currentLife);
    publish({ kind: "presence", uid });
    tell({ kind: "end_session", uid, sessionId, reason });
  }

  #letGo({ uid, sessionId }: SessionRecord, reason: CloseReason): void {
    const { registry, local, tell } = this.#parts;
    if (!local.forget(sessionId)) return;
    local.release(uid, registry.currentLife);
    tell({ kind: "end_session", uid, sessionId, reason });
  }

  async #inTurns<T>(
    all: readonly T[],
    act: (one: T) => Promise<void>,
  ): Promise<void> {
    for (let at = 0; at < all.length; at += AT_ONCE)
      await Promise.all(all.slice(at, at + AT_ONCE).map(act));
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
