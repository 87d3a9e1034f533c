// The queue of what must be logged: one event-loop turn = one batch = one frame = one WAL write.
// With `durability = disk` the next batch is written when the disk has the one before. Owns the
// queue and the batch waiting for the disk. What a call is, its steps say. Must never commit a call
// before it is durable, and never reorder. Hot: no await and no closure per call.

import { BrokerError } from "../../../broker/errors.ts";
import type { FolderLock } from "./folder-lock.ts";
import type { WalPosition } from "./segment.ts";
import type { Wal } from "./wal.ts";

/**
 * Bounds of a batch, so that its turn of the event loop stays short however long the disk took for
 * the one before.
 */
const MAX_BATCH_CALLS = 1000;
const MAX_BATCH_BYTES = 4 * 1024 * 1024;

/** A call on its way through the queue. */
interface QueuedCall {
  /** Memory it takes while it is queued, about. */
  readonly bytes: number;
  /** Harmless once it is answered. */
  reject(error: BrokerError): void;
}

/** What is done with calls. The turn says when. */
interface TurnSteps<Call> {
  /**
   * Assigns what the calls of a batch, of about so many bytes, want; returns the frame to write,
   * undefined: nothing must be written.
   */
  assign(calls: readonly Call[], bytes: number): Buffer | undefined;
  /** All of it is durable: shows, publishes and answers it. */
  commit(call: Call): void;
  /** Takes back what was assigned to the calls, newest first: it was not written. */
  rollBack(calls: readonly Call[]): void;
}

export interface TurnParts {
  readonly wal: Wal;
  readonly owner: Pick<FolderLock, "assertHeld">;
  /** Wait for the disk before settling. */
  readonly synced: boolean;
  readonly onError: (error: Error, what: string) => void;
}

interface Taken<Call> {
  readonly calls: readonly Call[];
  readonly bytes: number;
}

interface Batch<Call> {
  readonly calls: readonly Call[];
  /** Where the WAL ended after it. */
  readonly end: WalPosition;
}

export class Turn<Call extends QueuedCall> {
  readonly #parts: TurnParts;
  readonly #steps: TurnSteps<Call>;
  #queue: Call[] = [];
  #queuedBytes = 0;
  #turn: NodeJS.Immediate | undefined;
  /** Written, not yet on the disk. */
  #unsynced: Batch<Call> | undefined;
  #syncing: Promise<void> | undefined;
  #committedEnd: WalPosition;

  constructor(parts: TurnParts, steps: TurnSteps<Call>) {
    this.#parts = parts;
    this.#steps = steps;
    this.#committedEnd = parts.wal.position;
  }

  /** Everything in the WAL before it is committed. */
  get committedEnd(): WalPosition {
    return this.#committedEnd;
  }

  /** What waits in the queue. */
  get queued(): { readonly records: number; readonly bytes: number } {
    return { records: this.#queue.length, bytes: this.#queuedBytes };
  }

  /** Resolves when what is written is committed, or rolled back; undefined: it is. */
  get syncing(): Promise<void> | undefined {
    return this.#syncing;
  }

  enqueue(call: Call): void {
    this.#queuedBytes += call.bytes;
    this.#queue.push(call);
    this.#schedule();
  }

  /** Resolves when every call made before it is answered. */
  async drain(): Promise<void> {
    while (this.#unsynced !== undefined || this.#queue.length > 0) {
      if (this.#turn !== undefined) clearImmediate(this.#turn);
      this.#flush();
      await this.#syncing;
    }
  }

  #schedule(): void {
    if (this.#unsynced === undefined) this.#turn ??= setImmediate(this.#flush);
  }

  /** One turn: what is queued becomes one batch. */
  readonly #flush = (): void => {
    this.#turn = undefined;
    if (this.#unsynced !== undefined) return;
    const taken = this.#take();
    if (taken.calls.length > 0) this.#writeBatch(taken);
    if (this.#queue.length > 0) this.#schedule();
  };

  /** The oldest calls of the queue, as many as a batch may have, and the memory they take. */
  #take(): Taken<Call> {
    let bytes = 0;
    let count = 0;
    const most = Math.min(this.#queue.length, MAX_BATCH_CALLS);
    while (count < most && bytes < MAX_BATCH_BYTES) bytes += this.#queue[count++]?.bytes ?? 0;
    this.#queuedBytes -= bytes;
    const calls = this.#queue;
    this.#queue = calls.splice(count);
    return { calls, bytes };
  }

  #writeBatch({ calls, bytes }: Taken<Call>): void {
    const { wal, owner, synced } = this.#parts;
    let frame: Buffer | undefined;
    try {
      owner.assertHeld();
      frame = this.#steps.assign(calls, bytes);
      if (frame !== undefined) wal.write(frame);
    } catch (cause) {
      this.#fail(calls, cause);
      return;
    }
    const batch = { calls, end: wal.position };
    if (!synced || frame === undefined) {
      this.#commit(batch);
      return;
    }
    this.#unsynced = batch;
    this.#syncing = this.#sync(batch);
  }

  /** Commits the batch once the disk has it. */
  async #sync(batch: Batch<Call>): Promise<void> {
    try {
      await this.#parts.wal.sync();
      this.#commit(batch);
    } catch (cause) {
      this.#parts.onError(asError(cause), "The journal could not be synced to disk");
      this.#fail(batch.calls, cause);
    } finally {
      this.#unsynced = undefined;
      if (this.#queue.length > 0) this.#schedule();
    }
  }

  #commit({ calls, end }: Batch<Call>): void {
    this.#committedEnd = end;
    for (const call of calls) {
      try {
        this.#steps.commit(call);
      } catch (cause) {
        this.#parts.onError(asError(cause), "A committed message could not be answered"); // a bug: it must not strand the others
        call.reject(new BrokerError("internal", { cause }));
      }
    }
  }

  /** Rolls a batch back and rejects what is not answered yet. */
  #fail(calls: readonly Call[], cause: unknown): void {
    this.#steps.rollBack(calls);
    const error = new BrokerError("unavailable", { cause });
    for (const call of calls) call.reject(error);
  }
}

function asError(cause: unknown): Error {
  return cause instanceof Error ? cause : new Error(String(cause));
}
