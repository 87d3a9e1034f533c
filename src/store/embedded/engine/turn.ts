// The queue of calls that write to the WAL. The calls of one event-loop turn, or of part of a long
// turn, form one batch (up to MAX_BATCH_CALLS calls and about MAX_BATCH_BYTES bytes), which is
// written as one frame. With `durability = disk`, the next batch is written only after the previous
// batch is on the disk. A call must never be committed before it is durable, and the order of calls
// must never change.

import { BrokerError } from "../../../broker/errors.ts";
import { TurnTask } from "../../../lib/turn-task.ts";
import { diskFull, isDiskFull } from "./disk-space.ts";
import type { FolderLock } from "./folder-lock.ts";
import type { WalPosition } from "./segment.ts";
import type { Wal } from "./wal.ts";

const MAX_BATCH_CALLS = 1000;
const MAX_BATCH_BYTES = 1024 * 1024;

interface QueuedCall {
  readonly bytes: number;
  reject(error: BrokerError): void;
}

interface TurnSteps<Call> {
  /**
   * Assigns ids and seqs to a batch of about `bytes` bytes. Returns the frame to write, or
   * `undefined` if there is nothing to write.
   */
  assign(calls: readonly Call[], bytes: number): Buffer | undefined;
  /** Called after the call is durable. */
  commit(call: Call): void;
  /** Called if the batch could not be written or synced. Undoes the newest call first. */
  rollBack(calls: readonly Call[]): void;
}

export interface TurnPorts {
  readonly wal: Wal;
  readonly owner: Pick<FolderLock, "assertHeld">;
  readonly synced: boolean;
  readonly onError: (error: Error, what: string) => void;
}

interface BatchCalls<Call> {
  readonly calls: readonly Call[];
  readonly bytes: number;
}

interface WrittenBatch<Call> {
  readonly calls: readonly Call[];
  readonly end: WalPosition;
}

export class Turn<Call extends QueuedCall> {
  readonly #ports: TurnPorts;
  readonly #steps: TurnSteps<Call>;
  #queue: Call[] = [];
  #queuedBytes = 0;
  readonly #task = new TurnTask(() => this.#runTurn());
  #isRunning = false;
  #unsynced: WrittenBatch<Call> | undefined;
  #syncing: Promise<void> | undefined;
  #committedEnd: WalPosition;

  constructor(ports: TurnPorts, steps: TurnSteps<Call>) {
    this.#ports = ports;
    this.#steps = steps;
    this.#committedEnd = ports.wal.position;
  }

  get committedEnd(): WalPosition {
    return this.#committedEnd;
  }

  get queued(): { readonly records: number; readonly bytes: number } {
    return { records: this.#queue.length, bytes: this.#queuedBytes };
  }

  /** True if a batch is waiting for the disk. */
  get isSyncing(): boolean {
    return this.#unsynced !== undefined;
  }

  /** Resolves when the last batch that waited for the disk is committed or rolled back. */
  get syncing(): Promise<void> | undefined {
    return this.#syncing;
  }

  enqueue(call: Call): void {
    this.#queuedBytes += call.bytes;
    this.#queue.push(call);
    this.#schedule();
  }

  async drain(): Promise<void> {
    while (this.#unsynced !== undefined || this.#queue.length > 0) {
      this.#task.cancel();
      this.#runTurn();
      await this.#syncing;
    }
  }

  #schedule(): void {
    if (this.#unsynced === undefined) this.#task.schedule();
  }

  #runTurn(): void {
    // A socket may close during a commit, and its close handler may run this task again.
    if (this.#unsynced !== undefined || this.#isRunning) return;
    this.#isRunning = true;
    try {
      const next = this.#takeBatch();
      if (next.calls.length > 0) this.#writeBatch(next);
    } finally {
      this.#isRunning = false;
    }
    if (this.#queue.length > 0) this.#schedule();
  }

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

  async #sync(batch: WrittenBatch<Call>): Promise<void> {
    try {
      await this.#ports.wal.sync();
      this.#commit(batch);
    } catch (cause) {
      this.#ports.onError(asError(cause), "Could not flush the WAL to the disk");
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
        // The remaining calls of the batch must still be settled.
        this.#ports.onError(asError(cause), "Could not resolve a committed call");
        call.reject(new BrokerError("internal", { cause }));
      }
    }
  }

  #fail(calls: readonly Call[], cause: unknown): void {
    this.#steps.rollBack(calls);
    const error = isDiskFull(cause) ? diskFull(cause) : new BrokerError("unavailable", { cause });
    for (const call of calls) call.reject(error);
  }
}

function asError(cause: unknown): Error {
  return cause instanceof Error ? cause : new Error(String(cause));
}
