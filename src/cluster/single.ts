// A cluster of one node: events come straight back, the session directory is a map. State: the sessions of this process by uid,
// how many they are, the counters of failed credentials. Same contract as a cluster of many, so nothing else knows the difference.

import type { CloseReason } from "../broker/errors.ts";
import type { Presence, SessionRecord } from "../broker/model.ts";
import type {
  Cluster,
  ClusterEvent,
  FailureCount,
  NodeInfo,
  Throttle,
} from "../broker/ports.ts";
import { type AboutNode, createSelfPortrait } from "./about-node.ts";
import { ends, presenceOf } from "./session-rules.ts";

const NOBODY: readonly SessionRecord[] = [];

export class SingleNode implements Cluster {
  readonly nodeId: string;
  readonly #sessions = new Map<string, readonly SessionRecord[]>();
  readonly #portrait: () => NodeInfo;
  #listener: (event: ClusterEvent) => void = () => {};
  #sessionCount = 0;

  /** What `about` leaves out is unknown: no address, no version, started now. */
  constructor(nodeId: string, about: Partial<Omit<AboutNode, "nodeId">> = {}) {
    this.nodeId = nodeId;
    const unknown = { clientAddress: "", version: "", startedAtMs: Date.now() };
    this.#portrait = createSelfPortrait(
      { ...unknown, isDraining: () => false, ...about, nodeId },
      () => this.#sessionCount,
    );
  }

  async nodes(): Promise<readonly NodeInfo[]> {
    return [this.#portrait()];
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

  async register(session: SessionRecord): Promise<readonly SessionRecord[]> {
    const others = (this.#sessions.get(session.uid) ?? NOBODY).filter(
      (other) => other.sessionId !== session.sessionId,
    );
    const ended = others.filter((other) => ends(session, other));
    const staying = others.filter((other) => !ends(session, other));
    this.#put(session.uid, staying.concat(session)); // exactly as long as needed, unlike a spread
    return ended;
  }

  async unregister(session: SessionRecord): Promise<void> {
    this.#remove(session);
  }

  async end(session: SessionRecord, reason: CloseReason): Promise<void> {
    this.#remove(session);
    const { uid, sessionId } = session;
    this.#listener({ kind: "end_session", uid, sessionId, reason });
  }

  #remove(session: SessionRecord): void {
    const left = (this.#sessions.get(session.uid) ?? NOBODY).filter(
      (one) => one.sessionId !== session.sessionId,
    );
    this.#put(session.uid, left);
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

  #put(uid: string, sessions: readonly SessionRecord[]): void {
    const before = this.#sessions.get(uid) ?? NOBODY;
    this.#sessionCount += sessions.length - before.length;
    if (sessions.length > 0) this.#sessions.set(uid, sessions);
    else this.#sessions.delete(uid);
  }
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
