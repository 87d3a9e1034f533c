// Removes expired messages, commands, logs, tokens and logins. Also removes messages beyond the
// history limits, devices that logged out long ago, and the rows that refer to the removed data. A
// row of the table `log` is removed once its newest message is older than the retention time. If
// only some messages of a row are beyond the limit `maxChannelMessages`, the row is shortened. A row that cannot
// be read is removed once all its messages exceed the limit, or once a newer row is past the
// retention time.

import type { ChannelKey, Message } from "../../../broker/model.ts";
import type { Clock } from "../../../broker/ports.ts";
import { ifReadable } from "../../../lib/readable.ts";
import { runEach, SweepFailures } from "../../sweep-failures.ts";
import {
  type ChannelRow,
  type ChannelRows,
  expiryKey,
  logKey,
  logKeyIn,
  numberIn,
  seqIn,
} from "../engine/channel-rows.ts";
import { commit } from "../engine/database.ts";
import {
  type LogRow,
  type LogRows,
  MAX_SEQ,
  recordAt,
  recordsFrom,
  rowOf,
} from "../engine/log-rows.ts";
import type { ChannelFlush, Memtable } from "../engine/memtable.ts";
import { decodeRecord, isStreamRecord, peekSourceId, peekTimes } from "../engine/record.ts";
import type { Tables } from "../engine/tables.ts";
import { removeLabels } from "./imports.ts";
import type { Inbox } from "./inbox.ts";
import type { LiveStreams } from "./live-streams.ts";
import type { EmbeddedLogs } from "./logs.ts";
import { isTokenValid } from "./managers.ts";
import type { StreamRows } from "./stream-rows.ts";

const ENTRIES_PER_STEP = 200;
/**
 * Number of messages by which a channel above its limit grows before it is queued for trimming. For
 * limits below 1000, a tenth of the limit is used instead.
 */
const MAX_TRIM_STEP = 100;
/** Maximum number of unreadable rows that one call of `rowsToCut` skips. */
const MAX_UNREADABLE_ROWS = 1000;

interface SweepPorts {
  readonly tables: Tables;
  readonly rows: Pick<ChannelRows, "get">;
  readonly logRows: LogRows;
  readonly memtable: Pick<Memtable, "peek">;
  readonly live: LiveStreams;
  readonly streamRows: StreamRows;
  readonly trimQueue: TrimQueue;
  readonly inbox: Pick<Inbox, "sweep">;
  readonly logCalls: Pick<EmbeddedLogs, "sweep">;
  readonly sweepLogins: (nowMs: number) => Promise<void>;
  readonly sweepDevices: (nowMs: number) => Promise<void>;
  readonly clock: Clock;
  /** `Infinity` means that messages are never removed by age. */
  readonly retentionMs: number;
  readonly intervalMs: number;
  readonly onError: (error: Error, what: string) => void;
}

/** Data of a row's messages that is needed to remove the row. */
interface RowContent {
  readonly newestAcceptedMs: number;
  /** Time at which the row's first message expires. `Infinity` if this message does not expire. */
  readonly expiresAtMs: number;
  /** Ids that the messages had at their source. `undefined` for a message that was not imported. */
  readonly sourceIds: readonly (bigint | undefined)[];
  /**
   * Message of a stream, or `undefined` if the row has no such message. A row with a stream's
   * message has no other messages.
   */
  readonly streamMessage: Message | undefined;
}

/** A message that has expired. */
interface ExpiredEntry {
  readonly key: Buffer;
  /** `undefined` if the message has already been removed. */
  readonly row: LogRow | undefined;
  /** `undefined` if the row has been removed or cannot be read. */
  readonly content: RowContent | undefined;
}

export class Sweep {
  readonly #ports: SweepPorts;
  #timer: NodeJS.Timeout | undefined;
  #running: Promise<number> | undefined;
  #isClosed = false;

  constructor(ports: SweepPorts) {
    this.#ports = ports;
  }

  start(): void {
    this.#timer = setInterval(() => void this.#tick(), this.#ports.intervalMs);
    this.#timer.unref();
  }

  /** Starts a run, or waits for the run that is in progress. */
  run(): Promise<number> {
    this.#running ??= this.#sweep().finally(() => {
      this.#running = undefined;
    });
    return this.#running;
  }

  /** Stops the timer. A run in progress ends early. */
  stop(): void {
    this.#isClosed = true;
    clearInterval(this.#timer);
  }

  async close(): Promise<void> {
    this.stop();
    await this.#running?.catch(() => 0); // the caller of `run` receives the error
  }

  async #tick(): Promise<void> {
    try {
      await this.run();
    } catch (error) {
      // `commit` throws only BrokerError.
      this.#ports.onError(error as Error, "Could not remove expired data");
    }
  }

  async #sweep(): Promise<number> {
    const { inbox, logCalls, sweepLogins, sweepDevices, clock } = this.#ports;
    const nowMs = clock();
    const isClosed = () => this.#isClosed;
    let removed = 0;
    await runEach([
      async () => {
        removed += await this.#removeExpired(nowMs);
      },
      async () => {
        removed += await trimAll(this.#ports, nowMs, isClosed);
      },
      () => inbox.sweep(nowMs, isClosed),
      () => logCalls.sweep(isClosed),
      () => this.#removeTokens(nowMs),
      () => sweepLogins(nowMs),
      () => sweepDevices(nowMs),
    ]);
    return removed;
  }

  async #removeExpired(nowMs: number): Promise<number> {
    const { tables } = this.#ports;
    const end = expiryKey(nowMs + 1, Buffer.alloc(0));
    const failures = new SweepFailures();
    let removed = 0;
    let after: Buffer | undefined;
    let keys: readonly Buffer[];
    do {
      const start = after === undefined ? {} : { start: after, exclusiveStart: true };
      keys = [...tables.expiry.getKeys({ ...start, end, limit: ENTRIES_PER_STEP })];
      const entries: ExpiredEntry[] = [];
      for (const key of keys) {
        const entry = this.#expiredAt(key);
        // A later sweep removes the message, once the database has the end of the stream.
        if (!isInMemory(this.#ports.live, entry.content)) entries.push(entry);
      }
      removed += await this.#removeAll(entries, failures);
      after = keys.at(-1);
    } while (keys.length === ENTRIES_PER_STEP && !this.#isClosed);
    failures.throwFirst();
    return removed;
  }

  /** Removes the entries, one by one if they cannot be removed together. */
  async #removeAll(entries: readonly ExpiredEntry[], failures: SweepFailures): Promise<number> {
    if (entries.length === 0) return 0;
    const remove = async (removed: readonly ExpiredEntry[]) => {
      const steps = () => {
        for (const entry of removed) this.#remove(entry);
      };
      await commit(this.#ports.tables, steps, "reclaim");
      return removed.length;
    };
    try {
      return await remove(entries);
    } catch {
      let removed = 0;
      for (const entry of entries) removed += (await failures.attempt(() => remove([entry]))) ?? 0;
      return removed;
    }
  }

  #expiredAt(key: Buffer): ExpiredEntry {
    const logged = logKeyIn(key);
    const value = this.#ports.tables.log.get(logged);
    const row = value && rowOf(seqIn(logged), value);
    return { key, row, content: row && contentOf(this.#ports, row) };
  }

  #remove({ key, row, content }: ExpiredEntry): void {
    const { tables } = this.#ports;
    const logged = logKeyIn(key);
    if (row !== undefined) removeContent(this.#ports, numberIn(logged), content);
    void tables.log.remove(logged);
    void tables.expiring.remove(logged);
    void tables.expiry.remove(key);
  }

  async #removeTokens(nowMs: number): Promise<void> {
    const { tables } = this.#ports;
    const expired = [...tables.tokens.getRange()]
      .filter(({ value }) => !isTokenValid(value, nowMs))
      .map(({ key }) => key);
    if (expired.length === 0) return;
    await commit(
      tables,
      () => {
        for (const key of expired) void tables.tokens.remove(key);
      },
      "reclaim",
    );
  }
}

/**
 * Trims the queued channels, or all channels if there is a retention time. After a start or a
 * failed sweep, all channels are queued. Returns the number of removed messages.
 */
async function trimAll(ports: SweepPorts, nowMs: number, isClosed: () => boolean): Promise<number> {
  const { retentionMs, trimQueue, tables } = ports;
  if (retentionMs === Infinity && trimQueue.maxMessages === 0) return 0;
  const queued = trimQueue.takeAll();
  const pages =
    retentionMs < Infinity || queued === undefined ? allChannels(tables) : inPages([...queued]);
  const failures = new SweepFailures();
  let removed = 0;
  try {
    for (const keys of pages) {
      for (const key of keys) {
        let count: number | undefined;
        do {
          if (isClosed()) return removed;
          count = await failures.attempt(() => trim(ports, key, nowMs));
          if (count === undefined) trimQueue.add(key);
          else removed += count;
        } while (count !== undefined && count >= ENTRIES_PER_STEP);
      }
      await new Promise(setImmediate);
    }
  } catch (error) {
    trimQueue.failed();
    throw error;
  }
  failures.throwFirst();
  return removed;
}

/** Yields the keys of all channels in pages. No cursor stays open between two pages. */
function* allChannels({ heads }: Tables): Generator<readonly ChannelKey[]> {
  let after: string | undefined;
  let keys: readonly ChannelKey[];
  do {
    const start = after === undefined ? {} : { start: after, exclusiveStart: true };
    keys = [...heads.getKeys({ ...start, limit: ENTRIES_PER_STEP })];
    yield keys;
    after = keys.at(-1);
  } while (keys.length === ENTRIES_PER_STEP);
}

function* inPages(keys: readonly ChannelKey[]): Generator<readonly ChannelKey[]> {
  for (let at = 0; at < keys.length; at += ENTRIES_PER_STEP)
    yield keys.slice(at, at + ENTRIES_PER_STEP);
}

async function trim(ports: SweepPorts, key: ChannelKey, nowMs: number): Promise<number> {
  const { tables, rows } = ports;
  const row = rows.get(key);
  if (row === undefined) return 0;
  const cuts = rowsToCut(ports, { key, row }, nowMs);
  if (cuts.length > 0)
    await commit(
      tables,
      () => {
        for (const cut of cuts) removeRow(ports, row.number, cut);
      },
      "reclaim",
    );
  return cuts.reduce((sum, { row, keptFrom }) => sum + keptFrom - row.first, 0);
}

interface RowCut {
  readonly row: LogRow;
  /** `undefined` if the row cannot be read. */
  readonly content: RowContent | undefined;
  /** First seq that is kept. Higher than the last seq of the row if no message is kept. */
  readonly keptFrom: number;
}

function removeRow(ports: SweepPorts, number: number, { row, content, keptFrom }: RowCut): void {
  const { tables, logRows } = ports;
  // The steps that read come first, because `commit` keeps the writes issued before an error.
  const kept = recordsFrom(row, keptFrom);
  const sourceIds = content?.sourceIds.slice(0, keptFrom - row.first) ?? [];
  removeContent(ports, number, content && { ...content, sourceIds });
  logRows.remove(number, row);
  if (kept.length > 0) logRows.put(number, keptFrom, kept);
  const key = logKey(number, row.first);
  void tables.expiring.remove(key);
  // If there is no content, a later sweep removes the row from the table `expiry`.
  const { expiresAtMs = Infinity } = content ?? {};
  if (Number.isFinite(expiresAtMs)) void tables.expiry.remove(expiryKey(expiresAtMs, key));
}

/**
 * Removes the rows that refer to the messages of a row. If the row cannot be read, its source ids
 * and the log of its stream remain.
 */
function removeContent(
  { tables, streamRows, onError }: SweepPorts,
  number: number,
  content: RowContent | undefined,
): void {
  if (content === undefined) return;
  const { sourceIds, streamMessage } = content;
  if (streamMessage !== undefined)
    ifReadable(
      () => streamRows.remove(number, streamMessage),
      "Could not read a stream, so its log was not removed together with its message",
      onError,
    );
  removeLabels(tables, number, sourceIds);
}

function rowsToCut(
  ports: SweepPorts,
  { key, row: channel }: { readonly key: ChannelKey; readonly row: ChannelRow },
  nowMs: number,
): readonly RowCut[] {
  const { logRows, retentionMs, live, trimQueue, memtable } = ports;
  const { number, head } = channel;
  const trimThrough = trimQueue.maxMessages > 0 ? head - trimQueue.maxMessages : 0;
  const cuts: RowCut[] = [];
  const hasRetention = retentionMs < Infinity;
  if (!hasRetention && trimThrough <= 0) return cuts;
  const to = hasRetention ? MAX_SEQ : trimThrough;
  /**
   * A row must not be changed while a checkpoint could write it again. The checkpoint may write a
   * longer row under the same key, which a removal would then remove.
   */
  const memtableFrom = memtable.peek(key)?.log[0]?.messageSeq ?? MAX_SEQ;
  /** Rows that cannot be read, and whose age is therefore not known. */
  let unreadable: RowCut[] = [];
  let count = 0;
  for (const row of logRows.scanRows(number, 1, to)) {
    const content = contentOf(ports, row);
    if (content === undefined && row.last > trimThrough) {
      if (unreadable.length === MAX_UNREADABLE_ROWS) break;
      unreadable.push({ row, content, keptFrom: row.last + 1 });
      continue;
    }
    const isPastRetention =
      content !== undefined && hasRetention && content.newestAcceptedMs + retentionMs <= nowMs;
    const lastOld = isPastRetention ? row.last : Math.min(row.last, trimThrough);
    const isCut = lastOld < row.last;
    if (lastOld < row.first) break;
    if (isInMemory(live, content) || row.last >= memtableFrom) {
      trimQueue.add(key);
      break; // a later sweep removes the row, once the database has all of it
    }
    if (isPastRetention) {
      cuts.push(...unreadable);
      unreadable = [];
    }
    cuts.push({ row, content, keptFrom: lastOld + 1 });
    count += lastOld + 1 - row.first;
    if (isCut || count >= ENTRIES_PER_STEP) break;
  }
  return cuts;
}

/** Returns `undefined`, and reports the error, if the row cannot be read. */
function contentOf({ onError }: SweepPorts, row: LogRow): RowContent | undefined {
  const read = (): RowContent => {
    let newestAcceptedMs = 0;
    const sourceIds: (bigint | undefined)[] = [];
    for (let seq = row.first; seq <= row.last; seq++) {
      const record = recordAt(row, seq);
      newestAcceptedMs = Math.max(newestAcceptedMs, peekTimes(record).acceptedMs);
      sourceIds.push(peekSourceId(record));
    }
    const first = recordAt(row, row.first);
    const { expiresAtMs } = peekTimes(first);
    const streamMessage = isStreamRecord(first) ? decodeRecord(first).message : undefined;
    return { newestAcceptedMs, expiresAtMs, sourceIds, streamMessage };
  };
  return ifReadable(read, "Could not read messages that may be due for removal", onError);
}

/**
 * Returns true if the row contains the message of a stream that is not completely in the database.
 */
function isInMemory(live: LiveStreams, content: RowContent | undefined): boolean {
  const { streamMessage } = content ?? {};
  if (streamMessage === undefined) return false;
  return live.atSeq(streamMessage.key, streamMessage.messageSeq) !== undefined;
}

/**
 * Channels that may have more messages than the limit. After a start or a failed sweep, the queue
 * contains all channels.
 */
export class TrimQueue {
  readonly maxMessages: number;
  readonly #step: number;
  /** `undefined` means all channels. */
  #channels: Set<ChannelKey> | undefined;

  constructor(maxMessages: number) {
    this.maxMessages = maxMessages;
    this.#step = Math.min(MAX_TRIM_STEP, Math.ceil(maxMessages / 10));
  }

  /**
   * Adds a channel that is above the limit each time it has grown by `#step` messages. Must be
   * called before the memtable drops the records of the channel.
   */
  addIfGrown({ channel, head, log }: ChannelFlush): void {
    if (this.maxMessages === 0 || head <= this.maxMessages) return;
    const before = head - log.length;
    const step = this.#step;
    if (Math.floor(head / step) > Math.floor(before / step)) this.add(channel.key);
  }

  add(key: ChannelKey): void {
    this.#channels?.add(key);
  }

  takeAll(): ReadonlySet<ChannelKey> | undefined {
    const channels = this.#channels;
    this.#channels = new Set();
    return channels;
  }

  failed(): void {
    this.#channels = undefined;
  }
}
