// Writes the memtable to the database in the background, in short slices, and deletes the WAL
// segments that are no longer needed. The order of the steps must not change. First, all records
// are committed, in phases (see flush.ts). Then the WAL position is committed. Then the memtable
// drops the records. Old segments are deleted only after these commits are on the disk. After a
// crash between two steps, the records are replayed from the WAL and written again. Writing a
// complete row again does not change it.

import { setImmediate as nextTurn } from "node:timers/promises";
import { isDeepStrictEqual } from "node:util";
import { BrokerError } from "../../../broker/errors.ts";
import type { ChannelKey } from "../../../broker/model.ts";
import type { Clock } from "../../../broker/ports.ts";
import { awaitFlush, commit, fieldsOf } from "./database.ts";
import { assignNumbers, type FlushPorts, finishFlush, phases, startFlush } from "./flush.ts";
import type { ChannelFlush } from "./memtable.ts";
import type { StoredPosition, WalPosition } from "./segment.ts";
import type { Tables } from "./tables.ts";
import type { Wal } from "./wal.ts";

const LOST_WRITE =
  "The database lost a write that it had reported as done. Check the disk, then restart: the WAL still has the lost data";
const STATE = "journal";
const STATE_VERSION = 1;
const MAX_SLICE_MS = 2;
const PUTS_PER_CLOCK_READ = 16;
/** Maximum number of open transactions. With more open transactions, LMDB blocks the event loop. */
const MAX_OPEN_TRANSACTIONS = 2;
const MAX_CHECK_MS = 50;
/**
 * Size of the memtable at which checkpoints become more frequent. Data that is not in the database
 * yet costs time in garbage collection. Above this size, that cost exceeds the time that a longer
 * interval saves.
 */
const BUSY_BYTES = 2 * 1024 * 1024;
/**
 * Fraction of the interval after which a checkpoint is due while the memtable has at least
 * `BUSY_BYTES` bytes or `isFilling` returns true.
 */
const BUSY_SHARE = 1 / 5;
/**
 * Minimum delay before the next check while the memtable is empty. If `intervalMs` is longer, it is
 * used instead. A new record cuts the delay short.
 */
const REST_MS = 1000;

interface CheckpointState {
  /** WAL position up to which the database contains every record. */
  readonly position: StoredPosition;
  readonly lastMessageId: number;
  /** Number and id of each partition's newest event, see `EventLog.state`. */
  readonly events: readonly number[];
}

export function readCheckpointState(tables: Tables): CheckpointState | undefined {
  const stored = tables.meta.get(STATE);
  if (stored === undefined) return undefined;
  const [segment, offset, lastMessageId, synced, boot, events] = fieldsOf(stored, STATE_VERSION);
  return {
    position: {
      segment: Number(segment),
      offset: Number(offset),
      synced: synced === true,
      boot: String(boot),
    },
    lastMessageId: Number(lastMessageId),
    events: (events ?? []) as readonly number[], // as `putCheckpointState` wrote it
  };
}

function putCheckpointState(tables: Tables, state: CheckpointState): void {
  const { position, lastMessageId, events } = state;
  const { segment, offset, synced, boot } = position;
  const value = [STATE_VERSION, segment, offset, lastMessageId, synced, boot, events];
  void tables.meta.put(STATE, value);
}

interface CheckpointPorts extends FlushPorts {
  readonly wal: Wal;
  readonly dedupe: FlushPorts["dedupe"] & {
    isRotationDue(nowMs: number): boolean;
    rotate(nowMs: number): Promise<void>;
  };
  readonly conversationRows: FlushPorts["conversationRows"] & {
    removeStored(flushed: readonly ChannelFlush[], inMemory: (key: ChannelKey) => unknown): void;
  };
  readonly events: FlushPorts["events"] & { state(): readonly number[] };
  readonly appends: {
    readonly turn: {
      readonly committedEnd: WalPosition;
    };
  };
  /** `floor` is the highest message id that may already be in use. */
  readonly ids: { readonly floor: number };
  readonly clock: Clock;
  /**
   * Time between the starts of two checkpoints. The time is multiplied by `BUSY_SHARE` while the
   * memtable has at least `BUSY_BYTES` bytes or `isFilling` returns true.
   */
  readonly intervalMs: number;
  /** Returns true if logs or streams use at least `FILLING_SHARE` of their limits (see open.ts). */
  readonly isFilling: () => boolean;
  readonly onError: (error: Error, what: string) => void;
}

export class Checkpoint {
  readonly #ports: CheckpointPorts;
  readonly #checkMs: number;
  #timer: NodeJS.Timeout | undefined;
  #isResting = false;
  #lastRunAtMs = performance.now();
  #running: Promise<void> | undefined;
  #dropping: Promise<void> | undefined;
  #firstKeptSegment = 0;
  #failing = false;
  #count = 0;

  constructor(ports: CheckpointPorts) {
    this.#ports = ports;
    this.#checkMs = Math.min(ports.intervalMs, MAX_CHECK_MS);
  }

  get isFailing(): boolean {
    return this.#failing;
  }

  get count(): number {
    return this.#count;
  }

  async runFirst(): Promise<void> {
    await this.#flushMemtable(true);
  }

  /** Runs the last checkpoint. Must be called after the last write to the WAL. */
  async runLast(): Promise<void> {
    await this.#flushMemtable(false);
    const { tables, wal, ids, events } = this.#ports;
    const segment = wal.position.segment + 1;
    const state = {
      position: { segment, offset: 0, ...wal.writer },
      lastMessageId: ids.floor,
      events: events.state(),
    };
    await this.#putState(state);
    await awaitFlush(tables);
  }

  start(): void {
    this.#ports.memtable.onFirstRecord(() => {
      if (this.#isResting) this.#checkAfter(this.#checkMs);
    });
    this.#checkAfter(this.#checkMs);
  }

  #checkAfter(delayMs: number): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#check(), delayMs).unref();
    this.#isResting = delayMs > this.#checkMs;
  }

  #check(): void {
    const { memtable, intervalMs } = this.#ports;
    const nowMs = performance.now();
    const isBusy = memtable.bytes >= BUSY_BYTES || this.#ports.isFilling();
    const dueAfterMs = isBusy ? BUSY_SHARE * intervalMs : intervalMs;
    const isDue = nowMs - this.#lastRunAtMs >= dueAfterMs;
    // After a failure, an immediate retry would probably fail too, for example on a full disk.
    const isUrgent = memtable.needsFlush && !this.#failing;
    if (this.#running === undefined && (isDue || isUrgent)) {
      this.#lastRunAtMs = nowMs;
      void this.run();
    }
    this.#checkAfter(memtable.records > 0 ? this.#checkMs : Math.max(REST_MS, intervalMs));
  }

  /** Runs a checkpoint. Never throws: failures are reported, and a later checkpoint tries again. */
  async run(): Promise<void> {
    while (this.#running !== undefined) await this.#running;
    this.#running = this.#attempt();
    try {
      await this.#running;
    } finally {
      this.#running = undefined;
    }
  }

  async close(): Promise<void> {
    clearTimeout(this.#timer);
    this.#isResting = false;
    await this.#running;
    await this.#dropping;
  }

  async #attempt(): Promise<void> {
    try {
      await this.#flushMemtable(false);
      this.#failing = false;
    } catch (error) {
      this.#failing = true;
      // `commit` throws only BrokerError.
      this.#ports.onError(error as Error, "A checkpoint failed and will be retried");
    }
  }

  async #flushMemtable(isFirst: boolean): Promise<void> {
    const { memtable, appends, wal, ids, dedupe, events, clock } = this.#ports;
    const { conversationRows } = this.#ports;
    const nowMs = clock();
    const mustRotate = dedupe.isRotationDue(nowMs);
    if (memtable.records === 0 && !mustRotate && !isFirst) {
      memtable.evictIdle();
      conversationRows.removeStored([], (key) => memtable.peek(key));
      return;
    }
    const state = {
      position: { ...appends.turn.committedEnd, ...wal.writer },
      lastMessageId: ids.floor,
      events: events.state(),
    };
    const flush = startFlush(this.#ports);
    const { channels } = flush;
    if (mustRotate) await dedupe.rotate(nowMs);
    await assignNumbers(this.#ports.rows, channels);
    for (const puts of phases(this.#ports, flush, isFirst)) await this.#putAll(puts);
    await this.#putState(state);
    const finishing = finishFlush(this.#ports, flush);
    while (!advance(finishing)) await nextTurn();
    conversationRows.removeStored(channels, (key) => memtable.peek(key));
    this.#count++;
    this.#dropSegments(state.position);
  }

  /** Writes the state and reads it back, because lmdb can lose a commit on a full disk. */
  async #putState(state: CheckpointState): Promise<void> {
    const { tables } = this.#ports;
    await commit(tables, () => putCheckpointState(tables, state), "flush");
    tables.env.resetReadTxn();
    const stored = readCheckpointState(tables);
    if (!isDeepStrictEqual(stored, state))
      throw tables.space.fail(new BrokerError("unavailable", { message: LOST_WRITE }));
  }

  async #putAll(puts: Generator<void>): Promise<void> {
    const transactions: Promise<void>[] = [];
    const failures: unknown[] = [];
    let isDone = false;
    while (!isDone && failures.length === 0) {
      const step = () => {
        isDone = advance(puts);
      };
      const transaction = commit(this.#ports.tables, step, "flush");
      transactions.push(transaction.catch((error: unknown) => void failures.push(error)));
      await (transactions.length < MAX_OPEN_TRANSACTIONS ? nextTurn() : transactions.shift());
    }
    await Promise.all(transactions);
    if (failures.length > 0) throw failures[0];
  }

  #dropSegments(position: WalPosition): void {
    if (position.segment <= this.#firstKeptSegment) return;
    this.#firstKeptSegment = position.segment;
    const { tables, wal, onError } = this.#ports;
    this.#dropping = awaitFlush(tables)
      .then(() => wal.deleteBefore(position))
      .catch((error: Error) => onError(error, "Could not delete old WAL segments"));
  }
}

function advance(puts: Generator<void>): boolean {
  const stopAt = performance.now() + MAX_SLICE_MS;
  for (;;) {
    for (let i = 0; i < PUTS_PER_CLOCK_READ; i++) if (puts.next().done === true) return true;
    if (performance.now() >= stopAt) return false;
  }
}
