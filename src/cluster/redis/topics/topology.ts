// Maps topic names to servers: the only server, or on a Cluster the primary of the name's slot,
// polled. State: the slot map.

import type { Redis } from "ioredis";
import type { Clock } from "../../../broker/ports.ts";
import type { RedisLink } from "../../../redis/link.ts";
import { SLOTS, slotOf } from "../../../redis/slots.ts";
import { pause } from "./deadline.ts";

/** `host:port`; undefined: no known server. */
export type Address = string;

/** Address without a Cluster. */
export const ONLY_SERVER: Address = "";

const ASK_MS = 1000;
const HURRY_MS = 200;

export class Topology {
  readonly #link: RedisLink;
  readonly #clock: Clock;
  readonly #onChange: (sinceMs: number) => void;
  readonly #onError: (error: unknown, what: string) => void;
  #owners: readonly (Address | undefined)[] = [];
  #askedAtMs = 0;
  #isHurried = false;
  #isClosed = false;

  constructor(
    link: RedisLink,
    parts: {
      readonly clock: Clock;
      /** Slots moved at or after that time. */
      readonly onChange: (sinceMs: number) => void;
      readonly onError: (error: unknown, what: string) => void;
    },
  ) {
    this.#link = link;
    this.#clock = parts.clock;
    this.#onChange = parts.onChange;
    this.#onError = parts.onError;
  }

  /** Throws what Redis throws. */
  async start(): Promise<void> {
    if (!this.#link.isCluster) return;
    await this.#ask();
    void this.#watch();
  }

  close(): void {
    this.#isClosed = true;
  }

  addressOf(name: string): Address | undefined {
    return this.#link.isCluster ? this.#owners[slotOf(name)] : ONLY_SERVER;
  }

  /** All servers with slots. */
  addresses(): ReadonlySet<Address> {
    if (!this.#link.isCluster) return new Set([ONLY_SERVER]);
    return new Set(this.#owners.filter((one) => one !== undefined));
  }

  /** A name with `tail` in a slot of the server; undefined: it has no slots. */
  nameAt(address: Address, tail: string): string | undefined {
    for (let at = 0; at < SLOTS; at++) {
      const name = `${this.#link.keys.prefix}:{m${at}}:${tail}`;
      if (this.addressOf(name) === address) return name;
    }
    return undefined;
  }

  /** Polls more often while the map seems outdated. */
  hurry(isHurried: boolean): void {
    this.#isHurried = isHurried;
  }

  async #watch(): Promise<void> {
    let waitedMs = 0;
    while (!this.#isClosed) {
      await pause(HURRY_MS);
      waitedMs += HURRY_MS;
      if (waitedMs < ASK_MS && !this.#isHurried) continue;
      waitedMs = 0;
      await this.#ask().catch((error) =>
        this.#onError(error, "The slots of the Redis Cluster could not be read"),
      );
    }
  }

  async #ask(): Promise<void> {
    const node = this.#someNode();
    if (node === undefined) return;
    const atMs = this.#clock();
    const ranges = await node.cluster("SLOTS");
    const owners: (Address | undefined)[] = Array(SLOTS).fill(undefined);
    for (const [first, last, primary] of ranges) {
      if (primary === undefined) continue;
      const [host, port] = primary; // no host: the server that answered
      const address = `${host || node.options.host}:${port}`;
      owners.fill(address, first, last + 1);
    }
    const isSame = owners.every((one, slot) => one === this.#owners[slot]);
    const sinceMs = this.#askedAtMs;
    this.#owners = owners;
    this.#askedAtMs = atMs;
    if (!isSame) this.#onChange(sinceMs);
  }

  /** A random connected server. */
  #someNode(): Redis | undefined {
    const ready = this.#link.primaries().filter(({ status }) => status === "ready");
    return ready[Math.floor(Math.random() * ready.length)];
  }
}
