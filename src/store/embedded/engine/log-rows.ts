// Reads and writes the table `log`, which contains the messages of all channels. Other files must
// decode and change rows through the functions of this file, except rows that contain a single
// record. No cursor stays open between two rows. Keeps no state.
//
// A key is a channel number and the seq of the row's first message. A value is one record, or a
// chunk of up to 64 records with consecutive seqs:
//
//   field     type        meaning
//   version   u8          0x40; no record begins with this byte
//   count     u8          number of records
//   ends      u32 each    end of each record, counted from the start of the first record
//   records   bytes       the records (see record.ts)

import { logKey, seqIn } from "./channel-rows.ts";
import type { Tables } from "./tables.ts";

const CHUNK = 0x40;
export const MAX_RECORDS = 64;
/** Maximum total size of the records in a chunk. A larger record has its own row. */
const MAX_CHUNK_BYTES = 16 * 1024;
const HEADER_BYTES = 2;
const END_BYTES = 4;
export const MAX_SEQ = 2 ** 48 - 1;

export interface EncodedRecord {
  readonly bytes: Buffer;
  readonly start: number;
  readonly end: number;
}

interface LogRecord {
  readonly seq: number;
  readonly bytes: Buffer;
}

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

  /**
   * Puts a row. Must be called inside `commit`. `records` must fit in one row (see `rowLength`).
   */
  put(number: number, first: number, records: readonly EncodedRecord[]): void {
    void this.#log.put(logKey(number, first), rowValue(records));
  }

  remove(number: number, { first }: LogRow): void {
    void this.#log.remove(logKey(number, first));
  }

  /**
   * Returns the first record whose seq is at least `seq` and lower than `endSeq`. The record is
   * valid only until the next read.
   */
  firstFrom(number: number, seq: number, endSeq: number): LogRecord | undefined {
    if (number === 0 || seq >= endSeq) return undefined;
    const row = this.#rowWith(number, seq) ?? this.#rowAfter(number, seq);
    if (row === undefined || row.first >= endSeq) return undefined;
    const at = Math.max(seq, row.first);
    return { seq: at, bytes: recordAt(row, at) };
  }

  *scan(number: number, from: number, to: number): Generator<LogRecord> {
    for (const row of this.scanRows(number, from, to)) {
      const last = Math.min(row.last, to);
      for (let seq = Math.max(row.first, from); seq <= last; seq++)
        yield { seq, bytes: recordAt(row, seq) };
    }
  }

  *scanReverse(number: number, from: number, to: number): Generator<LogRecord> {
    let next = to;
    while (number !== 0 && next >= from) {
      const row = copyOf(this.#lastRowFrom(number, next));
      if (row === undefined || row.last < from) return;
      const first = Math.max(row.first, from);
      for (let seq = Math.min(row.last, to); seq >= first; seq--)
        yield { seq, bytes: recordAt(row, seq) };
      next = row.first - 1;
    }
  }

  *scanRows(number: number, from: number, to: number): Generator<LogRow> {
    let next = from;
    while (number !== 0 && next <= to) {
      const row = copyOf(this.#rowWith(number, next) ?? this.#rowAfter(number, next));
      if (row === undefined || row.first > to) return;
      yield row;
      next = row.last + 1;
    }
  }

  #rowWith(number: number, seq: number): LogRow | undefined {
    const row = this.#lastRowFrom(number, seq);
    return row !== undefined && row.last >= seq ? row : undefined;
  }

  #lastRowFrom(number: number, seq: number): LogRow | undefined {
    const start = logKey(number, seq);
    // Fast path for a row that begins with `seq`, for example the row of a message that expires.
    const value = this.#log.getBinaryFast(start);
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
 * Returns the number of records, beginning at `start`, that fit in one row. The records must have
 * consecutive seqs, and must not include the record of a stream's message or of a message that
 * expires, because such a record has its own row.
 */
export function rowLength(
  records: readonly (EncodedRecord | undefined)[],
  start: number,
  end: number,
): number {
  let bytes = 0;
  let at = start;
  const maxEnd = Math.min(end, start + MAX_RECORDS);
  for (; at < maxEnd; at++) {
    const record = records[at];
    if (record === undefined) break;
    bytes += record.end - record.start;
    if (bytes > MAX_CHUNK_BYTES) break;
  }
  return Math.max(1, at - start);
}

export function recordsFrom(row: LogRow, seq: number): EncodedRecord[] {
  const records: EncodedRecord[] = [];
  for (let at = seq; at <= row.last; at++) {
    const bytes = recordAt(row, at);
    records.push({ bytes, start: 0, end: bytes.length });
  }
  return records;
}

export function countIn(value: Uint8Array): number {
  return value[0] === CHUNK ? (value[1] ?? 0) : 1;
}

/**
 * Decodes a row. `fast` may be lmdb's shared buffer. The memory of that buffer is larger than the
 * value, but lmdb sets its property `length` to the value's size.
 */
export function rowOf(first: number, fast: Buffer): LogRow {
  const value = fast.subarray(0, fast.length);
  return { first, last: first + countIn(value) - 1, value };
}

/** Returns a copy that stays valid after the next read. */
function copyOf(row: LogRow | undefined): LogRow | undefined {
  return row && { ...row, value: Buffer.from(row.value) };
}

export function recordAt({ first, value }: LogRow, seq: number): Buffer {
  if (value[0] !== CHUNK) return value;
  const at = seq - first;
  const body = HEADER_BYTES + countIn(value) * END_BYTES;
  const start = at === 0 ? 0 : endOf(value, at - 1);
  return value.subarray(body + start, body + endOf(value, at));
}

/**
 * Returns the stored end of a record. If a damaged chunk is too short to contain this end, returns
 * an end with which the record cannot be decoded.
 */
function endOf(value: Buffer, at: number): number {
  const place = HEADER_BYTES + at * END_BYTES;
  return place + END_BYTES <= value.length ? value.readUInt32LE(place) : value.length;
}

function rowValue(records: readonly EncodedRecord[]): Buffer {
  const [firstRecord] = records;
  if (firstRecord !== undefined && records.length === 1)
    return firstRecord.bytes.subarray(firstRecord.start, firstRecord.end);
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
