// A cluster of one node: events come straight back, the session directory is a map; the newest logins are in a store, because they outlive the
// process. State: the sessions of this process by uid, how many they are, the counters of failed credentials. Same contract as a cluster of many.

import type { CloseReason } from "../broker/errors.ts";
import {
  MAIN_DEVICE,
  type Presence,
  type SessionRecord,
} from "../broker/model.ts";
import type {
  Claim,
  Cluster,
  ClusterEvent,
  FailureCount,
  LoginStore,
  NewestLogin,
  NodeInfo,
  Registration,
  Throttle,
} from "../broker/ports.ts";
import { KeyedLock } from "../lib/keyed-lock.ts";
import { type AboutNode, createNodeDescription } from "./about-node.ts";
import { type Entry, endedBy, place, presenceOf } from "./session-rules.ts";

const NO_ENTRIES: readonly Entry[] = [];
/** Of a node without storage. */
const FORGETFUL: LoginStore = {
  async newestLogin() {
    return undefined;
  },
  async putNewestLogin() {},
};

export class SingleNode implements Cluster {
  readonly nodeId: string;
  readonly #sessions = new Map<string, readonly Entry[]>();
  readonly #describe: () => NodeInfo;
  readonly #clock: () => number;
  /** Logins and ends of one user run one after the other. */
  readonly #lock = new KeyedLock();
  #logins = FORGETFUL;
  #listener: (event: ClusterEvent) => void = () => {};
  #sessionCount = 0;

  /** What `about` leaves out is unknown: no address, no version, started now. */
  constructor(
    nodeId: string,
    about: Partial<Omit<AboutNode, "nodeId">> = {},
    clock: () => number = Date.now,
  ) {
    this.nodeId = nodeId;
    this.#clock = clock;
    const unknown = { clientAddress: "", version: "", startedAtMs: Date.now() };
    this.#describe = createNodeDescription(
      { ...unknown, isDraining: () => false, ...about, nodeId },
      () => this.#sessionCount,
    );
  }

  async nodes(): Promise<readonly NodeInfo[]> {
    return [this.#describe()];
  }

  onEvent(listener: (event: ClusterEvent) => void): void {
    this.#listener = listener;
  }

  publish(event: ClusterEvent): void {
    this.#listener(event);
  }

  async announce(events: readonly ClusterEvent[]): Promise<void> {
    for (const event of events) this.#listener(event);
  }

  /** Where the newest logins are kept; before, they are forgotten with their sessions. Set once, before the first session. */
  keepLoginsIn(logins: LoginStore): void {
    this.#logins = logins;
  }

  register(session: SessionRecord, claim?: Claim): Promise<Registration> {
    const { uid, flag, sessionId } = session;
    return this.#lock.run(uid, async () => {
      const newest = await this.#newestOf(session);
      const entries = this.#entriesOf(uid).filter(
        (other) => other.session.sessionId !== sessionId,
      );
      const now = this.#clock() * 1000;
      const placed = place(session, claim, { entries, newest, now });
      if (placed.kind === "refused") return placed;
      if (placed.newest !== undefined) {
        const kept = this.#logins.putNewestLogin(uid, flag, placed.newest);
        if (isSameLogin(placed.newest, newest))
          kept.catch(() => {}); // only a later end of its time is lost: a full disk keeps nobody from reconnecting
        else await kept;
      }
      const gone = new Set([sessionId]);
      for (const { session } of placed.ended) gone.add(session.sessionId);
      const staying = this.#entriesOf(uid).filter(
        (other) => !gone.has(other.session.sessionId),
      );
      this.#put(uid, staying.concat(placed.entry)); // exactly as long as needed, unlike a spread
      const { order } = placed.entry;
      return { kind: "entered", order, ended: placed.ended };
    });
  }

  async unregister(session: SessionRecord): Promise<void> {
    this.#remove(session);
  }

  end(session: SessionRecord, reason: CloseReason): Promise<void> {
    const { uid, flag, sessionId } = session;
    return this.#lock.run(uid, async () => {
      const found = this.#find(session);
      const newest = await this.#newestOf(session);
      if (newest !== undefined && found?.order === newest.order)
        await this.#logins.putNewestLogin(uid, flag, {
          ...newest,
          ended: reason,
        });
      this.#remove(session);
      this.#listener({ kind: "end_session", uid, sessionId, reason });
    });
  }

  async endedBy(
    session: Pick<SessionRecord, "uid" | "sessionId">,
  ): Promise<CloseReason | undefined> {
    const found = this.#find(session);
    if (found === undefined) return undefined;
    return endedBy(found, await this.#newestOf(found.session));
  }

  async #newestOf({
    uid,
    flag,
    level,
  }: SessionRecord): Promise<NewestLogin | undefined> {
    if (level !== MAIN_DEVICE) return undefined;
    return this.#logins.newestLogin(uid, flag);
  }

  #entriesOf(uid: string): readonly Entry[] {
    return this.#sessions.get(uid) ?? NO_ENTRIES;
  }

  #find({
    uid,
    sessionId,
  }: Pick<SessionRecord, "uid" | "sessionId">): Entry | undefined {
    return this.#entriesOf(uid).find(
      (one) => one.session.sessionId === sessionId,
    );
  }

  #remove({ uid, sessionId }: SessionRecord): void {
    const left = this.#entriesOf(uid).filter(
      (one) => one.session.sessionId !== sessionId,
    );
    this.#put(uid, left);
  }

  async sessionsOf(uid: string): Promise<readonly SessionRecord[]> {
    return this.#entriesOf(uid).map(({ session }) => session);
  }

  async presence(uids: readonly string[]): Promise<readonly Presence[]> {
    return uids.map((uid) =>
      presenceOf(
        uid,
        this.#entriesOf(uid).map(({ session }) => session),
      ),
    );
  }

  async listen(): Promise<void> {}
  unlisten(): void {}
  async barrier(): Promise<void> {}
  async start(): Promise<void> {}
  async close(): Promise<void> {}
  async ping(): Promise<void> {}

  #put(uid: string, entries: readonly Entry[]): void {
    this.#sessionCount += entries.length - this.#entriesOf(uid).length;
    if (entries.length > 0) this.#sessions.set(uid, entries);
    else this.#sessions.delete(uid);
  }
}

/** A reconnect of it changed nothing that a later decision needs. */
function isSameLogin(next: NewestLogin, before: NewestLogin | undefined) {
  return (
    next.order === before?.order &&
    next.label === before.label &&
    next.deviceId === before.deviceId &&
    next.ended === before.ended
  );
}

interface Failures {
  readonly count: number;
  readonly endsAtMs: number;
}

/** Failed credentials in this process; at most `maxKeys`, the oldest forgotten first. */
export class LocalThrottle implements Throttle {
  readonly #failures = new Map<string, Failures>();
  readonly #clock: () => number;
  readonly #maxKeys: number;

  constructor(clock: () => number, maxKeys = 100_000) {
    this.#clock = clock;
    this.#maxKeys = maxKeys;
  }

  async failures(key: string): Promise<FailureCount> {
    const found = this.#current(key);
    if (found === undefined) return { count: 0, retryAfterS: 0 };
    const leftMs = found.endsAtMs - this.#clock();
    return { count: found.count, retryAfterS: Math.ceil(leftMs / 1000) };
  }

  async addFailure(key: string, windowMs: number): Promise<FailureCount> {
    const found = this.#current(key);
    const endsAtMs = found?.endsAtMs ?? this.#clock() + windowMs;
    this.#failures.delete(key);
    this.#failures.set(key, { count: (found?.count ?? 0) + 1, endsAtMs });
    const oldest = this.#failures.keys().next();
    if (this.#failures.size > this.#maxKeys && !oldest.done)
      this.#failures.delete(oldest.value);
    return this.failures(key);
  }

  async clear(key: string): Promise<void> {
    this.#failures.delete(key);
  }

  #current(key: string): Failures | undefined {
    const found = this.#failures.get(key);
    if (found === undefined || found.endsAtMs > this.#clock()) return found;
    this.#failures.delete(key);
    return undefined;
  }
}
