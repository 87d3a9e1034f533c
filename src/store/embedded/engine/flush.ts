// The writes of a checkpoint: starts a flush of the committed records, puts them into the tables in
// the order of keys, and finishes the flush. Has no state of its own. Writing a record twice
// changes nothing. Some transactions may fail while others are committed. So the puts are made in
// phases: a row that refers to another row is put only after that row is committed.

import type { ChannelKey } from "../../../broker/model.ts";
import { type ChannelRows, expiryKey, logKey } from "./channel-rows.ts";
import { type LogRows, MAX_RECORDS, MAX_SEQ, rowLength } from "./log-rows.ts";
import type { ChannelFlush, Memtable, MemtableRecord } from "./memtable.ts";
import { expires, isDeduped, isStreamRecord, peekId, peekTimes } from "./record.ts";
import type { Tables } from "./tables.ts";

const EXPIRY_VALUE = Buffer.from([1]);

/**
 * The memtable, and the parts of the store that put rows into the database. Every `put…` method
 * must be called inside `commit`.
 */
export interface FlushPorts {
  readonly tables: Tables;
  readonly memtable: Memtable;
  readonly rows: ChannelRows;
  readonly logRows: LogRows;
  readonly dedupe: { put(number: number, record: MemtableRecord): void };
  readonly conversationRows: {
    /** Puts the rows of a personal channel that are not stored yet. */
    putChannel(key: ChannelKey): void;
    /** Puts the row of a message that has a red dot and expires. */
    putMessage(key: Buffer, record: MemtableRecord): void;
    /** Puts each sender's newest seq. Yields after each row. */
    putOwnSeqs(number: number, log: readonly MemtableRecord[], isFirst: boolean): Generator<void>;
  };
  readonly live: {
    /** Starts a flush of all committed events. */
    startFlush(): StreamFlush;
  };
  readonly trimQueue: {
    /** Queues the channel if its number of messages in the database grew enough. */
    addIfGrown(flushed: ChannelFlush): void;
  };
}

/** Committed events of streams that a checkpoint writes. */
interface StreamFlush {
  /** Puts the events. Yields after each stream. */
  puts(): Generator<void>;
  /** Drops the events from memory. Called once the database has them. */
  finish(): void;
}

/** The records and events that one checkpoint writes. */
interface Flush {
  readonly channels: ChannelFlush[];
  readonly streams: StreamFlush;
}

/** Starts a flush of everything committed. Also called again after a failed flush. */
export function startFlush({ memtable, live }: Pick<FlushPorts, "memtable" | "live">): Flush {
  return { channels: memtable.startFlush(), streams: live.startFlush() };
}

/**
 * Drops the flushed records from memory. Called once the database has them. Yields after each
 * channel.
 */
export function* finishFlush(
  { memtable, trimQueue }: FlushPorts,
  { channels, streams }: Flush,
): Generator<void> {
  for (const channel of channels) trimQueue.addIfGrown(channel);
  yield* memtable.finishFlush(channels);
  streams.finish();
}

/**
 * Returns the puts of a flush, phase by phase. Every put of a phase must be committed before the
 * next phase begins. Each generator yields after each row and must be advanced inside `commit`.
 * `isFirst` is true for the first checkpoint after a start. The database may then already have some
 * of the replayed records.
 */
export function phases(
  ports: FlushPorts,
  flush: Flush,
  isFirst: boolean,
): readonly Generator<void>[] {
  flush.channels.sort((a, b) => a.channel.number - b.channel.number);
  return [
    putHeads(ports, flush),
    putMessages(ports, flush, isFirst),
    putReferences(ports, flush, isFirst),
  ];
}

/**
 * Puts the row of each channel: its number, without which its records cannot be found, and its
 * newest seq, so that no seq is assigned twice.
 */
function* putHeads({ rows, conversationRows }: FlushPorts, { channels }: Flush): Generator<void> {
  for (const { channel, head, counted } of channels) {
    const { key, number } = channel;
    rows.put(key, { number, head, counted });
    conversationRows.putChannel(key);
    yield;
  }
}

/**
 * Puts the messages. Consecutive messages share a row. Each message that expires or belongs to a
 * stream has its own row, because it is removed individually. The expiry rows of a message are put
 * together with it, because a sweep, which removes these rows together, may run before the next
 * phase. The checkpoint after a failed one starts at the same records, so it writes the same rows
 * or longer ones.
 */
function* putMessages(ports: FlushPorts, { channels }: Flush, isFirst: boolean): Generator<void> {
  const { logRows } = ports;
  for (const { channel, log } of channels) {
    const { number } = channel;
    const storedSeqs = isFirst ? seqsInDatabase(ports, number, log) : NO_SEQS;
    const missing = storedSeqs.size === 0 ? log : log.filter(isNotIn(storedSeqs));
    const end = missing.length;
    for (let at = 0; at < end; ) {
      const record = missing[at];
      if (record === undefined) break;
      // A run of consecutive records may be as long as the whole flush.
      const limit = Math.min(end, at + MAX_RECORDS);
      const count = isAlone(record) ? 1 : rowLength(missing, at, runEnd(missing, at, limit));
      logRows.put(number, record.messageSeq, missing.slice(at, at + count));
      if (expires(record.bytes, record.start)) putExpiry(ports, number, record);
      at += count;
      yield;
    }
  }
}

const NO_SEQS: ReadonlySet<number> = new Set();

/** Returns the seqs that the database already contains, starting at the seq of the first record. */
function seqsInDatabase(
  { logRows }: FlushPorts,
  number: number,
  [first]: readonly MemtableRecord[],
): ReadonlySet<number> {
  if (first === undefined) return NO_SEQS;
  const records = logRows.scan(number, first.messageSeq, MAX_SEQ);
  return new Set(Array.from(records, ({ seq }) => seq));
}

function isNotIn(seqs: ReadonlySet<number>) {
  return ({ messageSeq }: MemtableRecord) => !seqs.has(messageSeq);
}

/**
 * Returns the index after the last record that follows the record at `start` without a gap and may
 * share its row.
 */
function runEnd(log: readonly MemtableRecord[], start: number, end: number): number {
  const first = log[start]?.messageSeq ?? 0;
  let at = start + 1;
  for (; at < end; at++) {
    const record = log[at];
    if (record === undefined || record.messageSeq !== first + at - start) break;
    if (isAlone(record)) break;
  }
  return at;
}

/** True if the record needs a row of its own. */
function isAlone({ bytes, start }: MemtableRecord): boolean {
  return expires(bytes, start) || isStreamRecord(bytes, start);
}

/**
 * Puts rows that refer to messages: dedupe entries, newest seqs of senders, and events of streams.
 */
function* putReferences(
  { dedupe, conversationRows }: FlushPorts,
  { channels, streams }: Flush,
  isFirst: boolean,
): Generator<void> {
  for (const flushed of channels) {
    const { number } = flushed.channel;
    for (const record of dedupeRecords(flushed)) {
      dedupe.put(number, record);
      yield;
    }
    yield* conversationRows.putOwnSeqs(number, flushed.log, isFirst);
  }
  yield* streams.puts();
}

/**
 * Yields, in the order of message ids, the records that have a dedupe entry. If a `clientMsgNo` was
 * reused after the dedupe window, the newer record is put later and overwrites the older one.
 */
function* dedupeRecords({ log, dedupeOnly }: ChannelFlush): Generator<MemtableRecord> {
  let next = 0;
  for (const record of log) {
    const { bytes, start } = record;
    if (!isDeduped(bytes, start)) continue;
    for (; next < dedupeOnly.length; next++) {
      const earlier = dedupeOnly[next];
      if (earlier === undefined || isNewer(earlier, record)) break;
      yield earlier;
    }
    yield record;
  }
  yield* dedupeOnly.slice(next);
}

function isNewer(a: MemtableRecord, b: MemtableRecord): boolean {
  return peekId(a.bytes, a.start) > peekId(b.bytes, b.start);
}

/**
 * Assigns numbers to new channels, and stores the counter of numbers before anything is stored
 * under a new number. Throws `unavailable` if the counter cannot be stored.
 */
export async function assignNumbers(
  rows: ChannelRows,
  flushed: readonly ChannelFlush[],
): Promise<void> {
  for (const { channel } of flushed) if (channel.number === 0) channel.number = rows.nextNumber();
  await rows.storeCounter();
}

function putExpiry(
  { tables, conversationRows }: FlushPorts,
  number: number,
  record: MemtableRecord,
): void {
  const key = logKey(number, record.messageSeq);
  const { expiresAtMs } = peekTimes(record.bytes, record.start);
  void tables.expiry.put(expiryKey(expiresAtMs, key), EXPIRY_VALUE);
  conversationRows.putMessage(key, record);
}
