// Pushes the online state of users to the sessions that watch them: first the current state, then
// each change once. Directory reads run one at a time, so that an older result never arrives after
// a newer one. The offline state is pushed after a delay, because the client may reconnect.

import { BrokerError, type CloseReason, FINAL_REASONS } from "../broker/errors.ts";
import { PERSON_CHANNEL, type Presence, presenceTopic } from "../broker/model.ts";
import type { Cluster } from "../broker/ports.ts";
import { mayRead } from "../broker/rights.ts";
import type { SessionDirectory } from "../broker/session-directory.ts";
import { delivering, type WatchChange } from "./rates.ts";
import type { Session } from "./session.ts";

interface WatchPorts {
  readonly cluster: Pick<Cluster, "listen" | "unlisten">;
  readonly directory: Pick<SessionDirectory, "presence">;
  readonly retryMs: number;
  /** Charges the user whose state has changed for the pushes to the watchers. */
  charge(uid: string, work: number): void;
  /**
   * Time between the end of a user's last session and the push that reports the user as offline,
   * except after `FINAL_REASONS` [decisions: Presence told to watchers]. 0 means at once.
   */
  readonly offlineDelayMs: number;
  onError(error: unknown, context: string): void;
}

/**
 * Number of users in a read at which no further request is added to it. The last request may raise
 * the number of users above this value.
 */
const UIDS_PER_READ = 10_000;

/**
 * Last state that was sent to a session for each user it watches, `undefined` if no state has been
 * sent yet.
 */
type LastSent = Map<string, Presence | undefined>;

interface Requested {
  readonly uids: readonly string[];
  readonly set: ReadonlySet<string>;
}

interface OfflinePush {
  dueMs: number;
  /**
   * Timer that reads the user's state again when the push is due. Set if the last read found the
   * user offline.
   */
  timer: NodeJS.Timeout | undefined;
}

interface Request {
  readonly session: Session;
  readonly uids: readonly string[];
  readonly answer: (presence: readonly Presence[]) => void;
  readonly fail: (error: unknown) => void;
}

export class PresenceWatch {
  readonly #ports: WatchPorts;
  readonly #watchers = new Map<string, Set<Session>>();
  readonly #lastSent = new Map<Session, LastSent>();
  /** Each session's latest charged request, until `watch` handles it. */
  readonly #requested = new WeakMap<Session, Requested>();
  readonly #changed = new Set<string>();
  /** Users whose state may have changed to offline. Includes every user in `#changed`. */
  readonly #offlinePushes = new Map<string, OfflinePush>();
  #requests: Request[] = [];
  #isReading = false;

  constructor(ports: WatchPorts) {
    this.#ports = ports;
  }

  /**
   * Returns how a request will change the users that the session watches, and records the request.
   * `watch` must then be called for the requests in the same order.
   */
  plan(session: Session, uids: readonly string[]): WatchChange {
    const previous = this.#requested.get(session)?.set ?? this.#lastSent.get(session);
    const set = new Set(uids);
    this.#requested.set(session, { uids, set });
    let kept = 0;
    for (const uid of set) if (previous?.has(uid)) kept += 1;
    return { kept, started: set.size - kept, ended: (previous?.size ?? 0) - kept };
  }

  /**
   * Makes the session watch these users instead of the users that it watched before. May reject
   * with `unavailable`. In that case, the session watches nobody, unless `watch` was called for it
   * again.
   */
  async watch(
    session: Session,
    uids: readonly string[],
    answer: (presence: readonly Presence[]) => void,
  ): Promise<void> {
    const lastSent = this.#setWatched(session, uids);
    if (this.#requested.get(session)?.uids === uids) this.#requested.delete(session);
    try {
      await this.#ports.cluster.listen(...[...lastSent.keys()].map(presenceTopic));
      await new Promise<void>((resolve, reject) => {
        const request = { session, uids, fail: reject };
        this.#requests.push({
          ...request,
          answer(presence) {
            answer(presence);
            resolve();
          },
        });
        this.#read();
      });
    } catch (error) {
      if (this.#lastSent.get(session) === lastSent) this.leave(session);
      throw error;
    }
  }

  changed(uid: string, cause?: CloseReason): void {
    if (!this.#watchers.has(uid)) return;
    const isFinal = FINAL_REASONS.has(cause);
    this.#allowOfflinePush(uid, isFinal ? 0 : this.#ports.offlineDelayMs);
    this.#readUser(uid);
  }

  /**
   * Reads the state of a user whose sessions may have changed without this node receiving an event.
   */
  refresh(uid: string): void {
    if (!this.#watchers.has(uid)) return;
    if (!this.#offlinePushes.has(uid)) this.#allowOfflinePush(uid, this.#ports.offlineDelayMs);
    this.#readUser(uid);
  }

  leave(session: Session): void {
    const lastSent = this.#lastSent.get(session);
    if (lastSent === undefined) return;
    this.#lastSent.delete(session);
    for (const uid of lastSent.keys()) this.#removeWatcher(session, uid);
  }

  #setWatched(session: Session, uids: readonly string[]): LastSent {
    const lastSent: LastSent = new Map(uids.map((uid) => [uid, undefined]));
    const previous = this.#lastSent.get(session);
    for (const uid of lastSent.keys()) {
      const watchers = this.#watchers.get(uid) ?? new Set();
      this.#watchers.set(uid, watchers.add(session));
    }
    for (const uid of previous?.keys() ?? [])
      if (!lastSent.has(uid)) this.#removeWatcher(session, uid);
    this.#lastSent.set(session, lastSent);
    return lastSent;
  }

  #removeWatcher(session: Session, uid: string): void {
    const watchers = this.#watchers.get(uid);
    if (!watchers?.delete(session) || watchers.size > 0) return;
    this.#watchers.delete(uid);
    this.#changed.delete(uid);
    this.#forbidOfflinePush(uid);
    this.#ports.cluster.unlisten(presenceTopic(uid));
  }

  #allowOfflinePush(uid: string, delayMs: number): void {
    this.#forbidOfflinePush(uid);
    this.#offlinePushes.set(uid, { dueMs: performance.now() + delayMs, timer: undefined });
  }

  #forbidOfflinePush(uid: string): void {
    clearTimeout(this.#offlinePushes.get(uid)?.timer);
    this.#offlinePushes.delete(uid);
  }

  #readUser(uid: string): void {
    this.#changed.add(uid);
    this.#read();
  }

  /**
   * Starts reading unless a read is running. Changes in the same event-loop turn are read together.
   */
  #read(): void {
    if (this.#isReading) return;
    this.#isReading = true;
    void this.#readAll();
  }

  async #readAll(): Promise<void> {
    await new Promise<void>((resolve) => setImmediate(resolve));
    while (this.#changed.size > 0 || this.#requests.length > 0)
      if (!(await this.#readSome())) {
        setTimeout(() => void this.#readAll(), this.#ports.retryMs).unref();
        return; // `#isReading` stays true until the retry
      }
    this.#isReading = false;
  }

  async #readSome(): Promise<boolean> {
    const requests = this.#nextRequests();
    const changed = [...this.#changed];
    this.#changed.clear();
    const uids = new Set(changed);
    for (const request of requests) for (const uid of request.uids) uids.add(uid);
    try {
      const states = await this.#ports.directory.presence([...uids]);
      const byUid = new Map(states.map((presence) => [presence.uid, presence]));
      for (const request of requests) this.#answer(request, byUid);
      this.#pushChanges(changed, byUid);
      return true;
    } catch (error) {
      for (const { fail } of requests) fail(error);
      for (const uid of changed) if (this.#watchers.has(uid)) this.#changed.add(uid);
      if (!(error instanceof BrokerError))
        this.#ports.onError(error, "Could not read the presence of watched users; trying again");
      return false;
    }
  }

  #nextRequests(): readonly Request[] {
    let count = 0;
    let uids = 0;
    while (count < this.#requests.length && uids < UIDS_PER_READ)
      uids += this.#requests[count++]?.uids.length ?? 0;
    return this.#requests.splice(0, count);
  }

  #answer({ session, uids, answer }: Request, byUid: ReadonlyMap<string, Presence>): void {
    const presence = uids.flatMap((uid) => byUid.get(uid) ?? []);
    const lastSent = this.#lastSent.get(session);
    for (const state of presence) if (lastSent?.has(state.uid)) lastSent.set(state.uid, state);
    answer(presence);
  }

  /**
   * Pushes the changed states of users. Skips watchers that have not been sent the user's first
   * state.
   */
  #pushChanges(uids: readonly string[], byUid: ReadonlyMap<string, Presence>): void {
    const changes = new Map<Session, Presence[]>();
    for (const uid of uids) {
      const current = byUid.get(uid);
      if (current === undefined || !this.#isDue(current)) continue;
      let pushed = 0;
      for (const session of this.#watchers.get(uid) ?? []) {
        const lastSent = this.#lastSent.get(session);
        const previous = lastSent?.get(uid);
        if (previous === undefined || isSame(previous, current)) continue;
        if (!mayRead(session.rights, { id: uid, type: PERSON_CHANNEL })) continue;
        lastSent?.set(uid, current);
        const presence = changes.get(session) ?? [];
        presence.push(current);
        changes.set(session, presence);
        pushed += 1;
      }
      if (pushed > 0) this.#ports.charge(uid, delivering(pushed, 0));
    }
    for (const [session, presence] of changes) session.push({ kind: "presence", presence });
  }

  /**
   * Returns false for an offline user whose push is not due yet. The state is read again when the
   * push is due.
   */
  #isDue({ uid, online }: Presence): boolean {
    const offlinePush = this.#offlinePushes.get(uid);
    const waitMs = offlinePush === undefined ? 0 : offlinePush.dueMs - performance.now();
    if (online || waitMs <= 0) {
      // The entry stays if a later event has scheduled another push, because the state after that
      // event has not been read yet.
      if (!this.#changed.has(uid)) this.#forbidOfflinePush(uid);
      return true;
    }
    if (offlinePush !== undefined)
      offlinePush.timer ??= setTimeout(() => {
        offlinePush.dueMs = 0; // the timer may fire a little early
        this.#readUser(uid);
      }, waitMs).unref();
    return false;
  }
}

function isSame(a: Presence, b: Presence): boolean {
  return a.online === b.online && a.flag === b.flag;
}
