// The session directory: the store has the sessions, the cluster knows which incarnations live.
// Confirms this node's sessions at the store after anything that may have separated the two (an
// outage or data loss of the store, missed events, a node declared dead, a lost reply), and once a
// minute, so that a lost event has no lasting effect and no entry expires. State: the sessions of
// this node, which of them must be confirmed, the pending removals.

import { BoundedMap } from "../lib/bounded-map.ts";
import { BrokerError, type CloseReason, isTransient } from "./errors.ts";
import { LocalSessions } from "./local-sessions.ts";
import {
  DEVICE_FLAGS,
  MAIN_DEVICE,
  type Presence,
  type SessionRecord,
  type Topic,
} from "./model.ts";
import type {
  Cluster,
  ClusterEvent,
  Confirmation,
  GroupJudge,
  LoggedInSession,
  LoginResult,
  LoginTerms,
  SessionEntry,
  SessionName,
  SessionStore,
} from "./ports.ts";

export interface SessionDirectoryPorts {
  readonly store: SessionStore;
  readonly cluster: Pick<Cluster, "onEvent" | "incarnation" | "isLive" | "heartbeat" | "recovery">;
  /** Receives errors that no caller gets. */
  readonly onError: (error: unknown, what: string) => void;
  /** Interval in which every session is confirmed once, milliseconds; a minute by default. */
  readonly recheckMs?: number;
}

const RECHECK_MS = 60_000;
/** Sessions confirmed, users looked up, removals made at once. */
const CONFIRMED_AT_ONCE = 500;
const LOOKUPS_AT_ONCE = 256;
const REMOVED_AT_ONCE = 200;
/** Beyond it the oldest pending removal is left to the entry's expiry. */
const MAX_REMOVALS = 100_000;
/**
 * Deadline for learning why a session was ended: after a freeze the store's connection must
 * recover first.
 */
const ASK_MS = 3000;
const RETRY_MS = 50;
/** Before a failed step is repeated. */
const AGAIN_MS = 1000;

export class SessionDirectory {
  readonly #parts: SessionDirectoryPorts;
  readonly #local = new LocalSessions();
  /** Sessions that may be in the store but are not served. */
  readonly #removals = new BoundedMap<string, SessionName>(MAX_REMOVALS);
  #notify: (event: ClusterEvent) => void = () => {};
  /** Counts losses of users' events. */
  #losses = 0;
  /**
   * Sessions due for the periodic confirmation; a fraction, because a beat may be due less than
   * one.
   */
  #due = 0;
  #beatMs = performance.now();
  #running: Promise<void> | undefined;

  constructor(parts: SessionDirectoryPorts) {
    this.#parts = parts;
  }

  get size(): number {
    return this.#local.size;
  }

  /**
   * Sets the listener of the cluster's events and the judge of missed group messages; once, before
   * the cluster starts.
   */
  onEvent(listener: (event: ClusterEvent) => void, judgeGroup: GroupJudge): void {
    this.#notify = listener;
    this.#parts.cluster.onEvent(
      (event) => {
        if (event.kind === "end_session") this.#local.forget(event.sessionId);
        if (event.kind === "credential") this.#confirmSoon(this.#local.of(event.uid));
        listener(event);
      },
      {
        judgeUsers: (uids) => this.#judgeUsers(uids),
        judgeGroup,
        beat: (isAnew) => this.#beat(isAnew),
      },
    );
  }

  /** Logs in a session (`SessionStore.login`) that this node then serves. */
  async login(session: SessionRecord, terms: LoginTerms = {}): Promise<LoginResult> {
    const { store, cluster } = this.#parts;
    const { incarnation } = cluster;
    const losses = this.#losses;
    try {
      const result = await store.login(session, incarnation, terms);
      if (result.kind !== "entered") return result;
      const { session: mine, order, since } = result;
      this.#local.add({ session: mine, order, since });
      // An entry under an incarnation that died meanwhile is ignored.
      if (cluster.incarnation !== incarnation) await this.#enterAgain(result);
      if (losses !== this.#losses) this.#confirmSoon([result]); // its end may have preceded its entry here
      return result;
    } catch (error) {
      const wasIn = this.#local.forget(session.sessionId);
      if (wasIn || mayHaveRun(error)) this.#removeLater(session); // the caller will not
      throw error;
    }
  }

  /**
   * Ends a session whose end this node may have missed, because it was entered before the node
   * listened to its user. Call it once the node listens. Throws `unavailable`.
   */
  async check({ uid, sessionId }: SessionName): Promise<void> {
    const [entries = []] = await this.#parts.store.sessionsOf([uid]);
    const found = this.#local.get(sessionId);
    const isIn = entries.some(({ session }) => session.sessionId === sessionId);
    if (found === undefined || isIn) return;
    const [result] = await this.#ask([found]);
    if (result?.kind === "failed") throw result.error;
    if (result?.kind === "refused") this.#letGo(found.session, result.reason);
  }

  /**
   * Removes a session that this node no longer serves; harmless if it was ended. If it throws
   * `unavailable`, the removal is repeated later.
   */
  async remove(session: SessionRecord): Promise<void> {
    this.#local.forget(session.sessionId);
    try {
      await this.#parts.store.removeSession(session);
    } catch (error) {
      if (isTransient(error)) this.#removeLater(session);
      throw error;
    }
  }

  /**
   * The reason why a session that this node cannot serve now may not go on: the node may have been
   * frozen while the user logged in elsewhere. Undefined: it may go on, or the store did not answer
   * in time, or this node was notified of the reason.
   */
  async endedBy({ sessionId }: SessionName): Promise<CloseReason | undefined> {
    const deadline = performance.now() + ASK_MS;
    for (;;) {
      const found = this.#local.get(sessionId);
      if (found === undefined) return undefined;
      try {
        const [result] = await this.#ask([found]);
        if (result?.kind === "failed") throw result.error;
        if (result?.kind !== "refused") return undefined;
        this.#letGo(found.session, result.reason);
        return result.reason;
      } catch (error) {
        if (!isTransient(error) || performance.now() > deadline) return undefined; // the caller already reports an error
        await new Promise((resolve) => setTimeout(resolve, RETRY_MS).unref());
      }
    }
  }

  /** A session that this node serves, as it was entered; undefined: it serves none of that id. */
  local(sessionId: string): LoggedInSession | undefined {
    return this.#local.get(sessionId);
  }

  /** One record per uid, in order, duplicates included. Throws `unavailable`. */
  async presence(uids: readonly string[]): Promise<readonly Presence[]> {
    const all = await this.liveSessions(uids);
    return uids.map((uid, place) => presenceOf(uid, all[place] ?? []));
  }

  /** The sessions of each uid on nodes that live, in order. Throws `unavailable`. */
  async liveSessions(uids: readonly string[]): Promise<readonly (readonly SessionRecord[])[]> {
    const different = [...new Set(uids)];
    const found = new Map<string, readonly SessionRecord[]>();
    for (let at = 0; at < different.length; at += LOOKUPS_AT_ONCE) {
      const some = different.slice(at, at + LOOKUPS_AT_ONCE);
      const entries = await this.#parts.store.sessionsOf(some);
      for (const [place, uid] of some.entries()) found.set(uid, await this.#living(entries[place]));
    }
    return uids.map((uid) => found.get(uid) ?? []);
  }

  async #living(entries: readonly SessionEntry[] = []): Promise<readonly SessionRecord[]> {
    const { cluster } = this.#parts;
    const own = cluster.incarnation;
    const living: SessionRecord[] = [];
    for (const { session, incarnation } of entries)
      if (incarnation === own || (await cluster.isLive(incarnation))) living.push(session);
    return living;
  }

  async #judgeUsers(uids: readonly string[]): Promise<readonly string[]> {
    this.#losses += 1;
    for (const uid of uids) this.#notify({ kind: "credential", uid }); // its event may be lost
    const all = uids.flatMap((uid) => this.#local.of(uid));
    if (all.length === 0) return [];
    // While others take this node for dead, ended sessions may still be in the store.
    await this.#parts.cluster.heartbeat();
    const left = await this.#confirm(all, {
      isDue: (id) => this.#local.has(id), // others ended meanwhile
      unknown: ({ session }) => this.#letGo(session, "unavailable"),
    });
    return [...new Set(left.map(({ session }) => session.uid))];
  }

  #confirmSoon(sessions: readonly LoggedInSession[]): void {
    this.#local.confirmSoon(sessions);
    this.#proceed();
  }

  #beat(isAnew: boolean): void {
    const { recheckMs = RECHECK_MS } = this.#parts;
    const nowMs = performance.now();
    const { size } = this.#local;
    const due = this.#due + (size * (nowMs - this.#beatMs)) / recheckMs;
    const count = isAnew ? 0 : Math.floor(Math.min(due, size));
    this.#due = Math.min(due, size) - count;
    this.#beatMs = nowMs;
    if (isAnew) void this.#confirmAnew();
    this.#local.confirmNextSoon(count);
    this.#proceed();
  }

  /**
   * Confirms all sessions after an outage of the store or a death of this node. Users whose topics
   * were lost are judged when these are back, which confirms their sessions; the rest is confirmed
   * at the deadline. Never rejects.
   */
  async #confirmAnew(): Promise<void> {
    this.#local.deferAll();
    const isUser = (topic: Topic) => topic.startsWith("u:");
    await this.#parts.cluster.recovery(isUser)?.catch(() => {});
    this.#local.confirmDeferred();
    this.#proceed();
  }

  /** Continues pending work; called whenever the store answers. */
  #proceed(): void {
    const count = this.#local.unconfirmed.size + this.#removals.size;
    if (count === 0 || this.#running !== undefined) return;
    this.#running = this.#run()
      .catch((error: unknown) => this.#failed(error))
      .then((isDone) => {
        this.#running = undefined;
        if (isDone) this.#proceed();
        else setTimeout(() => this.#proceed(), AGAIN_MS).unref(); // or with the next beat, where there is one
      });
  }

  /**
   * False: work is left for the next beat. Neither half blocks the other: one server of a Redis
   * Cluster may be away.
   */
  async #run(): Promise<boolean> {
    const isRemoved = await this.#removeAll();
    const { unconfirmed } = this.#local;
    const all = [...unconfirmed].flatMap((id) => this.#local.get(id) ?? []);
    const isDue = (id: string) => unconfirmed.has(id); // else it was confirmed meanwhile
    let left: readonly LoggedInSession[] = all;
    try {
      left = await this.#confirm(all, { isDue, unknown() {} });
    } finally {
      this.#local.confirmSoon(left);
    }
    return isRemoved && left.length === 0;
  }

  /**
   * Ends the sessions that may not go on, and returns those without an answer yet. `unknown` is
   * called for a session whose confirmation failed for another reason than an outage.
   */
  async #confirm(
    all: readonly LoggedInSession[],
    {
      isDue,
      unknown,
    }: {
      readonly isDue: (sessionId: string) => boolean;
      readonly unknown: (one: LoggedInSession) => void;
    },
  ): Promise<readonly LoggedInSession[]> {
    const left: LoggedInSession[] = [];
    for (let at = 0; at < all.length; at += CONFIRMED_AT_ONCE) {
      const some = all
        .slice(at, at + CONFIRMED_AT_ONCE)
        .filter(({ session }) => isDue(session.sessionId));
      for (const { session } of some) this.#local.asked(session.sessionId); // for all who asked
      const results = await this.#ask(some);
      let away = 0;
      for (const [place, one] of some.entries()) {
        const result = results[place];
        if (result?.kind === "refused") this.#letGo(one.session, result.reason);
        if (result?.kind !== "failed") continue;
        this.#failed(result.error);
        if (isTransient(result.error)) {
          left.push(one);
          away += 1;
        } else unknown(one);
      }
      if (away > 0 && away === some.length) return left.concat(all.slice(at + CONFIRMED_AT_ONCE));
    }
    return left;
  }

  async #ask(some: readonly LoggedInSession[]): Promise<readonly Confirmation[]> {
    const { store, cluster } = this.#parts;
    const results = await store.confirmSessions(some, cluster.incarnation);
    for (const [place, { session }] of some.entries())
      if (results[place]?.kind === "confirmed")
        if (!this.#local.has(session.sessionId)) this.#removeLater(session); // it may have been entered again after its removal
    return results;
  }

  async #enterAgain(entered: LoggedInSession): Promise<void> {
    const [result] = await this.#ask([entered]);
    if (result?.kind === "failed") throw result.error;
    if (result?.kind !== "confirmed") throw new BrokerError("unavailable"); // another login came in between
  }

  #letGo({ uid, sessionId }: SessionRecord, reason: CloseReason): void {
    if (!this.#local.forget(sessionId)) return;
    this.#notify({ kind: "end_session", uid, sessionId, reason });
  }

  /**
   * The store may have a session that is not served: it is removed as soon as the store answers.
   */
  #removeLater(session: SessionName): void {
    this.#removals.set(session.sessionId, session);
    this.#proceed();
  }

  /** False: some are left. */
  async #removeAll(): Promise<boolean> {
    const all = [...this.#removals].map(([, session]) => session);
    for (let at = 0; at < all.length; at += REMOVED_AT_ONCE) {
      const some = all.slice(at, at + REMOVED_AT_ONCE);
      const before = this.#removals.size;
      await Promise.all(some.map((session) => this.#removeNow(session)));
      if (this.#removals.size >= before) break; // the store is away
    }
    return this.#removals.size === 0;
  }

  async #removeNow(session: SessionName): Promise<void> {
    try {
      await this.#parts.store.removeSession(session);
    } catch (error) {
      if (isTransient(error)) return;
      this.#failed(error); // it would fail again: the entry is left to its expiry
    }
    this.#removals.delete(session.sessionId);
  }

  #failed(error: unknown): false {
    if (!isTransient(error)) this.#parts.onError(error, "Sessions could not be confirmed");
    return false;
  }
}

/** A call that was refused before it was sent has no cause. */
function mayHaveRun(error: unknown): boolean {
  return isTransient(error) && error instanceof Error && error.cause !== undefined;
}

/** The flag of the main session if there is one, else the lowest [decisions: Online status]. */
function presenceOf(uid: string, sessions: readonly SessionRecord[]): Presence {
  if (sessions.length === 0) return { uid, online: false, flag: 0 };
  const mains = sessions.filter((one) => one.level === MAIN_DEVICE);
  const candidates = mains.length > 0 ? mains : sessions;
  const flag = DEVICE_FLAGS.find((one) => candidates.some(({ flag }) => flag === one)) ?? 0;
  return { uid, online: true, flag };
}
