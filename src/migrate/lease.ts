// The right to move data into a Redis: one process has it, and loses it by itself some seconds after it died. State: the token, whether it is held and
// until when by each server's own clock, the timer that keeps it. What was lost is never taken again by the timer: another one may have used it.

import { randomUUID } from "node:crypto";
import { BrokerError } from "../broker/errors.ts";
import type { RedisLink } from "../redis/link.ts";
import { loadScript } from "../redis/script.ts";

const leaseScript = loadScript(new URL("./lua/lease.lua", import.meta.url));

const LEASE_MS = 2000;
const KEEP_MS = 400;

const keyOf = ({ keys }: Pick<RedisLink, "keys">) => keys.shared("migrating");

/** Whether a process has the right now. Throws as the link does. */
export async function isHeld(
  link: Pick<RedisLink, "call" | "keys">,
): Promise<boolean> {
  return (await link.call("exists", keyOf(link))) === 1;
}

type Link = Pick<RedisLink, "run" | "keys" | "primaries" | "primaryOf">;
type Server = ReturnType<Link["primaryOf"]>;

export class Lease {
  readonly #link: Link;
  readonly token = randomUUID();
  #keptAtMs = Number.NEGATIVE_INFINITY;
  /** Unix milliseconds of each server's own clock. */
  #until: ReadonlyMap<Server, number> = new Map();
  #timer: NodeJS.Timeout | undefined;

  constructor(link: Link) {
    this.#link = link;
  }

  get key(): string {
    return keyOf(this.#link);
  }

  /** False: another process has it. Throws as the link does. */
  async take(): Promise<boolean> {
    if (!(await this.#keep("take"))) return false;
    this.#timer = setInterval(() => {
      this.#keep("keep").catch(() => false); // `assertHeld` finds out
    }, KEEP_MS);
    this.#timer.unref();
    return true;
  }

  /** To be called before each piece of work. Throws `unavailable` when another process may have it by now. */
  assertHeld(): void {
    if (performance.now() - this.#keptAtMs >= LEASE_MS) throw lostRight();
  }

  /** Until when the server of a key may take writes, Unix milliseconds of its clock. Throws `unavailable` when it is lost. */
  untilOf(key: string): number {
    this.assertHeld();
    const untilMs = this.#until.get(this.#link.primaryOf(key));
    if (untilMs === undefined) throw lostRight(); // of a server that is new, until it is kept once more
    return untilMs;
  }

  /** Resolves when it is had anew: for work that held the event loop up, before anything is read or written. Throws as `assertHeld`. */
  async renew(): Promise<void> {
    await this.#keep("take");
    this.assertHeld();
  }

  /** Gives it back where that is possible; else it ends by itself. */
  async release(): Promise<void> {
    clearInterval(this.#timer);
    await this.#ask(0, "keep").catch(() => false); // it ends by itself
  }

  /** The servers' clocks are read first: no write is allowed for longer than the right lasts, however far clocks are apart. */
  async #keep(how: "take" | "keep"): Promise<boolean> {
    const askedAtMs = performance.now();
    const until = await this.#deadlines();
    const isOurs = await this.#ask(LEASE_MS, how);
    if (isOurs && askedAtMs > this.#keptAtMs) {
      this.#keptAtMs = askedAtMs;
      this.#until = until;
    }
    return isOurs;
  }

  /** Of the servers that answer; what is on others cannot be written now. */
  async #deadlines(): Promise<ReadonlyMap<Server, number>> {
    const until = new Map<Server, number>();
    const asks = this.#link.primaries().map(async (server) => {
      const [seconds, micros] = await server.time();
      const nowMs = Number(seconds) * 1000 + Math.floor(Number(micros) / 1000);
      until.set(server, nowMs + LEASE_MS);
    });
    await Promise.allSettled(asks);
    return until;
  }

  async #ask(ms: number, how: "take" | "keep"): Promise<boolean> {
    const args = [this.token, ms, how];
    return (await this.#link.run(leaseScript, [this.key], args)) === 1;
  }
}

/** Another process may move by now. */
export function lostRight(): BrokerError {
  return new BrokerError("unavailable", {
    message: "The right to move data was lost: Redis did not answer in time",
  });
}
