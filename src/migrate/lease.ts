// The lease of a move into a Redis: one process has it, and loses it some seconds after it died. State: the token, until when each server takes writes by
// its own clock, the timer that renews it. A lease that was lost is never taken again by the timer: another process may have used it.

import { randomUUID } from "node:crypto";
import { BrokerError } from "../broker/errors.ts";
import type { RedisLink } from "../redis/link.ts";
import { loadScript } from "../redis/script.ts";

const leaseScript = loadScript(new URL("./lua/lease.lua", import.meta.url));

const LEASE_MS = 2000;
const RENEW_MS = 400;

const keyOf = ({ keys }: Pick<RedisLink, "keys">) => keys.shared("migrating");

/** Whether a process has the lease now. Throws as the link does. */
export async function isHeld(
  link: Pick<RedisLink, "call" | "keys">,
): Promise<boolean> {
  return (await link.call("exists", keyOf(link))) === 1;
}

type Link = Pick<RedisLink, "run" | "keys" | "primaries" | "primaryOf">;
type Server = ReturnType<Link["primaryOf"]>;

export class Lease {
  readonly #link: Link;
  readonly #token = randomUUID();
  #keptAtMs = Number.NEGATIVE_INFINITY;
  /** Unix milliseconds of each server's own clock. */
  #until: ReadonlyMap<Server, number> = new Map();
  #timer: NodeJS.Timeout | undefined;

  constructor(link: Link) {
    this.#link = link;
  }

  /** False: another process has it. Throws as the link does. */
  async take(): Promise<boolean> {
    if (!(await this.#keep("take"))) return false;
    this.#timer = setInterval(() => {
      this.#keep("keep").catch(() => false); // `assertHeld` finds out
    }, RENEW_MS);
    this.#timer.unref();
    return true;
  }

  /** To be called before each piece of work. Throws `unavailable` when another process may have it by now. */
  assertHeld(): void {
    if (performance.now() - this.#keptAtMs >= LEASE_MS) throw lostLease();
  }

  /** Until when the server of a key may take writes, Unix milliseconds of its clock. Throws `unavailable` when the lease is lost. */
  untilOf(key: string): number {
    this.assertHeld();
    const untilMs = this.#until.get(this.#link.primaryOf(key));
    if (untilMs === undefined) throw lostLease(); // of a server that is new, until the lease is renewed
    return untilMs;
  }

  /** For work that held the event loop up, before anything is read or written. Throws as `assertHeld`. */
  async renew(): Promise<void> {
    await this.#keep("take");
    this.assertHeld();
  }

  /** Gives it back where that is possible; else it ends by itself. */
  async release(): Promise<void> {
    clearInterval(this.#timer);
    await this.#ask(0, "keep").catch(() => false); // it ends by itself
  }

  /** The servers' clocks are read first: no write is allowed for longer than the lease lasts, however far clocks are apart. */
  async #keep(how: "take" | "keep"): Promise<boolean> {
    const askedAtMs = performance.now();
    const until = new Map<Server, number>();
    const asks = this.#link.primaries().map(async (server) => {
      const [seconds, micros] = await server.time();
      const nowMs = Number(seconds) * 1000 + Math.floor(Number(micros) / 1000);
      until.set(server, nowMs + LEASE_MS);
    });
    await Promise.allSettled(asks); // what is on a server that does not answer cannot be written now
    const isOurs = await this.#ask(LEASE_MS, how);
    if (isOurs && askedAtMs > this.#keptAtMs) {
      this.#keptAtMs = askedAtMs;
      this.#until = until;
    }
    return isOurs;
  }

  async #ask(ms: number, how: "take" | "keep"): Promise<boolean> {
    const [keys, args] = [[keyOf(this.#link)], [this.#token, ms, how]];
    return (await this.#link.run(leaseScript, keys, args)) === 1;
  }
}

/** Another process may move by now. */
export function lostLease(): BrokerError {
  return new BrokerError("unavailable", {
    message: "The lease of the move was lost: Redis did not answer in time",
  });
}
