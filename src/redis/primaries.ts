// Selects the Redis Cluster server for each command. ioredis must not redirect commands, because it
// would resend a rejected pipeline, possibly after later pipelines, and calls for one channel must
// keep their order. Instead, a command for the wrong server is rejected, and the slot map is
// refreshed. State: the connections by address and two timers.

import type { Cluster, Redis } from "ioredis";
import { BrokerError } from "../broker/errors.ts";
import { slotOf } from "./slots.ts";

const MIN_REFRESH_MS = 100;
const REFRESH_INTERVAL_MS = 2000;

const NO_PRIMARY =
  "The Redis Cluster has no reachable primary for part of the data; try again later";

const CLOSED_STATUSES: ReadonlySet<string> = new Set(["end", "close", "disconnecting"]);

const STALE_MAP = /^(MOVED|ASK|READONLY|CLUSTERDOWN|Connection is closed)/;

export class Primaries {
  readonly #cluster: Cluster;
  readonly #nodes = new Map<string, Redis>();
  #refreshPause: NodeJS.Timeout | undefined;
  #refreshInterval: NodeJS.Timeout | undefined;

  constructor(cluster: Cluster) {
    this.#cluster = cluster;
    for (const event of ["+node", "-node", "refresh"]) cluster.on(event, () => this.#nodes.clear());
  }

  watch(): void {
    const cluster = this.#cluster;
    this.#refreshInterval ??= setInterval(() => {
      if (cluster.status === "ready") cluster.refreshSlotsCache();
    }, REFRESH_INTERVAL_MS).unref();
  }

  close(): void {
    clearInterval(this.#refreshInterval);
  }

  /**
   * Returns the connection to the key's server. Without a key, returns the connection to any
   * primary. Throws `unavailable` if that server is unknown or its connection is closed.
   */
  connectionFor(key: string | undefined): Redis {
    const node =
      key === undefined
        ? this.#cluster.nodes("master")[0]
        : this.#nodeAt(this.#cluster.slots[slotOf(key)]?.[0]);
    if (node === undefined || CLOSED_STATUSES.has(node.status)) {
      this.#refresh();
      throw new BrokerError("unavailable", { message: NO_PRIMARY });
    }
    return node;
  }

  holds(server: Redis, key: string): boolean {
    return this.#nodeAt(this.#cluster.slots[slotOf(key)]?.[0]) === server;
  }

  /** Refreshes the slot map if a command's error shows that the map is outdated. */
  reportError(error: unknown): void {
    if (error instanceof Error && STALE_MAP.test(error.message)) this.#refresh();
  }

  #nodeAt(address: string | undefined): Redis | undefined {
    if (address === undefined) return undefined;
    if (this.#nodes.size === 0)
      for (const node of this.#cluster.nodes("master"))
        this.#nodes.set(`${node.options.host}:${node.options.port}`, node);
    return this.#nodes.get(address);
  }

  #refresh(): void {
    if (this.#refreshPause !== undefined) return;
    this.#refreshPause = setTimeout(() => {
      this.#refreshPause = undefined;
    }, MIN_REFRESH_MS).unref();
    this.#cluster.refreshSlotsCache();
  }
}
