// Which server of a Redis Cluster takes a command. Commands go straight to the connection of their
// slot's primary and ioredis redirects none: it would send a refused pipeline again, possibly
// behind later ones, and calls for one channel must keep their order. A command that came to the
// wrong server is refused, and the map of slots is read anew, as it is from time to time. State:
// the connections by address, two timers.

import type { Cluster, Redis } from "ioredis";
import { BrokerError } from "../broker/errors.ts";
import { slotOf } from "./slots.ts";

/** Between two looks at the map of slots that errors ask for. */
const REFRESH_MS = 100;
/** The map of slots is looked at so often without an error. */
const LOOK_MS = 2000;

const GONE: ReadonlySet<string> = new Set(["end", "close", "disconnecting"]);

/** The slot moved, its server is away, or nobody knows. */
const MISPLACED = /^(MOVED|ASK|READONLY|CLUSTERDOWN|Connection is closed)/;

export class Primaries {
  readonly #cluster: Cluster;
  readonly #nodes = new Map<string, Redis>();
  #refreshing: NodeJS.Timeout | undefined;
  #looking: NodeJS.Timeout | undefined;

  constructor(cluster: Cluster) {
    this.#cluster = cluster;
    for (const event of ["+node", "-node", "refresh"]) cluster.on(event, () => this.#nodes.clear());
  }

  /** From now on, until `close`, slots that moved are noticed. */
  watch(): void {
    const cluster = this.#cluster;
    this.#looking ??= setInterval(() => {
      if (cluster.status === "ready") cluster.refreshSlotsCache();
    }, LOOK_MS).unref();
  }

  close(): void {
    clearInterval(this.#looking);
  }

  /**
   * The connection for a command with this first key, or for one without a key. Throws
   * `unavailable`.
   */
  of(key: string | undefined): Redis {
    const node =
      key === undefined
        ? this.#cluster.nodes("master")[0]
        : this.#at(this.#cluster.slots[slotOf(key)]?.[0]);
    if (node === undefined || GONE.has(node.status)) {
      this.#refresh();
      throw new BrokerError("unavailable");
    }
    return node;
  }

  /** Must be called with every failure of a command. */
  failed(error: unknown): void {
    if (error instanceof Error && MISPLACED.test(error.message)) this.#refresh();
  }

  #at(address: string | undefined): Redis | undefined {
    if (address === undefined) return undefined;
    if (this.#nodes.size === 0)
      for (const node of this.#cluster.nodes("master"))
        this.#nodes.set(`${node.options.host}:${node.options.port}`, node);
    return this.#nodes.get(address);
  }

  #refresh(): void {
    if (this.#refreshing !== undefined) return;
    this.#refreshing = setTimeout(() => {
      this.#refreshing = undefined;
    }, REFRESH_MS).unref();
    this.#cluster.refreshSlotsCache();
  }
}
