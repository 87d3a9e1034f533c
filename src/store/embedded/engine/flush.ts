// Puts the rows of a checkpoint, in phases. Some transactions of a checkpoint may fail while others
// are committed. A row that refers to another row is therefore put in a later phase than that row.

import type { ChannelKey } from "../../../broker/model.ts";
import { type ChannelRows, expiryKey, logKey } from "./channel-rows.ts";
import { type LogRows, MAX_RECORDS, MAX_SEQ, rowLength } from "./log-rows.ts";
import type { ChannelFlush, Memtable, MemtableRecord } from "./memtable.ts";
import { expires, isDeduped, isStreamRecord, peekId, peekTimes } from "./record.ts";
import type { Tables } from "./tables.ts";

const EXPIRY_VALUE = Buffer.from([1]);

/** Every `put…` method must be called inside `commit`. */
export interface FlushPorts {
  readonly tables: Tables;
  readonly memtable: Memtable;
  readonly rows: ChannelRows;
  readonly logRows: LogRows;
  readonly dedupe: { put(number: number, record: MemtableRecord): void };
  readonly conversationRows: {
    putChannel(key: ChannelKey): void;
    putMessage(key: Buffer, record: MemtableRecord): void;
    putOwnSeqs(number: number, log: readonly MemtableRecord[], isFirst: boolean): Generator<void>;
  };
  readonly live: {
    startFlush(): StreamFlush;
  };
  readonly logs: {
    startFlush(): LogFlush;
  };
  readonly events: {
    startFlush(): EventFlush;
  };
  readonly trimQueue: {
    addIfGrown(flushed: ChannelFlush): void;
  };
}

interface StreamFlush {
  puts(): Generator<void>;
  finish(): void;
}

interface LogFlush {
  frames(): Generator<void>;
  heads(): Generator<void>;
  finish(): void;
}

interface EventFlush {
  rows(): Generator<void>;
  finish(): void;
}

interface Flush {
  readonly channels: ChannelFlush[];
  readonly streams: StreamFlush;
  readonly logs: LogFlush;
  readonly events: EventFlush;
}

/**
 * Returns the committed records, streams, log changes and events that must be written. Includes the
 * data of a failed checkpoint.
 */
export function startFlush({
  memtable,
  live,
  logs,
  events,
}: Pick<FlushPorts, "memtable" | "live" | "logs" | "events">): Flush {
  return {
    channels: memtable.startFlush(),
    streams: live.startFlush(),
    logs: logs.startFlush(),
    events: events.startFlush(),
  };
}

/** Drops the written data from memory. Must be called after the last commit of the checkpoint. */
export function* finishFlush(
  { memtable, trimQueue }: FlushPorts,
  { channels, streams, logs, events }: Flush,
): Generator<void> {
  for (const channel of channels) trimQueue.addIfGrown(channel);
  yield* memtable.finishFlush(channels);
  streams.finish();
  logs.finish();
  events.finish();
}

/**
 * Returns the phases of a checkpoint. The puts of a phase must be committed before the next phase
 * begins. `isFirst` is true for the first checkpoint after a start, when the database may already
 * have some of the records.
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

/** Puts the channel rows. Without them, records could not be found and seqs could be reused. */
function* putHeads({ rows, conversationRows }: FlushPorts, { channels }: Flush): Generator<void> {
  for (const { channel, head, counted, newestId } of channels) {
    const { key, number } = channel;
    rows.put(key, { number, head, counted, newestId });
    conversationRows.putChannel(key);
    yield;
  }
}

/**
 * Puts the rows of messages, the frames of logs and the events. A message and its expiry row are
 * put in one transaction, because a sweep, which removes both, may run before the next phase. After
 * a failed checkpoint, the next checkpoint may put the same rows again, or longer rows under the
 * same keys.
 */
function* putMessages(
  ports: FlushPorts,
  { channels, logs, events }: Flush,
  isFirst: boolean,
): Generator<void> {
  const { logRows } = ports;
  for (const { channel, log } of channels) {
    const { number } = channel;
    const storedSeqs = isFirst ? seqsInDatabase(ports, number, log) : NO_SEQS;
    const missing = storedSeqs.size === 0 ? log : log.filter(isNotIn(storedSeqs));
    const end = missing.length;
    for (let at = 0; at < end; ) {
      const record = missing[at];
      if (record === undefined) break;
      // Without this limit, `runEnd` could examine all records of the channel for each row.
      const limit = Math.min(end, at + MAX_RECORDS);
      const count = isAlone(record) ? 1 : rowLength(missing, at, runEnd(missing, at, limit));
      logRows.put(number, record.messageSeq, missing.slice(at, at + count));
      if (expires(record.bytes, record.start)) putExpiry(ports, number, record);
      at += count;
      yield;
    }
  }
  yield* logs.frames();
  yield* events.rows();
}

const NO_SEQS: ReadonlySet<number> = new Set();

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

function* putReferences(
  { dedupe, conversationRows }: FlushPorts,
  { channels, streams, logs }: Flush,
  isFirst: boolean,
): Generator<void> {
  for (const flushed of channels) {
    const { number } = flushed.channel;
    const { log, dedupeOnly } = flushed;
    for (const record of dedupeOnly.length === 0 ? log : inOrderOfIds(log, dedupeOnly)) {
      if (!isDeduped(record.bytes, record.start)) continue;
      dedupe.put(number, record);
      yield;
    }
    yield* conversationRows.putOwnSeqs(number, flushed.log, isFirst);
  }
  yield* logs.heads();
  yield* streams.puts();
}

/**
 * Yields the records of both lists in the order of message ids, so that the newest use of a
 * `clientMsgNo` overwrites older uses.
 */
function* inOrderOfIds(
  log: readonly MemtableRecord[],
  dedupeOnly: readonly MemtableRecord[],
): Generator<MemtableRecord> {
  let next = 0;
  for (const record of log) {
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
