// Replication barrier: waits with WAIT until `redis.minReplicas` replicas have received a write.
// All callers that arrive while a WAIT is in progress on a primary share the next WAIT.

import type { Redis } from "ioredis";
import { BrokerError } from "../broker/errors.ts";
import { CoalescedTask } from "../lib/coalesced-task.ts";
import { duplicate, type RedisSettings } from "./client.ts";
import { asBrokerError } from "./errors.ts";
import type { RedisLink } from "./link.ts";

const MARKER_TTL_MS = 60_000;
const GRACE_MS = 500;

export class ReplicationBarrier {
  readonly #link: RedisLink;
  readonly #waits = new Map<Redis, PrimaryWaits>();

  constructor(link: RedisLink) {
    this.#link = link;
  }

  /**
   * Resolves when `minReplicas` replicas have received all writes that were made on the primary of
   * `key` before this call. Must be called immediately after the reply to the write. Returns
   * `undefined` if no replicas are required. Throws `unavailable` if fewer replicas have received
   * the writes in time, or if the primary was replaced.
   */
  wait(key: string): Promise<void> | undefined {
    if (this.#link.settings.minReplicas === 0) return undefined;
    return this.#join(() => [this.#link.primaryOf(key)]);
  }

  /**
   * Must be called before a group of writes. The returned function waits for the writes on all
   * primaries, as `wait` does for one primary. It throws `unavailable` if a connection to a primary
   * was lost after the call to `observe`.
   */
  observe(): () => Promise<void> {
    if (this.#link.settings.minReplicas === 0) return async () => {};
    const sockets = new Map(this.#connected().map((primary) => [primary, primary.stream]));
    return async () => {
      for (const [primary, socket] of sockets)
        if (primary.status !== "ready" || primary.stream !== socket)
          throw new BrokerError("unavailable", {
            message:
              "The connection to a primary was lost before its replicas confirmed the write. Retry the write",
          });
      await this.#join(() => this.#connected());
    };
  }

  close(): void {
    for (const waits of this.#waits.values()) waits.close();
    this.#waits.clear();
  }

  #connected(): readonly Redis[] {
    return this.#link.primaries().filter(({ status }) => status === "ready");
  }

  async #join(primaries: () => readonly Redis[]): Promise<void> {
    const joined = primaries().map((primary) => this.#waitsOf(primary).join());
    for (const result of await Promise.allSettled(joined))
      if (result.status === "rejected") {
        this.#link.outage.record(result.reason);
        throw result.reason;
      }
  }

  #waitsOf(primary: Redis): PrimaryWaits {
    const current = this.#waits.get(primary);
    if (current?.isCurrent) return current;
    current?.close();
    for (const [server, waits] of this.#waits)
      if (server.status === "end") {
        waits.close();
        this.#waits.delete(server);
      }
    const { settings } = this.#link;
    // A primary without slots rejects every write, so the key does not matter.
    const marker = this.#link.keyOn(primary, "wait") ?? `${this.#link.keys.prefix}:wait`;
    const created = new PrimaryWaits(primary, marker, settings);
    this.#waits.set(primary, created);
    return created;
  }
}

/**
 * The WAITs of one primary. WAIT blocks its connection, so each primary has a separate connection
 * for it. A small write directly before each WAIT makes the WAIT cover all earlier writes on the
 * primary.
 */
class PrimaryWaits {
  readonly #primary: Redis;
  readonly #settings: RedisSettings;
  readonly #marker: string;
  readonly #connection: Redis;
  /**
   * Socket of the primary's connection when this object was created. A new socket may lead to a
   * different server.
   */
  readonly #socket: unknown;
  readonly #isSameServer: Promise<boolean>;
  readonly #waiting = new CoalescedTask(() => this.#wait());
  #isBroken = false;

  constructor(primary: Redis, marker: string, settings: RedisSettings) {
    this.#primary = primary;
    this.#settings = settings;
    this.#marker = marker;
    this.#socket = primary.stream;
    this.#connection = duplicate(primary, {
      ...{ lazyConnect: true, enableOfflineQueue: false },
      ...{ enableAutoPipelining: false, readOnly: false },
      retryStrategy: null,
      commandTimeout: settings.timeoutMs + GRACE_MS,
      socketTimeout: settings.timeoutMs + 2 * GRACE_MS, // no byte arrives while WAIT waits
    });
    this.#connection.on("error", () => this.#break()); // ioredis rejects pending calls
    this.#connection.on("end", () => this.#break());
    this.#isSameServer = this.#connect();
    this.#isSameServer.catch(() => this.#break());
  }

  get isCurrent(): boolean {
    return !this.#isBroken && this.#primary.stream === this.#socket;
  }

  join(): Promise<void> {
    return this.#waiting.run();
  }

  close(): void {
    this.#break();
    this.#connection.disconnect();
  }

  async #wait(): Promise<void> {
    const { minReplicas, timeoutMs } = this.#settings;
    try {
      if (!(await this.#isSameServer)) this.#break();
      const [, replicas] = await Promise.all([
        this.#connection.set(this.#marker, 1, "PX", MARKER_TTL_MS),
        this.#connection.wait(minReplicas, timeoutMs),
      ]);
      if (this.isCurrent && replicas >= minReplicas) return;
    } catch (cause) {
      this.#break();
      throw asBrokerError(cause);
    }
    throw new BrokerError("unavailable", {
      message: `Fewer than ${minReplicas} replicas confirmed the write in time (redis.minReplicas). Retry the write, and start or check the replicas`,
    });
  }

  async #connect(): Promise<boolean> {
    await this.#connection.connect();
    const [primaryId, connectionId] = await Promise.all([
      runIdOf(this.#primary),
      runIdOf(this.#connection),
    ]);
    return primaryId !== undefined && primaryId === connectionId;
  }

  #break(): void {
    this.#isBroken = true;
  }
}

async function runIdOf(redis: Redis): Promise<string | undefined> {
  return /run_id:(\w+)/.exec(await redis.info("server"))?.[1];
}
