// Waits until replicas have what was written (WAIT), for as many as `redis.minReplicas` says. All who ask a primary while one wait is under way share
// its next one. State: a wait line per primary.

import type { Redis } from "ioredis";
import type { RedisLink } from "./link.ts";
import { ReplicaWaits } from "./replica-waits.ts";

/** Tags tried for one whose slot a primary holds. */
const MAX_TAGS = 20_000;

export class Written {
  readonly #link: RedisLink;
  readonly #waits = new Map<Redis, ReplicaWaits>();

  constructor(link: RedisLink) {
    this.#link = link;
  }

  /**
   * Resolves once `minReplicas` replicas have all that was written and answered before the call: of the primary that holds `key`, or of all.
   * Undefined: none is asked for. Throws `unavailable` when they are not that many in time, or when the primary is another one meanwhile.
   */
  wait(key?: string): Promise<void> | undefined {
    const link = this.#link;
    if (link.settings.minReplicas === 0) return undefined;
    return this.#wait(key);
  }

  close(): void {
    for (const waits of this.#waits.values()) waits.close();
    this.#waits.clear();
  }

  async #wait(key: string | undefined): Promise<void> {
    const primaries =
      key === undefined
        ? this.#link.primaries().filter(({ status }) => status === "ready") // nothing was written through another
        : [this.#link.primaryOf(key)];
    const joined = primaries.map((primary) => this.#of(primary).join());
    for (const result of await Promise.allSettled(joined))
      if (result.status === "rejected") throw result.reason;
  }

  #of(primary: Redis): ReplicaWaits {
    const known = this.#waits.get(primary);
    if (known?.serves(primary)) return known;
    known?.close();
    const { settings } = this.#link;
    const waits = new ReplicaWaits(primary, {
      ...{ settings, mark: this.#markOf(primary) },
    });
    for (const [old, { close }] of this.#waits)
      if (old.status === "end") {
        close();
        this.#waits.delete(old);
      }
    this.#waits.set(primary, waits);
    return waits;
  }

  /** A key that is this primary's. */
  #markOf(primary: Redis): string {
    const link = this.#link;
    for (let tag = 0; tag < MAX_TAGS; tag++) {
      const mark = `${link.keys.prefix}:{w${tag}}:wait`;
      if (!link.isCluster || link.primaryOf(mark) === primary) return mark;
    }
    return `${link.keys.prefix}:{w}:wait`; // it holds no slot: its write is refused
  }
}
