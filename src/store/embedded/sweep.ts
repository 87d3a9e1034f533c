// Removes what nobody can see any more: expired messages, messages past the retention time, expired access tokens. Reads hide them long
// before; this gives their space back (to the database file, which reuses it). Owns the timer and the one run under way.
// Works in short steps, each one transaction.

import type { Clock } from "../../broker/ports.ts";
import { expiryKey, logKey, logKeyIn } from "./channel-rows.ts";
import { commit, fieldsOf, type Tables } from "./database.ts";
import { isTokenValid } from "./managers.ts";
import { peekTimes } from "./record.ts";

/** Entries removed in one step. */
const STEP = 200;
const MAX_SEQ = 2 ** 48 - 1;

export interface SweepParts {
  readonly tables: Tables;
  readonly clock: Clock;
  /** 0 = for ever. */
  readonly retentionMs: number;
  readonly intervalMs: number;
  readonly onProblem: (error: Error, what: string) => void;
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

  /** Removes everything that is due and returns how many messages that were. Joins a run under way. Throws `unavailable`. */
  run(): Promise<number> {
    this.#running ??= this.#sweep().finally(() => {
      this.#running = undefined;
    });
    return this.#running;
  }

  /** Ends the timer; a run under way stops after its step. Safe to call twice. */
  async close(): Promise<void> {
    this.#isClosed = true;
    clearInterval(this.#timer);
    await this.#running?.catch(() => 0); // its caller hears of it
  }

  async #tick(): Promise<void> {
    try {
      await this.run();
    } catch (error) {
      this.#parts.onProblem(error as Error, "sweep"); // `commit` throws BrokerError only
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
    if (this.#parts.retentionMs > 0) removed += await this.#trimAll(nowMs);
    await this.#removeTokens(nowMs);
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
          void tables.expiry.remove(key);
        }
      });
    return keys.length;
  }

  /** Walks all channels and cuts the old end of each. */
  async #trimAll(nowMs: number): Promise<number> {
    const { tables } = this.#parts;
    let removed = 0;
    let after: string | undefined;
    while (!this.#isClosed) {
      const rows = [
        ...tables.heads.getRange({
          ...(after === undefined
            ? {}
            : { start: after, exclusiveStart: true }),
          limit: STEP,
        }),
      ];
      for (const { key, value } of rows) {
        removed += await this.#trim(Number(fieldsOf(value)[0]), nowMs);
        after = key;
      }
      if (rows.length < STEP) break;
      await new Promise(setImmediate);
    }
    return removed;
  }

  async #trim(number: number, nowMs: number): Promise<number> {
    const { tables, retentionMs } = this.#parts;
    let removed = 0;
    while (!this.#isClosed) {
      const old: Buffer[] = [];
      for (const { key, value } of tables.log.getRange({
        start: logKey(number, 0),
        end: logKey(number, MAX_SEQ),
        limit: STEP,
      })) {
        if (peekTimes(value).timestampMs + retentionMs > nowMs) break;
        old.push(key);
      }
      if (old.length > 0)
        await commit(tables, () => {
          for (const key of old) void tables.log.remove(key);
        });
      removed += old.length;
      if (old.length < STEP) break;
    }
    return removed;
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
