// Removes what nobody can see any more, each with what belongs to it: expired messages, messages
// past the retention time or beyond what their channel keeps, expired commands, access tokens and
// logins. What has a time reads hide long before; this gives its space back (to the database file,
// which reuses it). In short steps, each one transaction. A row of the log goes by age when its
// newest message is past, until then reads hide the others; by number it is cut to what stays. Owns
// the timer, the one run under way, and which channels may hold more than they keep.

import type { ChannelKey } from "../../../broker/model.ts";
import type { Clock } from "../../../broker/ports.ts";
import {
  type ChannelRow,
  type ChannelRows,
  expiryKey,
  logKey,
  logKeyIn,
} from "../engine/channel-rows.ts";
import { commit } from "../engine/database.ts";
import { type LogRow, type LogRows, MAX_SEQ, recordAt, recordsFrom } from "../engine/log-rows.ts";
import type { ChannelFlush, Memtable } from "../engine/memtable.ts";
import { isStreamRecord, peekTimes } from "../engine/record.ts";
import type { Tables } from "../engine/tables.ts";
import type { Inbox } from "./inbox.ts";
import type { LiveStreams } from "./live-streams.ts";
import { isTokenValid } from "./managers.ts";
import type { StreamRows } from "./stream-rows.ts";

/** Entries removed in one step, about, and channels looked at. */
const STEP = 200;
/**
 * Messages beyond those that a channel keeps, a tenth of them if that is less: then a sweep is to
 * look at it.
 */
const MAX_TRIM_STEP = 100;

interface SweepParts {
  readonly tables: Tables;
  readonly rows: Pick<ChannelRows, "get">;
  readonly logRows: LogRows;
  readonly memtable: Pick<Memtable, "peek">;
  readonly live: LiveStreams;
  readonly streamRows: StreamRows;
  readonly trimQueue: TrimQueue;
  readonly inbox: Pick<Inbox, "sweep">;
  /** Removes logins that are forgotten. */
  readonly sweepLogins: (nowMs: number) => Promise<void>;
  readonly clock: Clock;
  /** Infinity: for ever. */
  readonly retentionMs: number;
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

  /**
   * Removes everything that is due and returns how many messages of channels that were. Joins a run
   * under way. Throws `unavailable`.
   */
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

/**
 * Cuts the old end of every channel that may have one; returns how many messages that were. Throws
 * `unavailable`.
 */
async function trimAll(parts: SweepParts, nowMs: number, isClosed: () => boolean): Promise<number> {
  const { retentionMs, trimQueue, tables } = parts;
  if (retentionMs === Infinity && trimQueue.keeps === 0) return 0;
  const grown = trimQueue.take();
  const chunks =
    retentionMs < Infinity || grown === undefined ? allChannels(tables) : inChunks([...grown]);
  let removed = 0;
  try {
    for (const keys of chunks) {
      for (const key of keys) {
        let count: number;
        do {
          if (isClosed()) return removed;
          count = await trim(parts, key, nowMs);
          removed += count;
        } while (count >= STEP);
      }
      await new Promise(setImmediate);
    }
  } catch (error) {
    trimQueue.failed();
    throw error;
  }
  return removed;
}

/** No cursor stays open between two chunks. */
function* allChannels({ heads }: Tables): Generator<readonly ChannelKey[]> {
  let after: string | undefined;
  let keys: readonly ChannelKey[];
  do {
    const start = after === undefined ? {} : { start: after, exclusiveStart: true };
    keys = [...heads.getKeys({ ...start, limit: STEP })];
    yield keys;
    after = keys.at(-1);
  } while (keys.length === STEP);
}

function* inChunks(keys: readonly ChannelKey[]): Generator<readonly ChannelKey[]> {
  for (let at = 0; at < keys.length; at += STEP) yield keys.slice(at, at + STEP);
}

/** Cuts the oldest messages of a channel, about a step of them; returns how many. */
async function trim(parts: SweepParts, key: ChannelKey, nowMs: number): Promise<number> {
  const { tables, rows } = parts;
  const row = rows.get(key);
  if (row === undefined) return 0;
  const old = oldRows(parts, { key, row }, nowMs);
  if (old.length > 0)
    await commit(tables, () => {
      for (const one of old) removeRow(parts, row.number, one);
    });
  return old.reduce((sum, { row, keptFrom }) => sum + keptFrom - row.first, 0);
}

interface OldRow {
  readonly row: LogRow;
  /** The first seq of the row that stays; behind its last one: none does. */
  readonly keptFrom: number;
}

function removeRow(
  { tables, logRows, streamRows }: SweepParts,
  number: number,
  { row, keptFrom }: OldRow,
): void {
  logRows.remove(number, row);
  if (keptFrom <= row.last) logRows.put(number, keptFrom, recordsFrom(row, keptFrom));
  const { expiresAtMs } = peekTimes(recordAt(row, row.first));
  if (isStream(row)) streamRows.remove(number, row.value);
  if (!Number.isFinite(expiresAtMs)) return;
  const key = logKey(number, row.first);
  void tables.expiring.remove(key);
  void tables.expiry.remove(expiryKey(expiresAtMs, key));
}

function oldRows(
  parts: SweepParts,
  { key, row: channel }: { readonly key: ChannelKey; readonly row: ChannelRow },
  nowMs: number,
): readonly OldRow[] {
  const { logRows, retentionMs, live, trimQueue, memtable } = parts;
  const { number, head } = channel;
  const trimThrough = trimQueue.keeps > 0 ? head - trimQueue.keeps : 0;
  const old: OldRow[] = [];
  const hasRetention = retentionMs < Infinity;
  if (!hasRetention && trimThrough <= 0) return old;
  const to = hasRetention ? MAX_SEQ : trimThrough;
  /** A row of a checkpoint under way would be written whole again beside what is left of it. */
  const movingFrom = memtable.peek(key)?.log[0]?.messageSeq ?? MAX_SEQ;
  let count = 0;
  for (const row of logRows.rowsUp(number, 1, to)) {
    const isPast = hasRetention && newestMs(row) + retentionMs <= nowMs;
    const lastOld = isPast ? row.last : Math.min(row.last, trimThrough);
    const isCut = lastOld < row.last;
    if (lastOld < row.first) break;
    if (isStream(row) && live.at(key, row.first) !== undefined) {
      trimQueue.add(key);
      break; // goes when it is over
    }
    if (isCut && row.last >= movingFrom) {
      trimQueue.add(key);
      break;
    }
    old.push({ row, keptFrom: lastOld + 1 });
    count += lastOld + 1 - row.first;
    if (isCut || count >= STEP) break;
  }
  return old;
}

/** It stands alone. */
function isStream(row: LogRow): boolean {
  return isStreamRecord(recordAt(row, row.first));
}

/** When the newest message of a row was accepted. */
function newestMs(row: LogRow): number {
  let newest = 0;
  for (let seq = row.first; seq <= row.last; seq++)
    newest = Math.max(newest, peekTimes(recordAt(row, seq)).timestampMs);
  return newest;
}

/**
 * Which channels hold more messages in the database than they keep, or may. Owns their set: those
 * that grew enough since it was taken, and at first all, for the limit may have been another one.
 * Asked per channel and checkpoint, never per message.
 */
export class TrimQueue {
  /** How many messages a channel keeps; 0: all. */
  readonly keeps: number;
  readonly #step: number;
  /** Undefined: all there are. */
  #channels: Set<ChannelKey> | undefined;

  constructor(keeps: number) {
    this.keeps = keeps;
    this.#step = Math.min(MAX_TRIM_STEP, Math.ceil(keeps / 10));
  }

  /**
   * To be called with each channel that a checkpoint brought into the database, before it is let go
   * of.
   */
  grew({ channel, head, log }: ChannelFlush): void {
    if (this.keeps === 0 || head <= this.keeps) return;
    const before = head - log.length;
    const step = this.#step;
    if (Math.floor(head / step) > Math.floor(before / step)) this.add(channel.key);
  }

  /** The channel must be looked at next time. */
  add(key: ChannelKey): void {
    this.#channels?.add(key);
  }

  /** The channels to look at, which are not given again; undefined: all there are. */
  take(): ReadonlySet<ChannelKey> | undefined {
    const taken = this.#channels;
    this.#channels = new Set();
    return taken;
  }

  /** What was taken was not looked at to the end. */
  failed(): void {
    this.#channels = undefined;
  }
}
