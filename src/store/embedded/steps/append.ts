// The path of a message through the store: queue → assign → one WAL write per event-loop turn → settle (show to reads, publish, answer).
// With `durability = disk` the next batch is written when the disk has the one before. Owns the queue and the batch waiting for the disk. Must
// never answer or publish before the batch is durable, and never reorder a channel. Hot: no await and no closure per message.

import { BrokerError } from "../../../broker/errors.ts";
import type {
  Appended,
  Clock,
  ClusterEvent,
  MessageDraft,
  Publisher,
} from "../../../broker/ports.ts";
import type { FolderLock } from "../engine/folder-lock.ts";
import type { Memtable, MemtableRecord } from "../engine/memtable.ts";
import type { Wal } from "../engine/wal.ts";
import {
  type Call,
  messageCall,
  type QueuedStep,
  refusal,
  stepCall,
} from "./append-call.ts";
import type { Assigner } from "./assigner.ts";
import type { FirstToCome } from "./dedupe.ts";
import type { Judge } from "./permissions.ts";

/** Counted for a queued message on top of its payload. */
const QUEUED_BYTES = 256;
/** Bounds of a batch, so that its turn of the event loop stays short however long the disk took for the one before. */
const MAX_BATCH_CALLS = 1000;
const MAX_BATCH_BYTES = 4 * 1024 * 1024;

interface Taken {
  readonly calls: readonly Call[];
  readonly bytes: number;
}

interface Batch {
  readonly calls: readonly Call[];
  /** Where the WAL ended after it. */
  readonly end: Wal["position"];
}

interface AppendsParts {
  readonly memtable: Memtable;
  readonly wal: Wal;
  readonly owner: Pick<FolderLock, "assertHeld">;
  readonly assigner: Assigner;
  readonly clock: Clock;
  readonly publisher: Publisher;
  readonly judge: Judge;
  /** Wait for the disk before settling. */
  readonly synced: boolean;
  readonly onError: (error: Error, what: string) => void;
}

export class Appends {
  readonly #parts: AppendsParts;
  #queue: Call[] = [];
  #queuedBytes = 0;
  #turn: NodeJS.Immediate | undefined;
  /** Written, not yet on the disk. */
  #unsynced: Batch | undefined;
  /** Resolves when it is settled or rolled back. */
  #syncing: Promise<void> | undefined;
  #settledEnd: Wal["position"];
  #appended = 0;
  #duplicates = 0;

  constructor(parts: AppendsParts) {
    this.#parts = parts;
    this.#settledEnd = parts.wal.position;
  }

  /** Everything in the WAL before it is settled. */
  get settledEnd(): Wal["position"] {
    return this.#settledEnd;
  }

  get counts(): { readonly appended: number; readonly duplicates: number } {
    return { appended: this.#appended, duplicates: this.#duplicates };
  }

  /** The memtable has no room for more than is queued. */
  get isFull(): boolean {
    const queued = { records: this.#queue.length, bytes: this.#queuedBytes };
    return this.#parts.memtable.isFull(queued);
  }

  /** The port's `append`. */
  append(draft: MessageDraft): Promise<Appended> {
    const refused = refusal(draft);
    if (refused !== undefined) return Promise.reject(refused);
    if (this.isFull) return Promise.reject(new BrokerError("overloaded"));
    return new Promise((resolve, reject) => {
      const bytes = draft.payload.length + QUEUED_BYTES;
      this.#enqueue(messageCall(draft, bytes, { resolve, reject }));
    });
  }

  /** Puts a call of another kind, which takes about so many bytes, into the queue; it answers for itself. */
  enqueue(step: QueuedStep, bytes: number): void {
    this.#enqueue(stepCall(step, bytes + QUEUED_BYTES));
  }

  #enqueue(call: Call): void {
    this.#queuedBytes += call.bytes;
    this.#queue.push(call);
    this.#schedule();
  }

  #schedule(): void {
    if (this.#unsynced === undefined) this.#turn ??= setImmediate(this.#flush);
  }

  /** What a retry would be answered, without appending anything; undefined: it would be a new one. */
  async earlier(
    message: Pick<MessageDraft, "key" | "fromUid" | "clientMsgNo">,
  ): Promise<Appended | undefined> {
    const { assigner, clock } = this.#parts;
    const first = assigner.firstOf(message, clock());
    if (first === undefined) return undefined;
    if ("settling" in first) {
      const command = await first.settling;
      return command && { ...command, duplicate: true };
    }
    if ("settled" in first && !first.settled) {
      await this.#syncing;
      if (!first.settled) return undefined; // its batch was not written
    }
    const { messageId, messageSeq } = first;
    return { messageId, messageSeq, duplicate: true };
  }

  /** Records that are assigned and not settled. */
  *unsettled(): Iterable<MemtableRecord> {
    for (const { record } of this.#unsynced?.calls ?? [])
      if (record !== undefined) yield record;
  }

  /** Resolves when every call made before it is answered. */
  async drain(): Promise<void> {
    while (this.#unsynced !== undefined || this.#queue.length > 0) {
      if (this.#turn !== undefined) clearImmediate(this.#turn);
      this.#flush();
      await this.#syncing;
    }
  }

  /** One turn: what is queued becomes one batch. */
  readonly #flush = (): void => {
    this.#turn = undefined;
    if (this.#unsynced !== undefined) return;
    const taken = this.#take();
    if (taken.calls.length > 0) this.#commit(taken);
    if (this.#queue.length > 0) this.#schedule();
  };

  /** The oldest calls of the queue, as many as a batch may have, and the memory they take. */
  #take(): Taken {
    let bytes = 0;
    let count = 0;
    const most = Math.min(this.#queue.length, MAX_BATCH_CALLS);
    while (count < most && bytes < MAX_BATCH_BYTES)
      bytes += this.#queue[count++]?.bytes ?? 0;
    this.#queuedBytes -= bytes;
    const calls = this.#queue;
    this.#queue = calls.splice(count);
    return { calls, bytes };
  }

  #commit({ calls, bytes }: Taken): void {
    const { wal, owner, assigner, synced } = this.#parts;
    let isWritten: boolean;
    try {
      owner.assertHeld();
      assigner.begin(bytes);
      this.#assignAll(calls);
      isWritten = this.#write();
    } catch (cause) {
      assigner.failed();
      this.#fail(calls, cause);
      return;
    }
    const batch = { calls, end: wal.position };
    if (!synced || !isWritten) {
      this.#settle(batch);
      return;
    }
    this.#unsynced = batch;
    this.#syncing = this.#sync(batch);
  }

  #assignAll(calls: readonly Call[]): void {
    const { assigner, clock } = this.#parts;
    const nowMs = clock();
    for (const call of calls) {
      const { draft, step } = call;
      if (step !== undefined) {
        step.assign(nowMs);
        call.record = step.record;
        continue;
      }
      if (this.#isRetry(call, nowMs)) continue;
      if (this.#isRefused(call)) continue;
      const { message, record } = assigner.assign(draft, nowMs);
      call.message = message;
      call.record = record;
    }
  }

  /** Answers a sender who may not send; one whose facts cannot be read fails alone. */
  #isRefused(call: Call): boolean {
    try {
      const refused = this.#parts.judge(call.draft);
      if (refused === undefined) return false;
      call.resolve({ messageId: 0, messageSeq: 0, duplicate: false, refused });
    } catch (cause) {
      call.reject(new BrokerError("internal", { cause }));
    }
    return true;
  }

  /** Answers the retry of a settled message, or ties the call to the first one. */
  #isRetry(call: Call, nowMs: number): boolean {
    const first = this.#parts.assigner.firstOf(call.draft, nowMs);
    if (first === undefined) return false;
    if ("settling" in first) void this.#awaitCommand(call, first);
    else if (!("settled" in first)) this.#answerRetry(call, first);
    else if (first.settled) this.#answerRetry(call, first);
    else call.original = first;
    return true;
  }

  /** Answers a call that repeats a command which is not settled; when that comes to nothing, it is a call of its own. */
  async #awaitCommand(call: Call, { settling }: FirstToCome): Promise<void> {
    const command = await settling;
    if (command !== undefined) this.#answerRetry(call, command);
    else this.append(call.draft).then(call.resolve, call.reject);
  }

  /** False: there was nothing to write. */
  #write(): boolean {
    const frame = this.#parts.assigner.frame();
    if (frame === undefined) return false;
    this.#parts.wal.write(frame);
    return true;
  }

  /** Settles the batch once the disk has it. */
  async #sync(batch: Batch): Promise<void> {
    try {
      await this.#parts.wal.sync();
      this.#settle(batch);
    } catch (cause) {
      this.#parts.onError(
        asError(cause),
        "The journal could not be synced to disk",
      );
      this.#fail(batch.calls, cause);
    } finally {
      this.#unsynced = undefined;
      if (this.#queue.length > 0) this.#schedule();
    }
  }

  #settle(batch: Batch): void {
    this.#settledEnd = batch.end;
    for (const call of batch.calls) {
      try {
        this.#settleCall(call);
      } catch (cause) {
        this.#parts.onError(
          asError(cause),
          "A committed message could not be settled",
        ); // a bug: it must not strand the others
        call.reject(new BrokerError("internal", { cause }));
      }
    }
  }

  #settleCall(call: Call): void {
    const { draft, message, record, original, step } = call;
    if (step !== undefined) {
      if (record !== undefined) this.#appended++;
      step.settle(this.#tell);
      return;
    }
    if (original !== undefined) this.#answerRetry(call, original);
    if (message === undefined) return;
    if (record !== undefined) this.#parts.memtable.settle(record);
    const { origin, recipients } = draft;
    this.#tell({ kind: "message", message, origin, recipients });
    this.#appended++;
    const { messageId, messageSeq } = message;
    call.resolve({ messageId, messageSeq, duplicate: false });
  }

  readonly #tell = (event: ClusterEvent): void => {
    try {
      this.#parts.publisher.publish(event);
    } catch (error) {
      this.#parts.onError(
        asError(error),
        "A stored message could not be published",
      );
    }
  };

  #answerRetry(
    call: Call,
    first: { readonly messageId: number; readonly messageSeq: number },
  ): void {
    this.#duplicates++;
    const { messageId, messageSeq } = first;
    call.resolve({ messageId, messageSeq, duplicate: true });
  }

  /** Rolls a batch back, newest first, and rejects what is not answered yet. */
  #fail(calls: readonly Call[], cause: unknown): void {
    for (const call of calls.toReversed()) {
      call.step?.rollBack();
      const record = call.record ?? call.step?.record;
      if (record !== undefined) this.#parts.memtable.rollBack(record);
    }
    const error = new BrokerError("unavailable", { cause });
    for (const call of calls) call.reject(error);
  }
}

function asError(cause: unknown): Error {
  return cause instanceof Error ? cause : new Error(String(cause));
}
