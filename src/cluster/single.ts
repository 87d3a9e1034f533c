// A cluster of one node: events come straight back, the session directory is a map. State: the sessions of this process by uid,
// the failed-login counters. Same contract as a cluster of many, so nothing else knows the difference.

import {
  DEVICE_FLAGS,
  MAIN_DEVICE,
  type Presence,
  type SessionRecord,
} from "../broker/model.ts";
import type { Cluster, ClusterEvent, Throttle } from "../broker/ports.ts";

const NOBODY: readonly SessionRecord[] = [];

export class SingleNode implements Cluster {
  readonly nodeId: string;
  readonly #sessions = new Map<string, readonly SessionRecord[]>();
  #listener: (event: ClusterEvent) => void = () => {};

  constructor(nodeId: string) {
    this.nodeId = nodeId;
  }

  onEvent(listener: (event: ClusterEvent) => void): void {
    this.#listener = listener;
  }

  publish(event: ClusterEvent): void {
    this.#listener(event);
  }

  async register(session: SessionRecord): Promise<readonly SessionRecord[]> {
    const others = (this.#sessions.get(session.uid) ?? NOBODY).filter(
      (other) => other.sessionId !== session.sessionId,
    );
    const ended = others.filter((other) => ends(session, other));
    const staying = others.filter((other) => !ends(session, other));
    this.#sessions.set(session.uid, staying.concat(session)); // exactly as long as needed, unlike a spread
    return ended;
  }

  async unregister(session: SessionRecord): Promise<void> {
    const left = (this.#sessions.get(session.uid) ?? NOBODY).filter(
      (one) => one.sessionId !== session.sessionId,
    );
    if (left.length > 0) this.#sessions.set(session.uid, left);
    else this.#sessions.delete(session.uid);
  }

  async sessionsOf(uid: string): Promise<readonly SessionRecord[]> {
    return this.#sessions.get(uid) ?? NOBODY;
  }

  async presence(uids: readonly string[]): Promise<readonly Presence[]> {
    return uids.map((uid) =>
      presenceOf(uid, this.#sessions.get(uid) ?? NOBODY),
    );
  }

  async listen(): Promise<void> {}
  unlisten(): void {}
  async barrier(): Promise<void> {}
  async start(): Promise<void> {}
  async close(): Promise<void> {}
  async ping(): Promise<void> {}
}

/** Whether `next` ends `old` when it logs in [decisions: Kick rule]. */
function ends(next: SessionRecord, old: SessionRecord): boolean {
  if (old.flag !== next.flag) return false;
  if (next.deviceId !== "" && old.deviceId === next.deviceId) return true;
  return next.level === MAIN_DEVICE && old.level === MAIN_DEVICE;
}

/** The flag of the main session if there is one, else the lowest [decisions: Online status]. */
function presenceOf(uid: string, sessions: readonly SessionRecord[]): Presence {
  if (sessions.length === 0) return { uid, online: false, flag: 0 };
  const mains = sessions.filter((one) => one.level === MAIN_DEVICE);
  const candidates = mains.length > 0 ? mains : sessions;
  const flag =
    DEVICE_FLAGS.find((one) => candidates.some(({ flag }) => flag === one)) ??
    0;
  return { uid, online: true, flag };
}

interface Failures {
  readonly count: number;
  readonly endsAtMs: number;
}

/** Failed logins in this process; at most `maxKeys`, the oldest forgotten first. */
export class LocalThrottle implements Throttle {
  readonly #failures = new Map<string, Failures>();
  readonly #clock: () => number;
  readonly #maxKeys: number;

  constructor(clock: () => number, maxKeys = 100_000) {
    this.#clock = clock;
    this.#maxKeys = maxKeys;
  }

  async failures(key: string): Promise<{ count: number; retryAfterS: number }> {
    const found = this.#current(key);
    if (found === undefined) return { count: 0, retryAfterS: 0 };
    const leftMs = found.endsAtMs - this.#clock();
    return { count: found.count, retryAfterS: Math.ceil(leftMs / 1000) };
  }

  async addFailure(key: string, windowMs: number): Promise<void> {
    const found = this.#current(key);
    const endsAtMs = found?.endsAtMs ?? this.#clock() + windowMs;
    this.#failures.delete(key);
    this.#failures.set(key, { count: (found?.count ?? 0) + 1, endsAtMs });
    if (this.#failures.size <= this.#maxKeys) return;
    const oldest = this.#failures.keys().next();
    if (!oldest.done) this.#failures.delete(oldest.value);
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
