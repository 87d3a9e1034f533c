// The path of a message through the store: queue → place → one journal write per event-loop turn → settle (show to reads, publish, answer).
// Owns the queue and the batches waiting for the disk. Must never answer or publish before the batch is durable, and never reorder a
// channel. Hot: no await and no closure per message.

import { BrokerError } from "../../broker/errors.ts";
import type { Message } from "../../broker/model.ts";
import type {
  Appended,
  Clock,
  MessageDraft,
  Publisher,
} from "../../broker/ports.ts";
import type { Journal } from "./journal.ts";
import type { Placing } from "./placing.ts";
import type { JournalPosition } from "./segment.ts";
import type { Tail, TailRecord } from "./tail.ts";

/** Longest key of a channel, and longest id or label: any two fit a database key (1978 bytes). Edges refuse far shorter ones. */
const MAX_KEY_UNITS = 603;
const MAX_LABEL_UNITS = 300;
const MAX_EXPIRE_S = 0xffff_ffff;
/** Counted for a queued message on top of its payload. */
const QUEUED_BYTES = 256;

/** A call under way. */
interface Call {
  readonly draft: MessageDraft;
  readonly resolve: (answer: Appended) => void;
  readonly reject: (error: BrokerError) => void;
  /** Its own message; undefined while not placed and for a retry. */
  message: Message | undefined;
  /** Its place in the tail; undefined when nothing of it is kept. */
  record: TailRecord | undefined;
  /** The unsettled first call that this one repeats. */
  original: TailRecord | undefined;
}

interface Batch {
  readonly calls: readonly Call[];
  /** Where the journal ended after it. */
  readonly end: JournalPosition;
}

export interface AppendsParts {
  readonly tail: Tail;
  readonly journal: Journal;
  readonly placing: Placing;
  readonly clock: Clock;
  readonly publisher: Publisher;
  /** Wait for the disk before settling. */
  readonly synced: boolean;
  readonly onProblem: (error: Error, what: string) => void;
}

export class Appends {
  readonly #parts: AppendsParts;
  #queue: Call[] = [];
  #queuedBytes = 0;
  #turn: NodeJS.Immediate | undefined;
  /** Written, not yet on the disk; oldest first. */
  readonly #unsynced: Batch[] = [];
  #syncing: Promise<void> | undefined;
  #settledEnd: JournalPosition;
  #appended = 0;
  #duplicates = 0;

  constructor(parts: AppendsParts) {
    this.#parts = parts;
    this.#settledEnd = parts.journal.position;
  }

  /** Everything in the journal before it is settled. */
  get settledEnd(): JournalPosition {
    return this.#settledEnd;
  }

  get counts(): { readonly appended: number; readonly duplicates: number } {
    return { appended: this.#appended, duplicates: this.#duplicates };
  }

  /** The port's `append`. */
  append(draft: MessageDraft): Promise<Appended> {
    const refused = refusal(draft);
    if (refused !== undefined) return Promise.reject(refused);
    const queued = { records: this.#queue.length, bytes: this.#queuedBytes };
    if (this.#parts.tail.isFull(queued))
      return Promise.reject(new BrokerError("overloaded"));
    return new Promise((resolve, reject) => {
      this.#queuedBytes += draft.payload.length + QUEUED_BYTES;
      this.#queue.push({
        draft,
        resolve,
        reject,
        message: undefined,
        record: undefined,
        original: undefined,
      });
      this.#turn ??= setImmediate(this.#flush);
    });
  }

  /** The port's `earlier`. */
  async earlier(
    message: Pick<MessageDraft, "key" | "fromUid" | "clientMsgNo">,
  ): Promise<Appended | undefined> {
    const { placing, clock } = this.#parts;
    const first = placing.firstOf(message, clock());
    if (first === undefined) return undefined;
    if ("settled" in first && !first.settled) {
      await this.#syncing;
      if (!first.settled) return undefined; // it came to nothing
    }
    const { messageId, messageSeq } = first;
    return { messageId, messageSeq, duplicate: true };
  }

  /** Records that are placed and not settled. */
  *unsettled(): Iterable<TailRecord> {
    for (const { calls } of this.#unsynced)
      for (const { record } of calls) if (record !== undefined) yield record;
  }

  /** Resolves when every call made before it is answered. */
  async drain(): Promise<void> {
    if (this.#turn !== undefined) clearImmediate(this.#turn);
    this.#flush();
    await this.#syncing;
  }

  /** One turn: everything queued becomes one batch. */
  readonly #flush = (): void => {
    const { journal, placing, synced } = this.#parts;
    const calls = this.#queue;
    this.#queue = [];
    this.#queuedBytes = 0;
    this.#turn = undefined;
    if (calls.length === 0) return;
    try {
      this.#placeAll(calls);
      this.#write(calls);
    } catch (cause) {
      placing.failed();
      this.#fail(calls, cause);
      return;
    }
    const batch = { calls, end: journal.position };
    if (!synced) {
      this.#settle(batch);
      return;
    }
    this.#unsynced.push(batch);
    this.#syncing ??= this.#syncAll();
  };

  #placeAll(calls: readonly Call[]): void {
    const { placing, clock } = this.#parts;
    const nowMs = clock();
    placing.begin();
    for (const call of calls) {
      const { draft } = call;
      if (draft.dedupe && this.#isRetry(call, nowMs)) continue;
      const { message, record } = placing.place(draft, nowMs);
      call.message = message;
      call.record = record;
    }
  }

  /** Answers the retry of a settled message, or ties the call to the first one. */
  #isRetry(call: Call, nowMs: number): boolean {
    const first = this.#parts.placing.firstOf(call.draft, nowMs);
    if (first === undefined) return false;
    if (!("settled" in first)) this.#answerRetry(call, first);
    else if (first.settled) this.#answerRetry(call, first);
    else call.original = first;
    return true;
  }

  #write(calls: readonly Call[]): void {
    const frame = this.#parts.placing.frame();
    if (frame === undefined) return;
    this.#parts.journal.write(frame);
    const kept = Buffer.from(frame);
    for (const { record } of calls)
      if (record !== undefined) record.bytes = kept;
  }

  /** Syncs and settles until nothing is unsynced; what is written meanwhile shares the next sync. */
  async #syncAll(): Promise<void> {
    try {
      while (this.#unsynced.length > 0) {
        const count = this.#unsynced.length;
        await this.#parts.journal.sync();
        for (const batch of this.#unsynced.splice(0, count))
          this.#settle(batch);
      }
    } catch (cause) {
      this.#parts.onProblem(asError(cause), "journal sync");
      for (const batch of this.#unsynced.splice(0).reverse())
        this.#fail(batch.calls, cause);
    } finally {
      this.#syncing = undefined;
    }
  }

  #settle(batch: Batch): void {
    this.#settledEnd = batch.end;
    for (const call of batch.calls) {
      const { message, record, original } = call;
      if (original !== undefined) this.#answerRetry(call, original);
      if (message === undefined) continue;
      if (record !== undefined) this.#parts.tail.settle(record);
      this.#publish(call.draft, message);
      this.#appended++;
      const { messageId, messageSeq } = message;
      call.resolve({ messageId, messageSeq, duplicate: false });
    }
  }

  #publish({ origin, recipients }: MessageDraft, message: Message): void {
    try {
      this.#parts.publisher.publish({
        kind: "message",
        message,
        origin,
        recipients,
      });
    } catch (error) {
      this.#parts.onProblem(asError(error), "publish");
    }
  }

  #answerRetry(
    call: Call,
    first: { readonly messageId: number; readonly messageSeq: number },
  ): void {
    this.#duplicates++;
    const { messageId, messageSeq } = first;
    call.resolve({ messageId, messageSeq, duplicate: true });
  }

  /** Takes a batch back, newest first, and rejects what is not answered yet. */
  #fail(calls: readonly Call[], cause: unknown): void {
    for (const { record } of calls.toReversed())
      if (record !== undefined) this.#parts.tail.unplace(record);
    const error = new BrokerError("unavailable", { cause });
    for (const call of calls) call.reject(error);
  }
}

/** What no record or database key can hold: it must not reach a batch, where it would fail others. */
function refusal(draft: MessageDraft): BrokerError | undefined {
  if (
    draft.key.length > MAX_KEY_UNITS ||
    draft.channel.id.length > MAX_LABEL_UNITS ||
    draft.fromUid.length > MAX_LABEL_UNITS ||
    draft.clientMsgNo.length > MAX_LABEL_UNITS ||
    (draft.streamNo?.length ?? 0) > MAX_LABEL_UNITS ||
    (draft.tagKey?.length ?? 0) > MAX_LABEL_UNITS
  )
    return new BrokerError("too_large");
  const { expireS } = draft;
  if (!Number.isInteger(expireS) || expireS < 0 || expireS > MAX_EXPIRE_S)
    return new BrokerError("bad_request", {
      message: `expire is an integer from 0 to ${MAX_EXPIRE_S}`,
    });
  return undefined;
}

function asError(cause: unknown): Error {
  return cause instanceof Error ? cause : new Error(String(cause));
}
