// Removes what nobody can see any more, and messages beyond what their channel keeps: expired messages, messages past the retention time, expired
// commands and access tokens. What has a time reads hide long before; this gives its space back (to the database file, which reuses it). Owns the timer
// and the one run under way. Works in short steps, each one transaction.

import type { Clock } from "../../../broker/ports.ts";
import { expiryKey, logKeyIn } from "../engine/channel-rows.ts";
import { commit } from "../engine/tables.ts";
import type { Inbox } from "./inbox.ts";
import { isTokenValid } from "./managers.ts";
import { type RetentionParts, trimAll } from "./retention.ts";

/** Entries removed in one step. */
const STEP = 200;

interface SweepParts extends RetentionParts {
  readonly inbox: Pick<Inbox, "sweep">;
  /** Removes logins that are forgotten. */
  readonly sweepLogins: (nowMs: number) => Promise<void>;
  readonly clock: Clock;
  readonly intervalMs: number;
  readonly onError: (error: Error, what: string) => void;
}

export class Sweep {
  readonly #parts: SweepParts;
  #timer: NodeJS.Timeout | undefined;
  #running: Promise<number> | undefined;
  #isClosed = false;

  constructor(parts: SweepParts) {
    this.#parts = parts;
  }

  start(): void {
    this.#timer = setInterval(() => void this.#tick(), this.#parts.intervalMs);
    this.#timer.unref();
  }

  /** Removes everything that is due and returns how many messages of channels that were. Joins a run under way. Throws `unavailable`. */
  run(): Promise<number> {
    this.#running ??= this.#sweep().finally(() => {
      this.#running = undefined;
    });
    return this.#running;
  }

  /** Ends the timer; a run under way stops after its step. */
  stop(): void {
    this.#isClosed = true;
    clearInterval(this.#timer);
  }

  /** Stops and waits for the run under way. Safe to call twice. */
  async close(): Promise<void> {
    this.stop();
    await this.#running?.catch(() => 0); // its caller hears of it
  }

  async #tick(): Promise<void> {
    try {
      await this.run();
    } catch (error) {
      this.#parts.onError(error as Error, "Expired data could not be removed"); // `commit` throws BrokerError only
    }
  }

  async #sweep(): Promise<number> {
    const nowMs = this.#parts.clock();
    let removed = 0;
    for (;;) {
      const count = await this.#removeExpired(nowMs);
      removed += count;
      if (count < STEP || this.#isClosed) break;
    }
    const isClosed = () => this.#isClosed;
    removed += await trimAll(this.#parts, nowMs, isClosed);
    await this.#parts.inbox.sweep(nowMs, isClosed);
    await this.#removeTokens(nowMs);
    await this.#parts.sweepLogins(nowMs);
    return removed;
  }

  async #removeExpired(nowMs: number): Promise<number> {
    const { tables } = this.#parts;
    const end = expiryKey(nowMs + 1, Buffer.alloc(0));
    const keys = [...tables.expiry.getKeys({ end, limit: STEP })];
    if (keys.length > 0)
      await commit(tables, () => {
        for (const key of keys) {
          void tables.log.remove(logKeyIn(key));
          void tables.expiring.remove(logKeyIn(key));
          void tables.expiry.remove(key);
        }
      });
    return keys.length;
  }

  async #removeTokens(nowMs: number): Promise<void> {
    const { tables } = this.#parts;
    const old = [...tables.tokens.getRange()]
      .filter(({ value }) => !isTokenValid(value, nowMs))
      .map(({ key }) => key);
    if (old.length === 0) return;
    await commit(tables, () => {
      for (const key of old) void tables.tokens.remove(key);
    });
  }
}
