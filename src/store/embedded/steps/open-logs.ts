// The logs in memory: their heads, and the changes that are not in the database yet. Must never
// drop a change before the database has it.

import { BrokerError } from "../../../broker/errors.ts";
import type { LogName, LogOffset } from "../../../broker/log-frame.ts";
import {
  CHECK_BYTES,
  frameOf,
  frameSize,
  isSameOffset,
  LOG_START,
  lastCheck,
  logNameOf,
  logNameText,
} from "../../../broker/log-frame.ts";
import { LinkedMap } from "../../../lib/linked-map.ts";
import type { Memtable } from "../engine/memtable.ts";
import {
  type AppendRecord,
  checkBeforeNext,
  decodeLogRecord,
  type LogProducerChange,
  type LogRecord,
  type LogState,
  type ProducerState,
  startOf,
  stateAfter,
  tailOf,
} from "./log-state.ts";
import { type FrameRun, PendingFrames } from "./pending-frames.ts";
import type { LogFlush, StoredLogs } from "./stored-logs.ts";

/** Maximum number of heads that one eviction examines. */
const MAX_EXAMINED = 100;

interface LogProducerEntry {
  assigned: ProducerState | undefined;
  shown: ProducerState | undefined;
}

/** Changes to a log that are not in the database yet. */
interface UnflushedChanges {
  /** State after the committed changes, or `undefined` if the log itself is uncommitted. */
  shown: LogState | undefined;
  /** State in the database, or `undefined` if the log is not stored yet. */
  stored: LogState | undefined;
  /** Committed frames that are not in the database yet. */
  readonly pending: PendingFrames;
  /** Producers whose newest request is not in the database. */
  producers: Map<string, LogProducerEntry> | undefined;
  /** Number of WAL records of these changes, committed or not. */
  records: number;
  /** Number and total size of the WAL records that are committed. */
  committed: number;
  committedBytes: number;
}

/** A log whose head is in memory. The class has few fields, because many logs may be open. */
export class OpenLog {
  readonly number: number;
  /** Name of the log, as returned by `logNameText`. */
  readonly text: string;
  /** State after all changes, committed or not. */
  assigned: LogState;
  /** `undefined` if the database has the whole log. */
  changes: UnflushedChanges | undefined;

  constructor(
    number: number,
    text: string,
    states: { readonly assigned: LogState; readonly stored: LogState | undefined },
  ) {
    this.number = number;
    this.text = text;
    this.assigned = states.assigned;
    this.changes = states.stored === undefined ? unflushedChanges(undefined) : undefined;
  }

  /** State after the committed changes, or `undefined` if the log itself is uncommitted. */
  get shown(): LogState | undefined {
    return this.changes === undefined ? this.assigned : this.changes.shown;
  }

  /** State in the database, or `undefined` if the log is not stored yet. */
  get stored(): LogState | undefined {
    return this.changes === undefined ? this.assigned : this.changes.stored;
  }

  get name(): LogName {
    return logNameOf(this.text);
  }

  /**
   * Makes the change with the oldest uncommitted WAL record visible. `bytes` is the size of the
   * record.
   */
  show(state: LogState, frame: FrameRun | undefined, bytes: number): void {
    if (this.changes === undefined) return; // cannot happen, because `retain` has set it
    this.changes.shown = state;
    if (frame !== undefined) this.changes.pending.add(frame);
    this.changes.committed++;
    this.changes.committedBytes += bytes;
  }
}

function unflushedChanges(state: LogState | undefined): UnflushedChanges {
  return {
    shown: state,
    stored: state,
    pending: new PendingFrames(),
    producers: undefined,
    records: 0,
    committed: 0,
    committedBytes: 0,
  };
}

/** Changes that a checkpoint writes for one log, with the number and size of their WAL records. */
interface OpenLogFlush extends LogFlush {
  readonly log: OpenLog;
  readonly records: number;
  readonly bytes: number;
}

/** Frames that a read returns, and the offset after them. */
interface ReadFrames {
  readonly pieces: readonly Buffer[];
  readonly next: LogOffset;
}

export class OpenLogs {
  readonly #rows: StoredLogs;
  readonly #memtable: Pick<Memtable, "retain" | "release">;
  readonly #maxOpen: number;
  readonly #byName = new LinkedMap<string, OpenLog>();
  /** Logs with changes that are not in the database yet, by number. */
  readonly #dirty = new Map<number, OpenLog>();
  #bytes = 0;

  constructor(
    rows: StoredLogs,
    memtable: Pick<Memtable, "retain" | "release">,
    { maxOpen }: { readonly maxOpen: number },
  ) {
    this.#rows = rows;
    this.#memtable = memtable;
    this.#maxOpen = maxOpen;
  }

  get count(): number {
    return this.#byName.size;
  }

  /** Total size in bytes of the log changes in the WAL that are not yet in the database. */
  get bytes(): number {
    return this.#bytes;
  }

  find(name: LogName): OpenLog | undefined {
    return this.findText(logNameText(name));
  }

  /** Like `find`, for a name that `logNameText` returned. */
  findText(text: string): OpenLog | undefined {
    const log = this.#byName.get(text);
    if (log !== undefined) return log;
    const number = this.#rows.find(text);
    return number === undefined ? undefined : this.byNumber(number);
  }

  byNumber(number: number): OpenLog | undefined {
    const dirty = this.#dirty.get(number);
    if (dirty !== undefined) return dirty;
    const row = this.#rows.load(number);
    if (row === undefined) return undefined;
    const text = logNameText(row.name);
    const named = this.#byName.get(text);
    if (named?.number === number) return named;
    const log = new OpenLog(number, text, { assigned: row.state, stored: row.state });
    if (named === undefined && mayChange(log)) this.#hold(text, log);
    return log;
  }

  /** Adds a new log. Returns the log that had the name before. */
  add(log: OpenLog): OpenLog | undefined {
    const previous = this.#byName.get(log.text);
    this.#hold(log.text, log);
    return previous;
  }

  remove(log: OpenLog, previous: OpenLog | undefined): void {
    if (previous === undefined) this.#byName.delete(log.text);
    else this.#byName.set(log.text, previous);
    this.#dirty.delete(log.number);
  }

  /** Removes the head of a log from memory, because the log will no longer change. */
  forget(log: OpenLog): void {
    if (this.#byName.get(log.text) === log) this.#byName.delete(log.text);
  }

  #hold(text: string, log: OpenLog): void {
    this.#byName.set(text, log);
    if (this.#byName.size > this.#maxOpen) this.#evict();
  }

  #evict(): void {
    for (let examined = 0; examined < MAX_EXAMINED; examined++) {
      const { oldest, size } = this.#byName;
      if (size <= this.#maxOpen || oldest === undefined) return;
      const { key: text, value: log } = oldest;
      // A log with changes is moved to the end, so that the next call examines other logs.
      if (this.#dirty.has(log.number)) this.#byName.renew(text, log);
      else this.#byName.delete(text);
    }
  }

  // --- Changes ---

  /** Counts a WAL record of the log. Must be called before the log's state changes. */
  retain(log: OpenLog, bytes: number): void {
    log.changes ??= unflushedChanges(log.assigned);
    if (log.changes.records === 0) this.#dirty.set(log.number, log);
    log.changes.records++;
    this.#bytes += bytes;
    this.#memtable.retain(bytes);
  }

  /** Undoes the newest `retain`. */
  release(log: OpenLog, bytes: number): void {
    if (log.changes === undefined) return;
    this.#drop(log.changes, 1, bytes);
    if (log.changes.records === 0) this.#markClean(log);
  }

  #drop(changes: UnflushedChanges, records: number, bytes: number): void {
    changes.records -= records;
    this.#bytes -= bytes;
    this.#memtable.release(bytes, records);
  }

  #markClean(log: OpenLog): void {
    log.changes = undefined;
    this.#dirty.delete(log.number);
  }

  producer(log: OpenLog, id: string): ProducerState | undefined {
    const entry = log.changes?.producers?.get(id);
    return entry === undefined ? this.#rows.producer(log.number, id) : entry.assigned;
  }

  producers(log: OpenLog): ReadonlyMap<string, ProducerState> {
    const producers = new Map(this.#rows.producers(log.number));
    for (const [id, { assigned }] of log.changes?.producers ?? []) {
      if (assigned === undefined) producers.delete(id);
      else producers.set(id, assigned);
    }
    return producers;
  }

  /** Sets the state of a producer and returns the previous state. Must be called after `retain`. */
  assignProducer(
    log: OpenLog,
    id: string,
    state: ProducerState | undefined,
  ): ProducerState | undefined {
    const { changes } = log;
    if (changes === undefined) return undefined;
    changes.producers ??= new Map();
    const entry = changes.producers.get(id);
    if (entry === undefined) {
      const stored = this.#rows.producer(log.number, id);
      changes.producers.set(id, { assigned: state, shown: stored });
      return stored;
    }
    const before = entry.assigned;
    entry.assigned = state;
    return before;
  }

  // --- Reads ---

  /**
   * Returns true if this offset is the start of the committed log or the end of one of its frames.
   */
  hasOffset(log: OpenLog, offset: LogOffset): boolean {
    return this.#runFrom(log, offset) !== undefined;
  }

  /** Returns the first committed frame after the offset, or `undefined` if no such frame exists. */
  frameAfter(log: OpenLog, offset: LogOffset): Buffer | undefined {
    const { pieces } = this.read(log, offset, 1) ?? { pieces: [] };
    const [piece] = pieces;
    return piece?.subarray(0, frameSize(piece, 0));
  }

  /**
   * Returns frames after the offset, or `undefined` if the committed log has no such offset.
   * Returns at least one frame unless the offset is the tail.
   */
  read(log: OpenLog, from: LogOffset, maxBytes: number): ReadFrames | undefined {
    let run = this.#runFrom(log, from);
    if (run === undefined) return undefined;
    const pieces: Buffer[] = [];
    let next = from;
    let size = 0;
    while (run.bytes.length > 0) {
      const length = wholeFramesWithin(run.bytes, maxBytes - size, pieces.length === 0);
      if (length === 0) break;
      const piece = run.bytes.subarray(0, length);
      pieces.push(piece);
      size += length;
      next = { position: next.position + length, check: lastCheck(piece) };
      if (length < run.bytes.length || size >= maxBytes) break;
      const following = this.#runFrom(log, next);
      if (following === undefined) break;
      run = following;
    }
    return { pieces, next };
  }

  /**
   * Returns a run of frames that begins at the offset. The run is empty at the tail. Returns
   * `undefined` if no frame of the committed log begins or ends at the offset. A matching check
   * alone does not prove that a frame ends at the offset.
   */
  #runFrom(log: OpenLog, offset: LogOffset): FrameRun | undefined {
    const { shown } = log;
    if (shown === undefined || offset.position > shown.position) return undefined;
    if (isSameOffset(offset, tailOf(shown))) return emptyRun(offset);
    if (offset.position === shown.position) return undefined;
    const run = this.#runAt(log, shown, offset.position);
    return run === undefined ? undefined : runAfter(run, offset);
  }

  /**
   * Returns the run of own or inherited frames that contains `position`. The position must be
   * before the tail.
   */
  #runAt(log: OpenLog, shown: LogState, position: number): FrameRun | undefined {
    let owner = log;
    let state = shown;
    let end = Infinity;
    // This is a loop rather than a recursion, because a fork can have a long chain of sources.
    for (;;) {
      const start = startOf(state);
      const { origin } = state.terms;
      if (position >= start || origin === undefined) break;
      end = Math.min(end, start);
      const source = this.byNumber(origin.number);
      if (source?.shown === undefined) return undefined;
      owner = source;
      state = source.shown;
    }
    const isStored = position < (owner.stored?.position ?? startOf(state));
    const run = isStored
      ? this.#rows.runAt(owner.number, position)
      : owner.changes?.pending.runAt(position);
    return run && { ...run, bytes: run.bytes.subarray(0, end - run.start) };
  }

  // --- Checkpoint and recovery ---

  startFlush() {
    const flushes: OpenLogFlush[] = [];
    for (const log of this.#dirty.values()) {
      const { number, text, shown: state, stored, changes } = log;
      if (state === undefined || changes === undefined || changes.committed === 0) continue;
      const frames = changes.pending.bytes;
      const entries = [...(changes.producers ?? [])];
      const producers = entries.map(([id, { shown }]) => [id, shown] as const);
      const { committed: records, committedBytes: bytes } = changes;
      flushes.push({ log, number, text, state, stored, frames, producers, records, bytes });
    }
    const rows = this.#rows;
    return {
      /** Puts frames and producers. Must be advanced inside `commit`, before `heads`. */
      *frames(): Generator<void> {
        for (const flush of flushes) yield* rows.putFrames(flush);
      },
      *heads(): Generator<void> {
        // Rows of removed logs are removed first, because a later log may have the same name.
        for (const flush of flushes)
          if (flush.state.status === "removed") yield* rows.putHead(flush);
        for (const flush of flushes)
          if (flush.state.status !== "removed") yield* rows.putHead(flush);
      },
      finish: () => {
        for (const flush of flushes) this.#finishFlush(flush);
      },
    };
  }

  #finishFlush(flush: OpenLogFlush): void {
    const { log } = flush;
    const { changes } = log;
    if (changes === undefined) return;
    changes.stored = flush.state;
    this.#drop(changes, flush.records, flush.bytes);
    changes.committed -= flush.records;
    changes.committedBytes -= flush.bytes;
    changes.pending.removeFirst(flush.frames.length);
    for (const [id, state] of flush.producers)
      if (changes.producers?.get(id)?.assigned === state) changes.producers?.delete(id);
    if (changes.records > 0) return;
    this.#markClean(log);
    if (!mayChange(log)) this.forget(log);
  }

  /** Applies a WAL record unless the database already has the change. Returns the log's number. */
  replay(bytes: Buffer): number {
    const record = decodeLogRecord(bytes);
    this.#apply(record, bytes.length);
    return record.number;
  }

  #apply(record: LogRecord, bytes: number): void {
    const { number, version } = record;
    this.#rows.reserveNumber(number);
    const existing = this.byNumber(number);
    if (existing !== undefined && version <= existing.assigned.version) return;
    if (record.kind === "state" && version === 1) {
      const { name, state } = record;
      const text = logNameText(name);
      const log = new OpenLog(number, text, { assigned: state, stored: undefined });
      const former = this.find(name);
      if (former !== undefined && former.number < number) this.#removeFormer(former);
      this.add(log);
      this.#show(log, state, bytes);
      return;
    }
    if (existing === undefined) return; // the log has been removed from the database
    if (version !== existing.assigned.version + 1) throw missingChange(number, version);
    if (record.kind === "state") this.#show(existing, record.state, bytes);
    else this.#replayAppend(existing, record, bytes);
  }

  /**
   * Removes a log whose name now belongs to a later log. Retention removes a stream's log without a
   * WAL record, so a power loss may have undone the removal of such a log.
   */
  #removeFormer(log: OpenLog): void {
    const { assigned } = log;
    if (assigned.status !== "removed") this.#show(log, { ...assigned, status: "removed" }, 0);
  }

  #replayAppend(log: OpenLog, record: AppendRecord, bytes: number): void {
    const frame = record.frame.length === 0 ? undefined : frameOf(record.frame);
    const { position } = log.assigned;
    const checkBefore = checkBeforeNext(log.assigned);
    const pending = frame && { start: position, checkBefore, bytes: frame.bytes };
    this.#show(log, stateAfter(log.assigned, frame, record), bytes, pending);
    const { producer } = record;
    if (producer === undefined) return;
    const { id, forgotten } = producer;
    this.assignProducer(log, id, producerState(producer));
    if (forgotten !== undefined) this.assignProducer(log, forgotten, undefined);
    for (const changed of [id, forgotten]) this.commitProducer(log, changed);
  }

  #show(log: OpenLog, state: LogState, bytes: number, frame?: FrameRun): void {
    this.retain(log, bytes);
    log.assigned = state;
    log.show(state, frame, bytes);
  }

  commitProducer(log: OpenLog, id: string | undefined): void {
    const entry = id === undefined ? undefined : log.changes?.producers?.get(id);
    if (entry !== undefined) entry.shown = entry.assigned;
  }
}

/**
 * Returns false if the log has been removed or belongs to an ended stream of a channel. The head of
 * such a log need not be kept in memory.
 */
function mayChange({ text, assigned }: OpenLog): boolean {
  const isEnded = assigned.closed !== undefined && logNameOf(text).kind === "channel";
  return assigned.status !== "removed" && !isEnded;
}

export function producerState({ epoch, number, seenMs }: LogProducerChange): ProducerState {
  return { epoch, number, seenMs };
}

function missingChange(number: number, version: number): BrokerError {
  return new BrokerError("internal", {
    message: `The WAL lacks changes to the log with the number ${number} that precede change ${version}. Restore the data folder from a backup.`,
  });
}

const NO_FRAMES = Buffer.alloc(0);

function emptyRun({ position, check }: LogOffset): FrameRun {
  return { start: position, checkBefore: check, bytes: NO_FRAMES };
}

/**
 * Returns the part of the run that begins at the offset, or `undefined` if no frame begins or ends
 * at the offset.
 */
function runAfter(run: FrameRun, offset: LogOffset): FrameRun | undefined {
  let { checkBefore } = run;
  let at = 0;
  const end = offset.position - run.start;
  while (at < end) {
    const size = frameSize(run.bytes, at);
    if (size === undefined) return undefined;
    at += size;
    if (at > run.bytes.length) return undefined;
    checkBefore = run.bytes.readUInt32LE(at - CHECK_BYTES);
  }
  const check = offset.position === 0 ? LOG_START.check : checkBefore;
  if (at !== end || check !== offset.check) return undefined;
  return { start: offset.position, checkBefore, bytes: run.bytes.subarray(at) };
}

/**
 * Returns the total size of the whole frames at the start of the run that fit in `maxBytes`. With
 * `isFirst`, the first frame is always included.
 */
function wholeFramesWithin(run: Buffer, maxBytes: number, isFirst: boolean): number {
  if (run.length <= maxBytes) return run.length;
  let end = 0;
  for (;;) {
    const size = frameSize(run, end);
    if (size === undefined || end + size > run.length) return end;
    const fits = end + size <= maxBytes || (isFirst && end === 0);
    if (!fits) return end;
    end += size;
  }
}
