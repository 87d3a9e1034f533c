// The lease of a move: one process holds it, and it expires two seconds after the process died.
// State: the token, the fence of each server (a time of its own clock), the renewal timer. The
// timer never takes a lost lease again: another process may have held it.

import { randomUUID } from "node:crypto";
import { BrokerError } from "../broker/errors.ts";
import type { RedisLink } from "../redis/link.ts";
import { loadScript } from "../redis/script.ts";

const leaseScript = loadScript(new URL("./lua/lease.lua", import.meta.url));

const LEASE_MS = 2000;
const RENEW_MS = 400;

const keyOf = ({ keys }: Pick<RedisLink, "keys">) => keys.shared("migrating");

/** Whether a process has the lease now. Throws as the link does. */
export async function isHeld(link: Pick<RedisLink, "call" | "keys">): Promise<boolean> {
  return (await link.call("exists", keyOf(link))) === 1;
}

type Link = Pick<RedisLink, "run" | "keys" | "primaries" | "primaryOf">;
type Server = ReturnType<Link["primaryOf"]>;

export class Lease {
  readonly #link: Link;
  /** What the lease's key holds while this process has it. */
  readonly token = randomUUID();
  #keptAtMs = Number.NEGATIVE_INFINITY;
  /** Unix milliseconds of each server's own clock. */
  #until: ReadonlyMap<Server, number> = new Map();
  #timer: NodeJS.Timeout | undefined;
  #mayBeWriting = false;

  constructor(link: Link) {
    this.#link = link;
  }

  /** Its key, in the slot of what the whole cluster shares. */
  get key(): string {
    return keyOf(this.#link);
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

  /**
   * To be called before each piece of work. Throws `unavailable` when another process may have it
   * by now.
   */
  assertHeld(): void {
    if (performance.now() - this.#keptAtMs >= LEASE_MS) throw lostLease();
  }

  /**
   * The fence of a key's server: Unix milliseconds of its clock. Throws `unavailable` when the
   * lease is lost.
   */
  untilOf(key: string): number {
    this.assertHeld();
    const untilMs = this.#until.get(this.#link.primaryOf(key));
    if (untilMs === undefined) throw lostLease(); // a new server, until the next renewal
    return untilMs;
  }

  /**
   * To be called after work that blocked the event loop. Throws as `assertHeld`.
   */
  async renew(): Promise<void> {
    await this.#keep("take");
    this.assertHeld();
  }

  /**
   * To be called when a write got no answer: it may reach its server until the fence ends. The
   * lease is then not given back before.
   */
  noteUnanswered(): void {
    this.#mayBeWriting = true;
  }

  /** Gives it back where that is possible; else it ends by itself. */
  async release(): Promise<void> {
    clearInterval(this.#timer);
    this.#keptAtMs = Number.NEGATIVE_INFINITY; // no write begins any more
    if (this.#mayBeWriting) return;
    await this.#ask(0, "keep").catch(() => false); // it ends by itself
  }

  /**
   * Reads the servers' clocks first: no fence is later than the end of the lease, however far
   * clocks are apart.
   */
  async #keep(how: "take" | "keep"): Promise<boolean> {
    const askedAtMs = performance.now();
    const until = new Map<Server, number>();
    const asks = this.#link.primaries().map(async (server) => {
      const [seconds, micros] = await server.time();
      const nowMs = Number(seconds) * 1000 + Math.floor(Number(micros) / 1000);
      until.set(server, nowMs + LEASE_MS);
    });
    await Promise.allSettled(asks); // a server without an answer takes no writes
    const isOurs = await this.#ask(LEASE_MS, how);
    if (isOurs && askedAtMs > this.#keptAtMs) {
      this.#keptAtMs = askedAtMs;
      this.#until = until;
    }
    return isOurs;
  }

  async #ask(ms: number, how: "take" | "keep"): Promise<boolean> {
    const [keys, args] = [[this.key], [this.token, ms, how]];
    return (await this.#link.run(leaseScript, keys, args)) === 1;
  }
}

/** Another process may move by now. */
export function lostLease(): BrokerError {
  return new BrokerError("unavailable", {
    message: "The lease of the move was lost: it was not renewed in time, or Redis lost it",
  });
}
