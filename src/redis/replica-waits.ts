// The waits for one primary's replicas. WAIT holds up its connection and stands for what that connection wrote: so it has one of its own, where a small
// write just before it stands for all that the primary did until then. State: that connection, the wait under way and the one behind it.

import type { Redis } from "ioredis";
import { BrokerError } from "../broker/errors.ts";
import type { RedisSettings } from "./client.ts";
import { asBrokerError } from "./errors.ts";

/** The small write ends by itself. */
const MARK_MS = 60_000;
/** Beyond WAIT's own time. */
const GRACE_MS = 500;

export class ReplicaWaits {
  readonly #primary: Redis;
  readonly #settings: RedisSettings;
  readonly #mark: string;
  readonly #side: Redis;
  /** Of the primary's connection: another one may lead to another server. */
  readonly #socket: unknown;
  readonly #isSameServer: Promise<boolean>;
  #current: Promise<void> | undefined;
  #next: Promise<void> | undefined;
  #isBroken = false;

  constructor(
    primary: Redis,
    {
      settings,
      mark,
    }: { readonly settings: RedisSettings; readonly mark: string },
  ) {
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

  /** Whether it still stands for the primary's connection. */
  serves(primary: Redis): boolean {
    return !this.#isBroken && primary.stream === this.#socket;
  }

  /** Resolves once the replicas have what was answered before the call. Throws `unavailable`. */
  join(): Promise<void> {
    if (this.#current === undefined) {
      this.#current = this.#begin();
      return this.#current;
    }
    this.#next ??= this.#current.then(
      () => this.#follow(),
      () => this.#follow(),
    );
    return this.#next;
  }

  readonly close = (): void => {
    this.#break();
    this.#side.disconnect();
  };

  #follow(): Promise<void> {
    this.#next = undefined;
    this.#current = this.#begin();
    return this.#current;
  }

  #begin(): Promise<void> {
    const wait = this.#wait();
    const done = () => {
      if (this.#next === undefined) this.#current = undefined;
    };
    wait.then(done, done);
    return wait;
  }

  async #wait(): Promise<void> {
    const { minReplicas, timeoutMs } = this.#settings;
    try {
      if (!(await this.#isSameServer)) this.#break();
      const [, replicas] = await Promise.all([
        this.#side.set(this.#mark, 1, "PX", MARK_MS),
        this.#side.wait(minReplicas, timeoutMs),
      ]);
      if (this.serves(this.#primary) && replicas >= minReplicas) return;
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
    const [one, other] = await Promise.all([
      runIdOf(this.#primary),
      runIdOf(this.#side),
    ]);
    return one !== undefined && one === other;
  }

  #break(): void {
    this.#isBroken = true;
  }
}

async function runIdOf(redis: Redis): Promise<string | undefined> {
  return /run_id:(\w+)/.exec(await redis.info("server"))?.[1];
}
