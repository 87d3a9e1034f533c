// The migration lease. At most one process holds the lease, and the lease expires two seconds after
// its last renewal. The renewal timer must not acquire a lost lease again, because another process
// may have held the lease after the loss.

import { randomUUID } from "node:crypto";
import { BrokerError } from "../broker/errors.ts";
import type { RedisLink } from "../redis/link.ts";
import { loadScript } from "../redis/script.ts";

const leaseScript = loadScript(new URL("./lua/lease.lua", import.meta.url));

const LEASE_MS = 2000;
const RENEW_MS = 400;

const keyOf = ({ keys }: Pick<RedisLink, "keys">) => keys.shared("migrating");

export async function isHeld(link: Pick<RedisLink, "call" | "keys">): Promise<boolean> {
  return (await link.call("exists", keyOf(link))) === 1;
}

type Link = Pick<RedisLink, "run" | "keys" | "primaries" | "primaryOf">;
type Server = ReturnType<Link["primaryOf"]>;

export class Lease {
  readonly #link: Link;
  readonly token = randomUUID();
  /** Start of the last successful renewal. The lease expires no earlier than `LEASE_MS` later. */
  #renewedAtMs = Number.NEGATIVE_INFINITY;
  /**
   * Time on each server's clock, in Unix milliseconds, after which the server rejects this
   * process's writes.
   */
  #fences: ReadonlyMap<Server, number> = new Map();
  #timer: NodeJS.Timeout | undefined;
  #mayBeWriting = false;

  constructor(link: Link) {
    this.#link = link;
  }

  get key(): string {
    return keyOf(this.#link);
  }

  /** Acquires the lease and renews it periodically. Returns false if another process holds it. */
  async acquire(): Promise<boolean> {
    if (!(await this.#acquire("take"))) return false;
    this.#timer = setInterval(() => {
      this.#acquire("keep").catch(() => false); // `assertHeld` notices a lost lease
    }, RENEW_MS);
    this.#timer.unref();
    return true;
  }

  /** Throws `unavailable` if the lease may be lost. Must be called before each piece of work. */
  assertHeld(): void {
    if (performance.now() - this.#renewedAtMs >= LEASE_MS) throw lostLease();
  }

  /**
   * Returns the time, on the clock of the key's server, after which this server rejects this
   * process's writes. Throws `unavailable` if the lease may be lost, or if there is no fence yet.
   */
  fenceOf(key: string): number {
    this.assertHeld();
    const untilMs = this.#fences.get(this.#link.primaryOf(key));
    if (untilMs === undefined) throw lostLease(); // a new server gets a fence at the next renewal
    return untilMs;
  }

  /**
   * Renews the lease, or acquires it again, after work that blocked the event loop. Throws
   * `unavailable` if another process holds it.
   */
  async renew(): Promise<void> {
    await this.#acquire("take");
    this.assertHeld();
  }

  /**
   * Records that a write did not get a reply. Because the write may still run, `release` does not
   * release the lease but lets it expire.
   */
  noteUnanswered(): void {
    this.#mayBeWriting = true;
  }

  /** Stops the renewals. Then releases the lease, or lets it expire if a write may still run. */
  async release(): Promise<void> {
    clearInterval(this.#timer);
    this.#renewedAtMs = Number.NEGATIVE_INFINITY; // no further write may start
    if (this.#mayBeWriting) return;
    await this.#callScript(0, "keep").catch(() => false); // if the call fails, the lease expires
  }

  /** Acquires or renews the lease. Reads the clocks first, so that no fence outlives the lease. */
  async #acquire(how: "take" | "keep"): Promise<boolean> {
    const calledAtMs = performance.now();
    const fences = new Map<Server, number>();
    const reads = this.#link.primaries().map(async (server) => {
      const [seconds, micros] = await server.time();
      const nowMs = Number(seconds) * 1000 + Math.floor(Number(micros) / 1000);
      fences.set(server, nowMs + LEASE_MS);
    });
    await Promise.allSettled(reads); // a server that does not reply gets no fence
    const isOurs = await this.#callScript(LEASE_MS, how);
    if (isOurs && calledAtMs > this.#renewedAtMs) {
      this.#renewedAtMs = calledAtMs;
      this.#fences = fences;
    }
    return isOurs;
  }

  async #callScript(ms: number, how: "take" | "keep"): Promise<boolean> {
    const [keys, args] = [[this.key], [this.token, ms, how]];
    return (await this.#link.run(leaseScript, keys, args)) === 1;
  }
}

export function lostLease(): BrokerError {
  return new BrokerError("unavailable", {
    message:
      "The migration's lease was not renewed in time, or Redis lost it. The next attempt resumes the migration",
  });
}
