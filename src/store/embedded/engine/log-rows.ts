// The messages of all channels in the database: rows of the table `log`, keyed by channel number
// and first seq. A row is one record, or a chunk of up to 64 whose seqs follow each other: version
// u8 (0x40, no record's), count u8, where each ends u32 from the first one's start, the records.
// Everything that reads or writes the log goes through here. No cursor stays open between two rows.
// No state.

import { logKey, seqIn } from "./channel-rows.ts";
import type { Tables } from "./tables.ts";

const CHUNK = 0x40;
/** Of one row. */
export const MAX_RECORDS = 64;
/** A record that is longer stands alone. */
const MAX_CHUNK_BYTES = 16 * 1024;
const HEADER_BYTES = 2;
const END_BYTES = 4;
export const MAX_SEQ = 2 ** 48 - 1;

/** Where an encoded record stands. */
export interface EncodedRecord {
  readonly bytes: Buffer;
  readonly start: number;
  readonly end: number;
}

interface LogRecord {
  readonly seq: number;
  readonly bytes: Buffer;
}

/** One row. */
export interface LogRow {
  readonly first: number;
  readonly last: number;
  readonly value: Buffer;
}

export class LogRows {
  readonly #log: Tables["log"];

  constructor({ log }: Pick<Tables, "log">) {
    this.#log = log;
  }

  /** Puts the records from `first` on, at most a chunk's. To be called inside `commit`. */
  put(number: number, first: number, records: readonly EncodedRecord[]): void {
    void this.#log.put(logKey(number, first), rowValue(records));
  }

  /** To be called inside `commit`. */
  remove(number: number, { first }: LogRow): void {
    void this.#log.remove(logKey(number, first));
  }

  /** The first record from `seq` to before `endSeq`. Its bytes are valid until the next read. */
  firstFrom(number: number, seq: number, endSeq: number): LogRecord | undefined {
    if (number === 0 || seq >= endSeq) return undefined;
    const row = this.#rowWith(number, seq) ?? this.#rowAfter(number, seq);
    if (row === undefined || row.first >= endSeq) return undefined;
    const at = Math.max(seq, row.first);
    return { seq: at, bytes: recordAt(row, at) };
  }

  /** Every record from the seq `from` through `to`. */
  *up(number: number, from: number, to: number): Generator<LogRecord> {
    for (const row of this.rowsUp(number, from, to)) {
      const last = Math.min(row.last, to);
      for (let seq = Math.max(row.first, from); seq <= last; seq++)
        yield { seq, bytes: recordAt(row, seq) };
    }
  }

  /** The same, newest first. */
  *down(number: number, from: number, to: number): Generator<LogRecord> {
    let next = to;
    while (number !== 0 && next >= from) {
      const row = kept(this.#rowThrough(number, next));
      if (row === undefined || row.last < from) return;
      const first = Math.max(row.first, from);
      for (let seq = Math.min(row.last, to); seq >= first; seq--)
        yield { seq, bytes: recordAt(row, seq) };
      next = row.first - 1;
    }
  }

  /** Every row that has one of those seqs. */
  *rowsUp(number: number, from: number, to: number): Generator<LogRow> {
    let next = from;
    while (number !== 0 && next <= to) {
      const row = kept(this.#rowWith(number, next) ?? this.#rowAfter(number, next));
      if (row === undefined || row.first > to) return;
      yield row;
      next = row.last + 1;
    }
  }

  /** The row that has this seq. */
  #rowWith(number: number, seq: number): LogRow | undefined {
    const row = this.#rowThrough(number, seq);
    return row !== undefined && row.last >= seq ? row : undefined;
  }

  /** The row with the greatest first seq through this one. */
  #rowThrough(number: number, seq: number): LogRow | undefined {
    const start = logKey(number, seq);
    const value = this.#log.getBinaryFast(start); // a record that stands alone mostly is
    if (value !== undefined) return rowOf(seq, value);
    const bounds = { start, end: logKey(number, 0), reverse: true, limit: 1 };
    return this.#firstOf(this.#log.getKeys(bounds));
  }

  #rowAfter(number: number, seq: number): LogRow | undefined {
    const start = logKey(number, seq + 1);
    const end = logKey(number + 1, 0);
    return this.#firstOf(this.#log.getKeys({ start, end, limit: 1 }));
  }

  #firstOf(keys: Iterable<Buffer>): LogRow | undefined {
    for (const key of keys) {
      const value = this.#log.getBinaryFast(key);
      if (value !== undefined) return rowOf(seqIn(key), value);
    }
    return undefined;
  }
}

/**
 * How many records from the one at `start` on, before `end`, are one row. Their seqs follow each
 * other and none must be alone.
 */
export function rowLength(
  records: readonly (EncodedRecord | undefined)[],
  start: number,
  end: number,
): number {
  let bytes = 0;
  let at = start;
  const most = Math.min(end, start + MAX_RECORDS);
  for (; at < most; at++) {
    const record = records[at];
    if (record === undefined) break;
    bytes += record.end - record.start;
    if (bytes > MAX_CHUNK_BYTES) break;
  }
  return Math.max(1, at - start);
}

/** The records of a row from `seq` on. */
export function recordsFrom(row: LogRow, seq: number): EncodedRecord[] {
  const records: EncodedRecord[] = [];
  for (let at = seq; at <= row.last; at++) {
    const bytes = recordAt(row, at);
    records.push({ bytes, start: 0, end: bytes.length });
  }
  return records;
}

/** How many records a row's value has. */
export function countIn(value: Uint8Array): number {
  return value[0] === CHUNK ? (value[1] ?? 0) : 1;
}

/**
 * The row of a value read; `fast` may be lmdb's own buffer, which is longer than its `length` says.
 */
export function rowOf(first: number, fast: Buffer): LogRow {
  const value = fast.subarray(0, fast.length);
  return { first, last: first + countIn(value) - 1, value };
}

/** A row that outlives the next read. */
function kept(row: LogRow | undefined): LogRow | undefined {
  return row && { ...row, value: Buffer.from(row.value) };
}

/** The record of a seq that the row has. */
export function recordAt({ first, value }: LogRow, seq: number): Buffer {
  if (value[0] !== CHUNK) return value;
  const at = seq - first;
  const body = HEADER_BYTES + countIn(value) * END_BYTES;
  const start = at === 0 ? 0 : endOf(value, at - 1);
  return value.subarray(body + start, body + endOf(value, at));
}

function endOf(value: Buffer, at: number): number {
  return value.readUInt32LE(HEADER_BYTES + at * END_BYTES);
}

function rowValue(records: readonly EncodedRecord[]): Buffer {
  const [only] = records;
  if (only !== undefined && records.length === 1) return only.bytes.subarray(only.start, only.end);
  let size = HEADER_BYTES + records.length * END_BYTES;
  for (const { start, end } of records) size += end - start;
  const value = Buffer.allocUnsafe(size);
  value[0] = CHUNK;
  value[1] = records.length;
  const body = HEADER_BYTES + records.length * END_BYTES;
  let at = body;
  let endAt = HEADER_BYTES;
  for (const { bytes, start, end } of records) {
    value.set(bytes.subarray(start, end), at);
    at += end - start;
    value.writeUInt32LE(at - body, endAt);
    endAt += END_BYTES;
  }
  return value;
}
