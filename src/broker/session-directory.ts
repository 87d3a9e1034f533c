// This node's session directory. It confirms each session in the store once a minute, and also
// whenever the node's own list of sessions and the store may differ, for example after an outage, a
// loss of data, missed events or lost replies.

import { BoundedMap } from "../lib/bounded-map.ts";
import type { MaybePromise } from "../lib/maybe-promise.ts";
import { BrokerError, type CloseReason, isTransient, mayHaveRun } from "./errors.ts";
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
  SessionRef,
  SessionStore,
} from "./ports.ts";

export interface SessionDirectoryPorts {
  readonly store: SessionStore;
  readonly cluster: Pick<Cluster, "onEvent" | "incarnation" | "isLive" | "heartbeat" | "recovery">;
  readonly onError: (error: unknown, what: string) => void;
  readonly recheckMs?: number;
}

interface PendingRemoval {
  readonly session: SessionRef;
  readonly cause: CloseReason | undefined;
}

const RECHECK_MS = 60_000;
const CONFIRMATION_BATCH = 500;
const LOOKUP_BATCH = 256;
const REMOVAL_BATCH = 200;
/**
 * Maximum number of pending removals. Above this number, the oldest removal is dropped, and the
 * session's entry in the store expires later.
 */
const MAX_PENDING_REMOVALS = 100_000;
/** Time for which `endedBy` retries, for example while a process that was frozen reconnects. */
const REASON_TIMEOUT_MS = 3000;
const REASON_RETRY_MS = 50;
const WORK_RETRY_MS = 1000;

export class SessionDirectory {
  readonly #ports: SessionDirectoryPorts;
  readonly #local = new LocalSessions();
  /** Sessions that may still be in the store although this node no longer serves them. */
  readonly #pendingRemovals = new BoundedMap<string, PendingRemoval>(MAX_PENDING_REMOVALS);
  #notify: (event: ClusterEvent) => void = () => {};
  /** Number of times that this node may have missed user events. */
  #lossCount = 0;
  /** Number of sessions that are due for the periodic confirmation. Not always an integer. */
  #dueCount = 0;
  #lastBeatMs = performance.now();
  /** True while sessions are being removed and confirmed, and during the delay after a failure. */
  #isWorking = false;

  constructor(ports: SessionDirectoryPorts) {
    this.#ports = ports;
  }

  get size(): number {
    return this.#local.size;
  }

  onEvent(listener: (event: ClusterEvent) => void, judgeGroup: GroupJudge): void {
    this.#notify = listener;
    this.#ports.cluster.onEvent(
      (event) => {
        if (event.kind === "end_session") this.#local.forget(event.sessionId);
        if (event.kind === "credential") this.#confirmSoon(this.#local.of(event.uid));
        listener(event);
      },
      {
        judgeUsers: (uids) => this.#judgeUsers(uids),
        judgeGroup,
        beat: (isAnew) => this.#beat(isAnew),
        evicted: () => {
          for (const { session } of this.#local.all()) this.#endLocally(session, "unavailable");
        },
      },
    );
  }

  /**
   * Logs the session in at the store, and adds it to the sessions of this node. If the login fails
   * but may have run, the session is removed from the store later. Throws `unavailable`.
   */
  async login(session: SessionRecord, terms: LoginTerms = {}): Promise<LoginResult> {
    const { store, cluster } = this.#ports;
    const { incarnation } = cluster;
    const lossCount = this.#lossCount;
    try {
      const result = await store.login(session, incarnation, terms);
      if (result.kind !== "entered") return result;
      const { session: enteredSession, order, since } = result;
      this.#local.add({ session: enteredSession, order, since });
      // If the incarnation was declared dead during the call, other nodes ignore the session's
      // entry.
      if (cluster.incarnation !== incarnation) await this.#reenter(result);
      // If events were missed during the call, one of them may have ended the session.
      if (lossCount !== this.#lossCount) this.#confirmSoon([result]);
      return result;
    } catch (error) {
      const wasLocal = this.#local.forget(session.sessionId);
      // The caller does not remove a session whose login failed, so the session is removed here.
      if (wasLocal || !isTransient(error) || mayHaveRun(error)) this.#removeLater(session);
      throw error;
    }
  }

  /**
   * Checks a session that was not found in the store. Ends the session on this node unless it may
   * continue.
   */
  async recheck({ sessionId }: SessionRef): Promise<void> {
    const login = this.#local.get(sessionId);
    if (login === undefined) return;
    const [result] = await this.#confirmAtStore([login]);
    if (result?.kind === "failed") throw result.error;
    if (result?.kind === "refused") this.#endLocally(login.session, result.reason);
  }

  /**
   * Removes a session. Throws the store's error if the removal fails. After a transient error, the
   * removal is also retried later.
   */
  async remove(session: SessionRecord, cause?: CloseReason): Promise<void> {
    this.#local.forget(session.sessionId);
    try {
      await this.#ports.store.removeSession(session, cause);
    } catch (error) {
      if (isTransient(error)) this.#removeLater(session, cause);
      throw error;
    }
  }

  /**
   * Returns the reason why the session was ended, for example by a login on another node, and ends
   * the session on this node. Returns `undefined` if the session may continue, or if the store does
   * not reply in time.
   */
  async endedBy({ sessionId }: SessionRef): Promise<CloseReason | undefined> {
    const deadlineMs = performance.now() + REASON_TIMEOUT_MS;
    for (;;) {
      const login = this.#local.get(sessionId);
      if (login === undefined) return undefined;
      try {
        const [result] = await this.#confirmAtStore([login]);
        if (result?.kind === "failed") throw result.error;
        if (result?.kind !== "refused") return undefined;
        this.#endLocally(login.session, result.reason);
        return result.reason;
      } catch (error) {
        // The error is not reported, because the caller is already handling the error that led to
        // this call.
        if (!isTransient(error) || performance.now() > deadlineMs) return undefined;
        await new Promise((resolve) => setTimeout(resolve, REASON_RETRY_MS).unref());
      }
    }
  }

  local(sessionId: string): LoggedInSession | undefined {
    return this.#local.get(sessionId);
  }

  /**
   * Records in the store whether a client of this node is in the background. Throws `unavailable`.
   */
  async setBackground(session: SessionRef, isBackground: boolean): Promise<void> {
    this.#local.setBackground(session.sessionId, isBackground);
    await this.#ports.store.setBackground(session, isBackground);
  }

  /** Returns one record per uid, in order, duplicates included. Throws `unavailable`. */
  async presence(uids: readonly string[]): Promise<readonly Presence[]> {
    const sessions = await this.liveSessions(uids);
    return uids.map((uid, place) => presenceOf(uid, sessions[place] ?? []));
  }

  /** Returns, for each user in order, the sessions on live nodes. Throws `unavailable`. */
  async liveSessions(uids: readonly string[]): Promise<readonly (readonly SessionRecord[])[]> {
    const uniqueUids = [...new Set(uids)];
    const byUid = new Map<string, readonly SessionRecord[]>();
    for (let at = 0; at < uniqueUids.length; at += LOOKUP_BATCH) {
      const batch = uniqueUids.slice(at, at + LOOKUP_BATCH);
      const entries = await this.#ports.store.sessionsOf(batch);
      for (const [place, uid] of batch.entries()) {
        const live = this.#liveAmong(entries[place]);
        byUid.set(uid, live instanceof Promise ? await live : live);
      }
    }
    return uids.map((uid) => byUid.get(uid) ?? []);
  }

  /**
   * Returns no promise if all sessions are on this node, because a long list of users would need
   * many promises.
   */
  #liveAmong(entries: readonly SessionEntry[] = []): MaybePromise<readonly SessionRecord[]> {
    const ownIncarnation = this.#ports.cluster.incarnation;
    return entries.every(({ incarnation }) => incarnation === ownIncarnation)
      ? entries.map(({ session }) => session)
      : this.#judgeLive(entries);
  }

  async #judgeLive(entries: readonly SessionEntry[]): Promise<readonly SessionRecord[]> {
    const { cluster } = this.#ports;
    const ownIncarnation = cluster.incarnation;
    const sessions: SessionRecord[] = [];
    for (const { session, incarnation } of entries)
      if (incarnation === ownIncarnation || (await cluster.isLive(incarnation)))
        sessions.push(session);
    return sessions;
  }

  async #judgeUsers(uids: readonly string[]): Promise<readonly string[]> {
    this.#lossCount += 1;
    // Credential events of these users may have been missed.
    for (const uid of uids) this.#notify({ kind: "credential", uid });
    const logins = uids.flatMap((uid) => this.#local.of(uid));
    if (logins.length === 0) return [];
    // If this node was declared dead, its next heartbeat starts a new incarnation. The sessions are
    // confirmed under the new incarnation, because other nodes ignore the sessions of a dead
    // incarnation.
    await this.#ports.cluster.heartbeat();
    const unconfirmed = await this.#confirm(logins, {
      isDue: (id) => this.#local.has(id),
      onFailure: ({ session }) => this.#endLocally(session, "unavailable"),
    });
    return [...new Set(unconfirmed.map(({ session }) => session.uid))];
  }

  #confirmSoon(sessions: readonly LoggedInSession[]): void {
    this.#local.confirmSoon(sessions);
    this.#continueWork();
  }

  #beat(isAnew: boolean): void {
    const { recheckMs = RECHECK_MS } = this.#ports;
    const nowMs = performance.now();
    const { size } = this.#local;
    const dueCount = this.#dueCount + (size * (nowMs - this.#lastBeatMs)) / recheckMs;
    const count = isAnew ? 0 : Math.floor(Math.min(dueCount, size));
    this.#dueCount = Math.min(dueCount, size) - count;
    this.#lastBeatMs = nowMs;
    if (isAnew) void this.#confirmAllAgain();
    this.#local.confirmNextSoon(count);
    this.#continueWork();
  }

  /**
   * Confirms all sessions again. `#judgeUsers` first confirms the sessions of users whose events
   * may have been missed. All other sessions are confirmed afterwards, or after a time-out.
   */
  async #confirmAllAgain(): Promise<void> {
    this.#local.deferAll();
    const isUser = (topic: Topic) => topic.startsWith("u:");
    await this.#ports.cluster.recovery(isUser)?.catch(() => {});
    this.#local.confirmDeferred();
    this.#continueWork();
  }

  #continueWork(): void {
    const count = this.#local.unconfirmed.size + this.#pendingRemovals.size;
    if (count === 0 || this.#isWorking) return;
    this.#isWorking = true;
    const goOn = () => {
      this.#isWorking = false;
      this.#continueWork();
    };
    void this.#run()
      .catch((error: unknown) => this.#report(error))
      .then((isDone) => {
        if (isDone) goOn();
        else setTimeout(goOn, WORK_RETRY_MS).unref();
      });
  }

  /**
   * Removes and confirms sessions. Returns false if work remains. Failed removals do not prevent
   * the confirmations, which may go to another server.
   */
  async #run(): Promise<boolean> {
    const isRemoved = await this.#removePending();
    const { unconfirmed } = this.#local;
    const logins = [...unconfirmed].flatMap((id) => this.#local.get(id) ?? []);
    const isDue = (id: string) => unconfirmed.has(id);
    let remaining: readonly LoggedInSession[] = logins;
    try {
      remaining = await this.#confirm(logins, { isDue, onFailure() {} });
    } finally {
      this.#local.confirmSoon(remaining);
    }
    return isRemoved && remaining.length === 0;
  }

  async #confirm(
    logins: readonly LoggedInSession[],
    {
      isDue,
      onFailure,
    }: {
      readonly isDue: (sessionId: string) => boolean;
      readonly onFailure: (login: LoggedInSession) => void;
    },
  ): Promise<readonly LoggedInSession[]> {
    const remaining: LoggedInSession[] = [];
    for (let at = 0; at < logins.length; at += CONFIRMATION_BATCH) {
      // Each login is read again, because its background state may have changed since `logins` was
      // collected.
      const batch = logins
        .slice(at, at + CONFIRMATION_BATCH)
        .filter(({ session }) => isDue(session.sessionId))
        .flatMap(({ session }) => this.#local.get(session.sessionId) ?? []);
      // The ids are removed from `unconfirmed` before the call, so that an id that is added during
      // the call is kept.
      for (const { session } of batch) this.#local.startConfirming(session.sessionId);
      const results = await this.#confirmAtStore(batch);
      let transientCount = 0;
      for (const [place, login] of batch.entries()) {
        const result = results[place];
        if (result?.kind === "refused") this.#endLocally(login.session, result.reason);
        if (result?.kind !== "failed") continue;
        this.#report(result.error);
        if (isTransient(result.error)) {
          remaining.push(login);
          transientCount += 1;
        } else onFailure(login);
      }
      if (transientCount > 0 && transientCount === batch.length)
        return remaining.concat(logins.slice(at + CONFIRMATION_BATCH));
    }
    return remaining;
  }

  async #confirmAtStore(batch: readonly LoggedInSession[]): Promise<readonly Confirmation[]> {
    const { store, cluster } = this.#ports;
    const results = await store.confirmSessions(batch, cluster.incarnation);
    for (const [place, { session }] of batch.entries())
      if (results[place]?.kind === "confirmed")
        if (!this.#local.has(session.sessionId))
          // A confirmation stores a missing session again, even a session that was removed during
          // the call. Such a session must be removed once more.
          this.#removeLater(session);
    return results;
  }

  async #reenter(login: LoggedInSession): Promise<void> {
    const [result] = await this.#confirmAtStore([login]);
    if (result?.kind === "failed") throw result.error;
    // The session was ended during the call.
    if (result?.kind !== "confirmed") throw new BrokerError("unavailable");
  }

  #endLocally({ uid, sessionId }: SessionRecord, reason: CloseReason): void {
    if (!this.#local.forget(sessionId)) return;
    this.#notify({ kind: "end_session", uid, sessionId, reason });
  }

  #removeLater(session: SessionRef, cause?: CloseReason): void {
    this.#pendingRemovals.set(session.sessionId, { session, cause });
    this.#continueWork();
  }

  async #removePending(): Promise<boolean> {
    const removals = [...this.#pendingRemovals].map(([, removal]) => removal);
    for (let at = 0; at < removals.length; at += REMOVAL_BATCH) {
      const batch = removals.slice(at, at + REMOVAL_BATCH);
      const countBefore = this.#pendingRemovals.size;
      await Promise.all(batch.map((removal) => this.#removeNow(removal)));
      if (this.#pendingRemovals.size >= countBefore) break; // the store is unreachable
    }
    return this.#pendingRemovals.size === 0;
  }

  async #removeNow(removal: PendingRemoval): Promise<void> {
    const { session, cause } = removal;
    try {
      await this.#ports.store.removeSession(session, cause);
    } catch (error) {
      if (isTransient(error)) return;
      this.#report(error); // a retry would fail too, so the stored session is left to expire
    }
    // The session may have been stored again during the call. It then has another pending removal.
    const { sessionId } = session;
    if (this.#pendingRemovals.get(sessionId) === removal) this.#pendingRemovals.delete(sessionId);
  }

  /**
   * Reports an error unless it is transient. Always returns false, so that `#continueWork` tries
   * again after an error in `#run`.
   */
  #report(error: unknown): false {
    if (!isTransient(error))
      this.#ports.onError(error, "Could not confirm or remove sessions in the store");
    return false;
  }
}

/**
 * Returns a user's online status. `flag` is the lowest flag of the main sessions, or of all
 * sessions if the user has no main session [decisions: Online status].
 */
function presenceOf(uid: string, sessions: readonly SessionRecord[]): Presence {
  if (sessions.length === 0) return { uid, online: false, flag: 0 };
  const mains = sessions.filter((session) => session.level === MAIN_DEVICE);
  const candidates = mains.length > 0 ? mains : sessions;
  const flag = DEVICE_FLAGS.find((lowest) => candidates.some(({ flag }) => flag === lowest)) ?? 0;
  return { uid, online: true, flag };
}
