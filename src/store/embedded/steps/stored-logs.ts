// Reads and writes the rows of logs in the database. Except in the table `logNames`, the key of a
// row contains the log's number in place of its name. A number is never reused. State: the counter
// that assigns the numbers.
//
// A key in the table `logFrames` is the number of the log and the position of the row's first
// frame. The rows of a log follow each other without gaps. The value of a row:
//
//   version   u8      FRAMES_VERSION
//   check     u32     check before the first frame (see `FrameRun`), little-endian
//   frames    bytes   whole frames (see broker/log-frame.ts)
//
// A closed log whose own frames have at most MAX_INLINE_BYTES in total has no rows in `logFrames`.
// Its frames are stored in its head.

import { createHash } from "node:crypto";
import { frameSize, type LogName, lastCheck } from "../../../broker/log-frame.ts";
import {
  expiryKey,
  logKey,
  logKeyIn,
  numberIn,
  numberKey,
  rangeOf,
  seqIn,
} from "../engine/channel-rows.ts";
import { fieldsOf } from "../engine/database.ts";
import type { Tables } from "../engine/tables.ts";
import {
  checkBeforeNext,
  dueMs,
  type LogState,
  ofFields,
  type ProducerState,
  startCheckOf,
  startOf,
  toFields,
} from "./log-state.ts";
import type { FrameRun } from "./pending-frames.ts";

const VERSION = 1;
const FRAMES_VERSION = 1;
const PREFIX_BYTES = 5;
const NUMBER_BYTES = 6;
const NEXT_NUMBER = "nextLogNumber";
/** Maximum total size of the frames in one row. A larger frame has its own row. */
const MAX_ROW_BYTES = 16 * 1024;
const MAX_INLINE_BYTES = 4096;
const PRESENT = Buffer.from([VERSION]);

/** Changes that a checkpoint writes for one log. */
export interface LogFlush {
  readonly number: number;
  /** Name of the log, as returned by `logNameText`. */
  readonly text: string;
  readonly state: LogState;
  /** State in the database, or `undefined` if the log is not stored yet. */
  readonly stored: LogState | undefined;
  /** Frames that follow the frames in the database. */
  readonly frames: Buffer;
  /**
   * Newest request of each producer that changed, or `undefined` for a producer that was
   * forgotten.
   */
  readonly producers: readonly (readonly [id: string, state: ProducerState | undefined])[];
}

export class StoredLogs {
  readonly #tables: Tables;
  #next: number;

  constructor(tables: Tables) {
    this.#tables = tables;
    const stored = tables.meta.get(NEXT_NUMBER);
    this.#next = stored === undefined ? 1 : Number(fieldsOf(stored, VERSION)[0]);
  }

  nextNumber(): number {
    return this.#next++;
  }

  /** Ensures that the number of a log in the WAL is not assigned again. */
  reserveNumber(number: number): void {
    this.#next = Math.max(this.#next, number + 1);
  }

  find(name: string): number | undefined {
    const row = this.#tables.logNames.get(nameKey(name));
    return row === undefined ? undefined : Number(fieldsOf(row, VERSION)[0]);
  }

  load(number: number): { readonly name: LogName; readonly state: LogState } | undefined {
    const row = this.#tables.logHeads.get(numberKey(number));
    return row === undefined ? undefined : ofFields(headFields(row));
  }

  producer(number: number, id: string): ProducerState | undefined {
    const row = this.#tables.logProducers.get(producerKey(number, id));
    return row === undefined ? undefined : producerOf(row);
  }

  *producers(number: number): Generator<readonly [id: string, state: ProducerState]> {
    for (const { key, value } of this.#tables.logProducers.getRange(rangeOf(number)))
      yield [key.toString("utf8", NUMBER_BYTES), producerOf(value)];
  }

  /**
   * Returns the run that contains `position`. The position must be before the end of the log's own
   * stored frames.
   */
  runAt(number: number, position: number): FrameRun | undefined {
    const { logFrames } = this.#tables;
    const range = { start: logKey(number, position), end: numberKey(number) };
    const [key] = logFrames.getKeys({ ...range, reverse: true, limit: 1 });
    const value = key === undefined ? undefined : logFrames.get(key);
    if (key === undefined || value === undefined) return this.#inlineRun(number);
    return runOf(key, value);
  }

  #inlineRun(number: number): FrameRun | undefined {
    const row = this.#tables.logHeads.get(numberKey(number));
    if (row === undefined) return undefined;
    const bytes = inlineFrames(row);
    if (bytes === undefined) return undefined;
    const { state } = ofFields(headFields(row));
    return { start: startOf(state), checkBefore: startCheckOf(state), bytes };
  }

  /**
   * Returns logs that expire at `nowMs` or earlier, starting after the key `after`. A row may be
   * outdated, so the caller must check whether the log has expired.
   */
  due(
    nowMs: number,
    after: Buffer | undefined,
    limit: number,
  ): readonly { readonly number: number; readonly key: Buffer }[] {
    const start = after === undefined ? {} : { start: after, exclusiveStart: true };
    const end = expiryKey(nowMs + 1, Buffer.alloc(0));
    const keys = this.#tables.logExpiry.getKeys({ ...start, end, limit });
    return Array.from(keys, (key) => ({ number: numberIn(logKeyIn(key)), key }));
  }

  /**
   * Puts the new frames and producers of a log. Must be advanced inside `commit`, before `putHead`.
   * After a failed checkpoint, may be called again with the same frames, followed by further
   * frames.
   */
  *putFrames({ number, state, stored, frames, producers }: LogFlush): Generator<void> {
    if (state.status === "removed") return;
    if (!isInline(state)) {
      const start = stored?.position ?? startOf(state);
      const checkBefore = stored === undefined ? startCheckOf(state) : checkBeforeNext(stored);
      for (const run of runsOf(frames, start, checkBefore)) {
        void this.#tables.logFrames.put(logKey(number, run.start), rowOf(run));
        yield;
      }
    }
    for (const [id, producer] of producers) {
      const key = producerKey(number, id);
      if (producer === undefined) void this.#tables.logProducers.remove(key);
      else void this.#tables.logProducers.put(key, producerFields(producer));
      yield;
    }
  }

  /** Puts a log's head, or removes all rows of a removed log. Must be advanced inside `commit`. */
  *putHead(flush: LogFlush): Generator<void> {
    const { number, text, state, stored } = flush;
    const { meta, logNames, logHeads } = this.#tables;
    this.#putExpiry(flush);
    if (state.status === "removed") {
      yield* this.remove({ number, text });
      return;
    }
    if (stored === undefined) {
      void meta.put(NEXT_NUMBER, [VERSION, this.#next]);
      void logNames.put(nameKey(text), [VERSION, number]);
    }
    const fields = [VERSION, ...toFields(text, state)];
    if (isInline(state)) {
      const start = startOf(state);
      const storedBytes = (stored?.position ?? start) - start;
      // A failed checkpoint may have left frames after the stored tail.
      const before = Buffer.concat([...this.ownFrames(number)]).subarray(0, storedBytes);
      const bytes = Buffer.concat([before, flush.frames]);
      // All keys are read before the first removal, in the same transaction.
      for (const key of [...this.#tables.logFrames.getKeys(rangeOf(number))])
        void this.#tables.logFrames.remove(key);
      fields.push(bytes);
    }
    void logHeads.put(numberKey(number), fields);
    yield;
  }

  #putExpiry({ number, state, stored }: LogFlush): void {
    const { logExpiry } = this.#tables;
    const before = stored === undefined ? undefined : dueMs(stored);
    const due = state.status === "live" ? dueMs(state) : undefined;
    if (before !== undefined && before !== due)
      void logExpiry.remove(expiryKey(before, numberKey(number)));
    if (due !== undefined) void logExpiry.put(expiryKey(due, numberKey(number)), PRESENT);
  }

  /** Removes all rows of a log. Must be advanced inside `commit`. */
  *remove({ number, text }: Pick<LogFlush, "number" | "text">): Generator<void> {
    const { logNames, logHeads, logFrames, logProducers } = this.#tables;
    // The name may belong to a later log.
    if (this.find(text) === number) void logNames.remove(nameKey(text));
    void logHeads.remove(numberKey(number));
    yield;
    for (const frames of [...logFrames.getKeys(rangeOf(number))]) {
      void logFrames.remove(frames);
      yield;
    }
    for (const producer of [...logProducers.getKeys(rangeOf(number))]) {
      void logProducers.remove(producer);
      yield;
    }
  }

  /** Yields the log's own frames in the database, in order. */
  *ownFrames(number: number): Generator<Buffer> {
    const row = this.#tables.logHeads.get(numberKey(number));
    const inline = row === undefined ? undefined : inlineFrames(row);
    if (inline !== undefined) {
      yield inline;
      return;
    }
    for (const { value } of this.#tables.logFrames.getRange(rangeOf(number)))
      yield Buffer.from(value.subarray(PREFIX_BYTES));
  }
}

/** Returns true if the log's own frames are stored in its head. */
function isInline(state: LogState): boolean {
  return state.closed !== undefined && state.position - startOf(state) <= MAX_INLINE_BYTES;
}

/**
 * Divides frames into rows. The division depends only on the frames and the first position, so a
 * repeated checkpoint puts rows under the same keys.
 */
function* runsOf(frames: Buffer, position: number, checkBefore: number): Generator<FrameRun> {
  let check = checkBefore;
  let start = 0;
  let end = 0;
  while (end < frames.length) {
    const next = end + (frameSize(frames, end) ?? frames.length);
    if (end > start && next - start > MAX_ROW_BYTES) {
      yield { start: position + start, checkBefore: check, bytes: frames.subarray(start, end) };
      check = lastCheck(frames.subarray(start, end));
      start = end;
    }
    end = next;
  }
  if (end > start)
    yield { start: position + start, checkBefore: check, bytes: frames.subarray(start, end) };
}

function rowOf({ checkBefore, bytes }: FrameRun): Buffer {
  const row = Buffer.allocUnsafe(PREFIX_BYTES + bytes.length);
  row[0] = FRAMES_VERSION;
  row.writeUInt32LE(checkBefore, 1);
  row.set(bytes, PREFIX_BYTES);
  return row;
}

function runOf(key: Buffer, row: Buffer): FrameRun {
  fieldsOf([row[0]], FRAMES_VERSION); // rejects rows of a newer build
  return {
    start: seqIn(key),
    checkBefore: row.readUInt32LE(1),
    bytes: row.subarray(PREFIX_BYTES),
  };
}

function headFields(row: readonly unknown[]): readonly unknown[] {
  return fieldsOf(row, VERSION);
}

function inlineFrames(row: readonly unknown[]): Buffer | undefined {
  const last = headFields(row).at(-1);
  if (!(last instanceof Uint8Array)) return undefined;
  return Buffer.from(last.buffer, last.byteOffset, last.length);
}

function producerFields({ epoch, number, seenMs }: ProducerState): readonly unknown[] {
  return [VERSION, epoch, number, seenMs];
}

function producerOf(row: readonly unknown[]): ProducerState {
  const [epoch, number, seenMs] = fieldsOf(row, VERSION).map(Number);
  return { epoch: epoch ?? 0, number: number ?? 0, seenMs: seenMs ?? 0 };
}

function producerKey(number: number, id: string): Buffer {
  return Buffer.concat([numberKey(number), Buffer.from(id)]);
}

/** Returns the hash of a name, because a path can be longer than an LMDB key. */
function nameKey(name: string): Buffer {
  return createHash("sha256").update(name).digest();
}
