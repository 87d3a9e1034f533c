// Moves the memtable into the database, in the background and in short steps, and deletes the WAL
// it makes superfluous. Owns the timer, the one run under way and the counts. Order is everything:
// records first, in phases (see flush.ts); then, once all of them are committed, the WAL position;
// then the memtable lets go; and only when the disk has all of it are old segments deleted. A crash
// in between means that some records are written again with the same keys and values.

import { setImmediate as nextTurn } from "node:timers/promises";
import type { ChannelKey } from "../../../broker/model.ts";
import type { Clock } from "../../../broker/ports.ts";
import { commit, fieldsOf, flushed } from "./database.ts";
import { type FlushParts, finishFlush, phases, startFlush, takeNumbers } from "./flush.ts";
import type { ChannelFlush } from "./memtable.ts";
import type { WalPosition } from "./segment.ts";
import type { Tables } from "./tables.ts";
import type { Wal } from "./wal.ts";

const STATE = "journal";
const STATE_VERSION = 1;
/** Longest stretch of one event-loop turn. */
const STEP_MS = 2;
/** Records between looks at the time. */
const STEP_RECORDS = 16;
/** With more, LMDB holds up the event loop for tens of milliseconds. */
const STEPS_UNDER_WAY = 2;
/** Time between looks at whether the memtable got heavy before a checkpoint was due. */
const MAX_LOOK_MS = 50;

/** How far the database has the WAL: one stored fact. */
interface CheckpointState {
  /** The database has everything before it. */
  readonly position: WalPosition;
  /** No message id up to here is given again. */
  readonly lastMessageId: number;
}

/** Undefined: there was no checkpoint yet. */
export function readCheckpointState(tables: Tables): CheckpointState | undefined {
  const stored = tables.meta.get(STATE);
  if (stored === undefined) return undefined;
  const [segment, offset, lastMessageId] = fieldsOf(stored, STATE_VERSION);
  return {
    position: { segment: Number(segment), offset: Number(offset) },
    lastMessageId: Number(lastMessageId),
  };
}

/** To be called inside `commit`. */
function putCheckpointState(tables: Tables, { position, lastMessageId }: CheckpointState): void {
  const { segment, offset } = position;
  const value = [STATE_VERSION, segment, offset, lastMessageId];
  void tables.meta.put(STATE, value);
}

interface CheckpointParts extends FlushParts {
  readonly wal: Wal;
  readonly dedupe: FlushParts["dedupe"] & {
    isRotationDue(nowMs: number): boolean;
    rotate(nowMs: number): Promise<void>;
  };
  readonly conversationRows: FlushParts["conversationRows"] & {
    /** The rows of the channels are committed. */
    kept(flushed: readonly ChannelFlush[], inMemory: (key: ChannelKey) => unknown): void;
  };
  readonly appends: {
    readonly turn: {
      /** Everything in the WAL before it is committed. */
      readonly committedEnd: WalPosition;
    };
  };
  /** No message id up to `floor` is given again. */
  readonly ids: { readonly floor: number };
  readonly clock: Clock;
  readonly intervalMs: number;
  readonly onError: (error: Error, what: string) => void;
}

export class Checkpoint {
  readonly #parts: CheckpointParts;
  #timer: NodeJS.Timeout | undefined;
  #running: Promise<void> | undefined;
  #dropping: Promise<void> | undefined;
  /** Segments before it are deleted, or being so. */
  #droppedBefore = 0;
  #failing = false;
  #done = 0;

  constructor(parts: CheckpointParts) {
    this.#parts = parts;
  }

  /** The last attempt failed. */
  get failing(): boolean {
    return this.#failing;
  }

  /** Checkpoints completed. */
  get count(): number {
    return this.#done;
  }

  /**
   * The checkpoint of a start: moves what was replayed and leaves the old segments behind. Throws
   * `unavailable`.
   */
  async first(): Promise<void> {
    await this.#move(true);
  }

  /**
   * The checkpoint of an orderly end: afterwards the database, on the disk, has everything and no
   * segment is needed. Throws `unavailable`.
   */
  async last(): Promise<void> {
    await this.#move(false);
    const { tables, wal, ids } = this.#parts;
    const segment = wal.position.segment + 1;
    const state = {
      position: { segment, offset: 0 },
      lastMessageId: ids.floor,
    };
    await commit(tables, () => putCheckpointState(tables, state));
    await flushed(tables);
  }

  /** Runs by itself from now on. */
  start(): void {
    const lookMs = Math.min(this.#parts.intervalMs, MAX_LOOK_MS);
    let last = performance.now();
    this.#timer = setInterval(() => {
      const isDue = performance.now() - last >= this.#parts.intervalMs;
      if (this.#running !== undefined) return;
      const isPressing = this.#parts.memtable.isHeavy && !this.#failing; // a full disk fails at each attempt
      if (!isDue && !isPressing) return;
      last = performance.now();
      void this.run();
    }, lookMs);
    this.#timer.unref();
  }

  /**
   * Moves what is committed now. One at a time; a failure is reported, keeps the memtable and is
   * retried at the next turn of the timer.
   */
  async run(): Promise<void> {
    while (this.#running !== undefined) await this.#running;
    this.#running = this.#attempt();
    try {
      await this.#running;
    } finally {
      this.#running = undefined;
    }
  }

  /** Ends the timer and what is under way. Safe to call twice. */
  async close(): Promise<void> {
    clearInterval(this.#timer);
    await this.#running;
    await this.#dropping;
  }

  async #attempt(): Promise<void> {
    try {
      await this.#move(false);
      this.#failing = false;
    } catch (error) {
      this.#failing = true;
      this.#parts.onError(error as Error, "A checkpoint failed"); // `commit` throws BrokerError only
    }
  }

  async #move(isFirst: boolean): Promise<void> {
    const { tables, memtable, appends, ids, dedupe, clock } = this.#parts;
    const { conversationRows } = this.#parts;
    const nowMs = clock();
    const isRotation = dedupe.isRotationDue(nowMs);
    if (memtable.records === 0 && !isRotation && !isFirst) {
      memtable.forgetIdle();
      conversationRows.kept([], (key) => memtable.peek(key));
      return;
    }
    const state = {
      position: appends.turn.committedEnd,
      lastMessageId: ids.floor,
    };
    const flush = startFlush(this.#parts);
    const { channels } = flush;
    if (isRotation) await dedupe.rotate(nowMs);
    await takeNumbers(this.#parts.rows, channels);
    for (const puts of phases(this.#parts, flush, isFirst)) await this.#putAll(puts);
    await commit(tables, () => putCheckpointState(tables, state));
    const finishing = finishFlush(this.#parts, flush);
    while (!advance(finishing)) await nextTurn();
    conversationRows.kept(channels, (key) => memtable.peek(key));
    this.#done++;
    this.#dropSegments(state.position);
  }

  /**
   * Commits a phase in steps, one per event-loop turn, with a few steps on their way to the disk at
   * a time.
   */
  async #putAll(rest: Generator<void>): Promise<void> {
    const steps: Promise<void>[] = [];
    const failures: unknown[] = [];
    let isDone = false;
    while (!isDone && failures.length === 0) {
      const step = commit(this.#parts.tables, () => {
        isDone = advance(rest);
      });
      steps.push(step.catch((error: unknown) => void failures.push(error)));
      await (steps.length < STEPS_UNDER_WAY ? nextTurn() : steps.shift());
    }
    await Promise.all(steps);
    if (failures.length > 0) throw failures[0];
  }

  #dropSegments(position: WalPosition): void {
    if (position.segment <= this.#droppedBefore) return;
    this.#droppedBefore = position.segment;
    const { tables, wal, onError } = this.#parts;
    this.#dropping = flushed(tables)
      .then(() => wal.dropBefore(position))
      .catch((error: Error) => onError(error, "Old journal segments could not be deleted"));
  }
}

/** Goes on for one step; true at the end. */
function advance(rest: Generator<void>): boolean {
  const stopAt = performance.now() + STEP_MS;
  for (;;) {
    for (let i = 0; i < STEP_RECORDS; i++) if (rest.next().done === true) return true;
    if (performance.now() >= stopAt) return false;
  }
}
