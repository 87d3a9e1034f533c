// What a checkpoint writes: marks what is committed, puts it into the tables in the order of keys,
// lets go of it. No state but the parts'. Writing a record again changes nothing. Of what is put
// side by side any part may fail and the rest be committed. So it comes in phases: nothing may
// stand in the tables before what it refers to surely does.

import type { ChannelKey } from "../../../broker/model.ts";
import { type ChannelRows, expiryKey, logKey } from "./channel-rows.ts";
import { type LogRows, MAX_RECORDS, MAX_SEQ, rowLength } from "./log-rows.ts";
import type { ChannelFlush, Memtable, MemtableRecord } from "./memtable.ts";
import { expires, isDeduped, isStreamRecord, peekId, peekTimes } from "./record.ts";
import type { Tables } from "./tables.ts";

const EXPIRY_VALUE = Buffer.from([1]);

/** What the steps keep beside the log. All puts are called inside `commit`. */
export interface FlushParts {
  readonly tables: Tables;
  readonly memtable: Memtable;
  readonly rows: ChannelRows;
  readonly logRows: LogRows;
  readonly dedupe: { put(number: number, record: MemtableRecord): void };
  readonly conversationRows: {
    /** A channel has its first row. */
    putChannel(key: ChannelKey): void;
    /** A message that expires. */
    putMessage(ofLog: Buffer, record: MemtableRecord): void;
    /** Stops after each row. */
    putOwn(number: number, log: readonly MemtableRecord[], isFirst: boolean): Generator<void>;
  };
  readonly live: {
    /** Marks every committed event. */
    startFlush(): StreamFlush;
  };
  readonly trimQueue: {
    /** A channel grew in the database. */
    grew(flushed: ChannelFlush): void;
  };
}

interface StreamFlush {
  /** Puts what is marked; stops after each stream. */
  puts(): Generator<void>;
  /** Lets go of what is marked: the database has it. */
  finish(): void;
}

/** What a checkpoint takes out of memory. */
interface Flush {
  readonly channels: ChannelFlush[];
  readonly streams: StreamFlush;
}

/** Marks everything committed. After a failure it is simply called again. */
export function startFlush({ memtable, live }: Pick<FlushParts, "memtable" | "live">): Flush {
  return { channels: memtable.startFlush(), streams: live.startFlush() };
}

/** Lets go of what is marked, for the database has it; stops after each channel. */
export function* finishFlush(
  { memtable, trimQueue }: FlushParts,
  { channels, streams }: Flush,
): Generator<void> {
  for (const channel of channels) trimQueue.grew(channel);
  yield* memtable.finishFlush(channels);
  streams.finish();
}

/**
 * Every put for what is being flushed, phase by phase: all of one must be committed before the
 * next begins. Each stops after each row and must be advanced inside `commit`. `isFirst`: what was
 * replayed, of which the database may have some already.
 */
export function phases(
  parts: FlushParts,
  flush: Flush,
  isFirst: boolean,
): readonly Generator<void>[] {
  flush.channels.sort((a, b) => a.channel.number - b.channel.number);
  return [heads(parts, flush), messages(parts, flush, isFirst), references(parts, flush, isFirst)];
}

/**
 * Which number a new channel has: records under a number are lost without it. And each newest seq:
 * where a record stands, none is given again.
 */
function* heads({ rows, conversationRows }: FlushParts, { channels }: Flush): Generator<void> {
  for (const { channel, head, counted } of channels) {
    const { key, number } = channel;
    rows.put(key, { number, head, counted });
    conversationRows.putChannel(key);
    yield;
  }
}

/**
 * Messages, each with what a sweep removes together with it: the sweep may come before the next
 * phase. Those that follow each other share a row; one that expires, and one of a stream, leaves by
 * itself and stands alone. A checkpoint that failed begins again at the same records, so its rows
 * are the same or longer.
 */
function* messages(parts: FlushParts, { channels }: Flush, isFirst: boolean): Generator<void> {
  const { logRows } = parts;
  for (const { channel, log } of channels) {
    const { number } = channel;
    const there = isFirst ? seqsThere(parts, number, log) : NONE;
    const wanted = there.size === 0 ? log : log.filter(isNotIn(there));
    const end = wanted.length;
    for (let at = 0; at < end; ) {
      const record = wanted[at];
      if (record === undefined) break;
      const most = Math.min(end, at + MAX_RECORDS); // a run may be a whole checkpoint
      const count = isAlone(record) ? 1 : rowLength(wanted, at, runEnd(wanted, at, most));
      logRows.put(number, record.messageSeq, wanted.slice(at, at + count));
      if (expires(record.bytes, record.start)) putExpiry(parts, number, record);
      at += count;
      yield;
    }
  }
}

const NONE: ReadonlySet<number> = new Set();

/** Seqs of the log from the first of these records on. */
function seqsThere(
  { logRows }: FlushParts,
  number: number,
  [first]: readonly MemtableRecord[],
): ReadonlySet<number> {
  if (first === undefined) return NONE;
  const records = logRows.up(number, first.messageSeq, MAX_SEQ);
  return new Set(Array.from(records, ({ seq }) => seq));
}

function isNotIn(seqs: ReadonlySet<number>) {
  return ({ messageSeq }: MemtableRecord) => !seqs.has(messageSeq);
}

/** Where the records end that follow the one at `start` without a gap and share its row. */
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

function isAlone({ bytes, start }: MemtableRecord): boolean {
  return expires(bytes, start) || isStreamRecord(bytes, start);
}

/** What finds messages, says something of them, or goes on from one. */
function* references(
  { dedupe, conversationRows }: FlushParts,
  { channels, streams }: Flush,
  isFirst: boolean,
): Generator<void> {
  for (const flushed of channels) {
    const { number } = flushed.channel;
    for (const record of remembered(flushed)) {
      dedupe.put(number, record);
      yield;
    }
    yield* conversationRows.putOwn(number, flushed.log, isFirst);
  }
  yield* streams.puts();
}

/**
 * What is put last under a clientMsgNo stays: one that was used again behind the window is there
 * twice.
 */
function* remembered({ log, dedupeOnly }: ChannelFlush): Generator<MemtableRecord> {
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

function isNewer(one: MemtableRecord, other: MemtableRecord): boolean {
  return peekId(one.bytes, one.start) > peekId(other.bytes, other.start);
}

/**
 * Numbers new channels; a number is taken permanently before anything is stored under it. Throws
 * `unavailable`.
 */
export async function takeNumbers(
  rows: ChannelRows,
  flushed: readonly ChannelFlush[],
): Promise<void> {
  for (const { channel } of flushed) if (channel.number === 0) channel.number = rows.takeNumber();
  await rows.keepNumbers();
}

function putExpiry(
  { tables, conversationRows }: FlushParts,
  number: number,
  record: MemtableRecord,
): void {
  const key = logKey(number, record.messageSeq);
  const { expiresAtMs } = peekTimes(record.bytes, record.start);
  void tables.expiry.put(expiryKey(expiresAtMs, key), EXPIRY_VALUE);
  conversationRows.putMessage(key, record);
}
