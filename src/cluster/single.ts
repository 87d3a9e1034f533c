// A cluster of one node: events come straight back, and nothing is ever missed. State: who listens,
// the counters of failed credentials. Same contract as a cluster of many.

import type {
  Cluster,
  ClusterEvent,
  FailureCount,
  Incarnation,
  NodeInfo,
  Throttle,
} from "../broker/ports.ts";
import { BoundedMap } from "../lib/bounded-map.ts";
import { type AboutNode, createNodeDescription } from "./about-node.ts";

export class SingleNode implements Cluster {
  readonly nodeId: string;
  readonly incarnation: Incarnation;
  readonly #describe: () => NodeInfo;
  #listener: (event: ClusterEvent) => void = () => {};

  /** What `about` leaves out is unknown: no address, no version, started now, no sessions. */
  constructor(nodeId: string, about: Partial<Omit<AboutNode, "nodeId">> = {}) {
    this.nodeId = nodeId;
    this.incarnation = `${nodeId}:alone`;
    this.#describe = createNodeDescription({
      ...{ clientAddress: "", version: "", startedAtMs: Date.now() },
      ...{ isDraining: () => false, sessions: () => 0, ...about, nodeId },
    });
  }

  async nodes(): Promise<readonly NodeInfo[]> {
    return [this.#describe()];
  }

  isLive(incarnation: Incarnation): boolean {
    return incarnation === this.incarnation;
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

  async heartbeat(): Promise<void> {}
  async listen(): Promise<void> {}
  async subscribe(): Promise<void> {}
  unlisten(): void {}
  async barrier(): Promise<void> {}
  recovery(): undefined {}
  delivered(): undefined {}
  async start(): Promise<void> {}
  async close(): Promise<void> {}
  async ping(): Promise<void> {}
}

interface Failures {
  readonly count: number;
  readonly endsAtMs: number;
}

/** Failed credentials in this process; at most `maxKeys`, the oldest forgotten first. */
export class LocalThrottle implements Throttle {
  readonly #failures: BoundedMap<string, Failures>;
  readonly #clock: () => number;

  constructor(clock: () => number, maxKeys = 100_000) {
    this.#clock = clock;
    this.#failures = new BoundedMap(maxKeys);
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
    this.#failures.renew(key, { count: (found?.count ?? 0) + 1, endsAtMs });
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
