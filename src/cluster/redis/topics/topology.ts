// Maps topic names to servers: to the only server, or on a Redis Cluster to the primary of the
// name's slot. Reads the slots at regular intervals. Owns the slot map.

import type { Redis } from "ioredis";
import type { Clock } from "../../../broker/ports.ts";
import type { RedisLink } from "../../../redis/link.ts";
import { SLOTS, slotOf } from "../../../redis/slots.ts";
import { pause } from "./deadline.ts";

export type Address = string;

export const ONLY_SERVER: Address = "";

const POLL_INTERVAL_MS = 1000;
const FAST_POLL_INTERVAL_MS = 200;

export class Topology {
  readonly #link: RedisLink;
  readonly #clock: Clock;
  readonly #onChange: (sinceMs: number) => void;
  readonly #onError: (error: unknown, message: string) => void;
  #owners: readonly (Address | undefined)[] = [];
  #readAtMs = 0;
  #isFast = false;
  #isClosed = false;

  constructor(
    link: RedisLink,
    ports: {
      readonly clock: Clock;
      /** Called when slots were moved. `sinceMs` is the earliest possible time of the move. */
      readonly onChange: (sinceMs: number) => void;
      readonly onError: (error: unknown, message: string) => void;
    },
  ) {
    this.#link = link;
    this.#clock = ports.clock;
    this.#onChange = ports.onChange;
    this.#onError = ports.onError;
  }

  async start(): Promise<void> {
    if (!this.#link.isCluster) return;
    await this.#readSlots();
    void this.#watch();
  }

  close(): void {
    this.#isClosed = true;
  }

  addressOf(name: string): Address | undefined {
    return this.#link.isCluster ? this.#owners[slotOf(name)] : ONLY_SERVER;
  }

  addresses(): ReadonlySet<Address> {
    if (!this.#link.isCluster) return new Set([ONLY_SERVER]);
    return new Set(this.#owners.filter((address) => address !== undefined));
  }

  /**
   * Returns a topic name in one of the server's slots, or `undefined` if no name is found, for
   * example because the server has no slots.
   */
  nameAt(address: Address, suffix: string): string | undefined {
    for (let at = 0; at < SLOTS; at++) {
      const name = `${this.#link.keys.prefix}:{m${at}}:${suffix}`;
      if (this.addressOf(name) === address) return name;
    }
    return undefined;
  }

  pollFast(isFast: boolean): void {
    this.#isFast = isFast;
  }

  async #watch(): Promise<void> {
    let waitedMs = 0;
    while (!this.#isClosed) {
      await pause(FAST_POLL_INTERVAL_MS);
      waitedMs += FAST_POLL_INTERVAL_MS;
      if (waitedMs < POLL_INTERVAL_MS && !this.#isFast) continue;
      waitedMs = 0;
      await this.#readSlots().catch((error) =>
        this.#onError(error, "Could not read the slots of the Redis Cluster; trying again"),
      );
    }
  }

  async #readSlots(): Promise<void> {
    const node = this.#randomServer();
    if (node === undefined) return;
    const atMs = this.#clock();
    const ranges = await node.cluster("SLOTS");
    const owners: (Address | undefined)[] = Array(SLOTS).fill(undefined);
    for (const [first, last, primary] of ranges) {
      if (primary === undefined) continue;
      const [host, port] = primary; // an empty host means the server that replied
      const address = `${host || node.options.host}:${port}`;
      owners.fill(address, first, last + 1);
    }
    const isUnchanged = owners.every((address, slot) => address === this.#owners[slot]);
    const sinceMs = this.#readAtMs;
    this.#owners = owners;
    this.#readAtMs = atMs;
    if (!isUnchanged) this.#onChange(sinceMs);
  }

  #randomServer(): Redis | undefined {
    const ready = this.#link.primaries().filter(({ status }) => status === "ready");
    return ready[Math.floor(Math.random() * ready.length)];
  }
}
