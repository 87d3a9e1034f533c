// Replication barrier: waits until replicas have what was written (WAIT), for as many as
// `redis.minReplicas` says. All callers that come to a primary while a WAIT is under way share its
// next one. State: for each primary the WAIT under way and the connection that it has for itself.

import type { Redis } from "ioredis";
import { BrokerError } from "../broker/errors.ts";
import { CoalescedTask } from "../lib/coalesced-task.ts";
import type { RedisSettings } from "./client.ts";
import { asBrokerError } from "./errors.ts";
import type { RedisLink } from "./link.ts";

/** Tags tried for one whose slot a primary holds. */
const MAX_TAGS = 20_000;
/** The small write before a WAIT ends by itself. */
const MARK_MS = 60_000;
/** Beyond WAIT's own time. */
const GRACE_MS = 500;

export class ReplicationBarrier {
  readonly #link: RedisLink;
  readonly #waits = new Map<Redis, PrimaryWaits>();

  constructor(link: RedisLink) {
    this.#link = link;
  }

  /**
   * Resolves once `minReplicas` replicas have all that was written and answered before the call: of
   * the primary that holds `key`, or of all. Undefined: none is asked for. Throws `unavailable`
   * when they are not that many in time, or when the primary is another one meanwhile.
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

  #of(primary: Redis): PrimaryWaits {
    const known = this.#waits.get(primary);
    if (known?.isCurrent) return known;
    known?.close();
    for (const [old, waits] of this.#waits)
      if (old.status === "end") {
        waits.close();
        this.#waits.delete(old);
      }
    const { settings } = this.#link;
    const made = new PrimaryWaits(primary, this.#markOf(primary), settings);
    this.#waits.set(primary, made);
    return made;
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

/**
 * WAIT holds up its connection and counts what that connection wrote: so it has one of its own,
 * where a small write just before it counts for all that the primary did until then.
 */
class PrimaryWaits {
  readonly #primary: Redis;
  readonly #settings: RedisSettings;
  readonly #mark: string;
  readonly #side: Redis;
  /** Of the primary's connection: another one may lead to another server. */
  readonly #socket: unknown;
  readonly #isSameServer: Promise<boolean>;
  readonly #waiting = new CoalescedTask(() => this.#wait());
  #isBroken = false;

  constructor(primary: Redis, mark: string, settings: RedisSettings) {
    this.#primary = primary;
    this.#settings = settings;
    this.#mark = mark;
    this.#socket = primary.stream;
    this.#side = primary.duplicate({
      ...{ lazyConnect: true, enableOfflineQueue: false },
      ...{ enableAutoPipelining: false, readOnly: false },
      retryStrategy: null,
      commandTimeout: settings.timeoutMs + GRACE_MS,
      socketTimeout: settings.timeoutMs + 2 * GRACE_MS, // WAIT is silent while it waits
    });
    this.#side.on("error", () => this.#break()); // its calls hear of it
    this.#side.on("end", () => this.#break());
    this.#isSameServer = this.#connect();
    this.#isSameServer.catch(() => this.#break());
  }

  /** It is still at the server that the primary's connection leads to. */
  get isCurrent(): boolean {
    return !this.#isBroken && this.#primary.stream === this.#socket;
  }

  /** Resolves once the replicas have what was answered before the call. Throws `unavailable`. */
  join(): Promise<void> {
    return this.#waiting.run();
  }

  close(): void {
    this.#break();
    this.#side.disconnect();
  }

  async #wait(): Promise<void> {
    const { minReplicas, timeoutMs } = this.#settings;
    try {
      if (!(await this.#isSameServer)) this.#break();
      const [, replicas] = await Promise.all([
        this.#side.set(this.#mark, 1, "PX", MARK_MS),
        this.#side.wait(minReplicas, timeoutMs),
      ]);
      if (this.isCurrent && replicas >= minReplicas) return;
    } catch (cause) {
      this.#break();
      throw asBrokerError(cause);
    }
    throw new BrokerError("unavailable", {
      message: `Fewer than ${minReplicas} replicas have the write`,
    });
  }

  async #connect(): Promise<boolean> {
    await this.#side.connect();
    const [one, other] = await Promise.all([runIdOf(this.#primary), runIdOf(this.#side)]);
    return one !== undefined && one === other;
  }

  #break(): void {
    this.#isBroken = true;
  }
}

async function runIdOf(redis: Redis): Promise<string | undefined> {
  return /run_id:(\w+)/.exec(await redis.info("server"))?.[1];
}
