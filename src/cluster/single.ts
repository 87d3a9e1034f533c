// A cluster of one node: events come straight back, the session directory is a map; devices and the newest logins are in a store, because they
// outlive the process. State: the sessions of this process by uid, how many they are, the counters of failed credentials. Same contract as a cluster of many.

import { timingSafeEqual } from "node:crypto";
import type { CloseReason } from "../broker/errors.ts";
import {
  type DeviceLevel,
  MAIN_DEVICE,
  type Presence,
  type SessionRecord,
} from "../broker/model.ts";
import type {
  Cluster,
  ClusterEvent,
  FailureCount,
  LoginStore,
  LoginTerms,
  NewestLogin,
  NodeInfo,
  Registration,
  SessionName,
  Throttle,
  UserStore,
} from "../broker/ports.ts";
import { KeyedLock } from "../lib/keyed-lock.ts";
import { type AboutNode, createNodeDescription } from "./about-node.ts";
import { type Entry, endedBy, place, presenceOf } from "./session-rules.ts";

const NO_ENTRIES: readonly Entry[] = [];
/** What a node keeps of sessions in its store. */
type SessionStore = LoginStore & Pick<UserStore, "device">;

/** Of a node without storage. */
const FORGETFUL: SessionStore = {
  async device() {
    return undefined;
  },
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

  /** Where devices are found and the newest logins kept; before, there are none, and logins are forgotten with their sessions. Set once, before the first session. */
  keepLoginsIn(logins: SessionStore): void {
    this.#logins = logins;
  }

  register(
    asked: SessionRecord,
    { claim, tokenHash }: LoginTerms = {},
  ): Promise<Registration> {
    const { uid, flag, sessionId } = asked;
    return this.#lock.run(uid, async () => {
      const level = await this.#levelOf(asked, tokenHash);
      if (level === undefined) return { kind: "unauthorized" };
      const session = { ...asked, level };
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
      const { entry, ended } = placed;
      const gone = new Set([sessionId]);
      for (const { session } of ended) gone.add(session.sessionId);
      const staying = this.#entriesOf(uid).filter(
        (other) => !gone.has(other.session.sessionId),
      );
      this.#put(uid, staying.concat(entry)); // exactly as long as needed, unlike a spread
      for (const { session, reason } of ended) this.#tellEnded(session, reason);
      this.#listener({ kind: "presence", uid });
      return { kind: "entered", session, order: entry.order };
    });
  }

  async unregister(session: SessionRecord): Promise<void> {
    this.#remove(session);
  }

  end(session: SessionRecord, reason: CloseReason): Promise<void> {
    const { uid, flag } = session;
    return this.#lock.run(uid, async () => {
      const found = this.#find(session);
      const newest = await this.#newestOf(session);
      if (newest !== undefined && found?.order === newest.order)
        await this.#logins.putNewestLogin(uid, flag, {
          ...newest,
          ended: reason,
        });
      this.#remove(session);
      this.#tellEnded(session, reason);
    });
  }

  #tellEnded({ uid, sessionId }: SessionName, reason: CloseReason): void {
    this.#listener({ kind: "end_session", uid, sessionId, reason });
  }

  /** The level that counts; undefined: the device does not have the token. */
  async #levelOf(
    { uid, flag, level }: SessionRecord,
    tokenHash: Uint8Array | undefined,
  ): Promise<DeviceLevel | undefined> {
    if (tokenHash === undefined) return level;
    const device = await this.#logins.device(uid, flag);
    if (device === undefined || tokenHash.length === 0) return undefined; // that of a device that logged out is empty
    if (device.tokenHash.length !== tokenHash.length) return undefined;
    const isSame = timingSafeEqual(device.tokenHash, tokenHash);
    return isSame ? device.level : undefined;
  }

  async endedBy(session: SessionName): Promise<CloseReason | undefined> {
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

  #find({ uid, sessionId }: SessionName): Entry | undefined {
    return this.#entriesOf(uid).find(
      (one) => one.session.sessionId === sessionId,
    );
  }

  #remove({ uid, sessionId }: SessionRecord): void {
    const all = this.#entriesOf(uid);
    const left = all.filter((one) => one.session.sessionId !== sessionId);
    if (left.length === all.length) return;
    this.#put(uid, left);
    this.#listener({ kind: "presence", uid });
  }

  /** In turn with logins: one that compared its token before the call is in the answer. */
  sessionsOf(uid: string): Promise<readonly SessionRecord[]> {
    return this.#lock.run(uid, async () =>
      this.#entriesOf(uid).map(({ session }) => session),
    );
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
  recovery(): undefined {}
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
