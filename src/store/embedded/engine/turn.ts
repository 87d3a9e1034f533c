// The queue of calls that write to the WAL. The calls of one event-loop turn are one batch, one
// frame and one write. With `durability = disk` the next batch is written only after the disk has
// the batch before it. Owns the queue and the batch that waits for the disk. The callers decide
// what a call does (`TurnSteps`). Must never commit a call before it is durable, and must never
// change the order of calls. Hot path: no await and no closure per call.

import { BrokerError } from "../../../broker/errors.ts";
import { diskFull, isDiskFull } from "./disk-space.ts";
import type { FolderLock } from "./folder-lock.ts";
import type { WalPosition } from "./segment.ts";
import type { Wal } from "./wal.ts";

/**
 * Maximum number of calls and bytes in a batch. These limits keep the batch's event-loop turn short
 * even if many calls were queued while the disk was slow.
 */
const MAX_BATCH_CALLS = 1000;
const MAX_BATCH_BYTES = 4 * 1024 * 1024;

/** A call that waits in the queue. */
interface QueuedCall {
  /** Approximate number of bytes that the call occupies while it is queued. */
  readonly bytes: number;
  /** Rejects the call. Has no effect if the call was already answered. */
  reject(error: BrokerError): void;
}

/** Callbacks that do the work of calls. `Turn` decides when they are called. */
interface TurnSteps<Call> {
  /**
   * Assigns seqs and ids to the calls of a batch. `bytes` is their approximate size. Returns the
   * frame to write, or `undefined` if there is nothing to write.
   */
  assign(calls: readonly Call[], bytes: number): Buffer | undefined;
  /**
   * Makes the call visible to reads, publishes its events and answers it. Called once it is
   * durable.
   */
  commit(call: Call): void;
  /** Undoes `assign` for the calls of a batch that was not written, newest call first. */
  rollBack(calls: readonly Call[]): void;
}

export interface TurnPorts {
  readonly wal: Wal;
  readonly owner: Pick<FolderLock, "assertHeld">;
  /** True if a batch is committed only after the disk has it. */
  readonly synced: boolean;
  readonly onError: (error: Error, what: string) => void;
}

/** The calls that become the next batch, and their approximate size. */
interface BatchCalls<Call> {
  readonly calls: readonly Call[];
  readonly bytes: number;
}

/** A batch that is in the WAL. */
interface WrittenBatch<Call> {
  readonly calls: readonly Call[];
  /** End of the batch's frame in the WAL. */
  readonly end: WalPosition;
}

/** Queue that turns calls into batches and writes each batch as one frame. */
export class Turn<Call extends QueuedCall> {
  readonly #ports: TurnPorts;
  readonly #steps: TurnSteps<Call>;
  #queue: Call[] = [];
  #queuedBytes = 0;
  #scheduled: NodeJS.Immediate | undefined;
  /** Batch that is written but not yet on the disk. */
  #unsynced: WrittenBatch<Call> | undefined;
  #syncing: Promise<void> | undefined;
  #committedEnd: WalPosition;

  constructor(ports: TurnPorts, steps: TurnSteps<Call>) {
    this.#ports = ports;
    this.#steps = steps;
    this.#committedEnd = ports.wal.position;
  }

  /** Position in the WAL before which every record is committed. */
  get committedEnd(): WalPosition {
    return this.#committedEnd;
  }

  /** Number and approximate size of the queued calls. */
  get queued(): { readonly records: number; readonly bytes: number } {
    return { records: this.#queue.length, bytes: this.#queuedBytes };
  }

  /**
   * Resolves when the written batch is committed or rolled back. `undefined` if no batch waits for
   * the disk.
   */
  get syncing(): Promise<void> | undefined {
    return this.#syncing;
  }

  enqueue(call: Call): void {
    this.#queuedBytes += call.bytes;
    this.#queue.push(call);
    this.#schedule();
  }

  /** Waits until every queued call is answered. */
  async drain(): Promise<void> {
    while (this.#unsynced !== undefined || this.#queue.length > 0) {
      if (this.#scheduled !== undefined) clearImmediate(this.#scheduled);
      this.#runTurn();
      await this.#syncing;
    }
  }

  #schedule(): void {
    if (this.#unsynced === undefined) this.#scheduled ??= setImmediate(this.#runTurn);
  }

  /** Makes one batch of the queued calls and writes it. */
  readonly #runTurn = (): void => {
    this.#scheduled = undefined;
    if (this.#unsynced !== undefined) return;
    const next = this.#takeBatch();
    if (next.calls.length > 0) this.#writeBatch(next);
    if (this.#queue.length > 0) this.#schedule();
  };

  /** Removes the oldest calls from the queue, up to the limits of a batch. */
  #takeBatch(): BatchCalls<Call> {
    let bytes = 0;
    let count = 0;
    const maxCount = Math.min(this.#queue.length, MAX_BATCH_CALLS);
    while (count < maxCount && bytes < MAX_BATCH_BYTES) bytes += this.#queue[count++]?.bytes ?? 0;
    this.#queuedBytes -= bytes;
    const calls = this.#queue;
    this.#queue = calls.splice(count);
    return { calls, bytes };
  }

  #writeBatch({ calls, bytes }: BatchCalls<Call>): void {
    const { wal, owner, synced } = this.#ports;
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

  /** Waits for the disk, then commits the batch. */
  async #sync(batch: WrittenBatch<Call>): Promise<void> {
    try {
      await this.#ports.wal.sync();
      this.#commit(batch);
    } catch (cause) {
      this.#ports.onError(asError(cause), "The WAL could not be flushed to disk");
      this.#fail(batch.calls, cause);
    } finally {
      this.#unsynced = undefined;
      if (this.#queue.length > 0) this.#schedule();
    }
  }

  #commit({ calls, end }: WrittenBatch<Call>): void {
    this.#committedEnd = end;
    for (const call of calls) {
      try {
        this.#steps.commit(call);
      } catch (cause) {
        // Only a bug can cause this. The remaining calls of the batch must still be answered.
        this.#ports.onError(asError(cause), "A committed call could not be answered");
        call.reject(new BrokerError("internal", { cause }));
      }
    }
  }

  /** Rolls a batch back and rejects its calls that are not answered yet. */
  #fail(calls: readonly Call[], cause: unknown): void {
    this.#steps.rollBack(calls);
    const error = isDiskFull(cause) ? diskFull(cause) : new BrokerError("unavailable", { cause });
    for (const call of calls) call.reject(error);
  }
}

function asError(cause: unknown): Error {
  return cause instanceof Error ? cause : new Error(String(cause));
}
