// A one-node cluster, with the same contract as a cluster of many nodes. Published events go
// directly to the listener, and no event is ever missed.

import type {
  Cluster,
  ClusterEvent,
  FailureCount,
  Incarnation,
  NodeInfo,
  Throttle,
} from "../broker/ports.ts";
import { BoundedMap } from "../lib/bounded-map.ts";
import { createNodeDescription, type NodeDetails } from "./node-description.ts";

const DONE = Promise.resolve();

export class SingleNode implements Cluster {
  readonly nodeId: string;
  readonly deliversAll = true;
  readonly incarnation: Incarnation;
  readonly #describe: () => NodeInfo;
  #listener: (event: ClusterEvent) => void = () => {};

  constructor(nodeId: string, details: Partial<Omit<NodeDetails, "nodeId">> = {}) {
    this.nodeId = nodeId;
    this.incarnation = `${nodeId}:alone`;
    this.#describe = createNodeDescription({
      ...{ clientAddress: "", tcpAddress: "", version: "", startedAtMs: Date.now() },
      ...{ isDraining: () => false, sessions: () => 0, ...details, nodeId },
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
  listen = () => DONE;
  subscribe(): true {
    return true;
  }
  unlisten(): void {}
  barrier = () => DONE;
  recovery(): undefined {}
  delivered(): undefined {}
  async start(): Promise<void> {}
  async close(): Promise<void> {}
  async ping(): Promise<void> {}
}

interface FailureWindow {
  readonly count: number;
  readonly endsAtMs: number;
}

/**
 * Counts failed attempts on this node. If there are more than `maxKeys` keys, drops the key whose
 * last failed attempt is the oldest.
 */
export class LocalThrottle implements Throttle {
  readonly #failures: BoundedMap<string, FailureWindow>;
  readonly #clock: () => number;

  constructor(clock: () => number, maxKeys = 100_000) {
    this.#clock = clock;
    this.#failures = new BoundedMap(maxKeys);
  }

  async failures(key: string): Promise<FailureCount> {
    const failures = this.#current(key);
    if (failures === undefined) return { count: 0, retryAfterS: 0 };
    const remainingMs = failures.endsAtMs - this.#clock();
    return { count: failures.count, retryAfterS: Math.ceil(remainingMs / 1000) };
  }

  async addFailure(key: string, windowMs: number): Promise<FailureCount> {
    const failures = this.#current(key);
    const endsAtMs = failures?.endsAtMs ?? this.#clock() + windowMs;
    this.#failures.renew(key, { count: (failures?.count ?? 0) + 1, endsAtMs });
    return this.failures(key);
  }

  async clear(key: string): Promise<void> {
    this.#failures.delete(key);
  }

  #current(key: string): FailureWindow | undefined {
    const failures = this.#failures.get(key);
    if (failures === undefined || failures.endsAtMs > this.#clock()) return failures;
    this.#failures.delete(key);
    return undefined;
  }
}
