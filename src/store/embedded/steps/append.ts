// The port's `append`: is it a retry, may the sender send, then seq and id are assigned; shown,
// published and answered once the turn's write is durable. Owns the turn, and the counts. Hot: no
// await and no closure per message.

import { BrokerError } from "../../../broker/errors.ts";
import type { Message } from "../../../broker/model.ts";
import type {
  AppendResult,
  Clock,
  ClusterEvent,
  MessageDraft,
  Publisher,
} from "../../../broker/ports.ts";
import { toBrokerError } from "../../lifecycle.ts";
import type { Memtable, MemtableRecord } from "../engine/memtable.ts";
import { peekId } from "../engine/record.ts";
import { MAX_KEY_UNITS, MAX_LABEL_UNITS } from "../engine/tables.ts";
import { Turn, type TurnPorts } from "../engine/turn.ts";
import type { Assigner } from "./assigner.ts";
import type { FirstMessage, FirstToCome } from "./dedupe.ts";
import type { Judge } from "./permissions.ts";

/** Counted for a queued message on top of its payload. */
const QUEUED_BYTES = 256;
const MAX_EXPIRE_S = 0xffff_ffff;

/** A call of another kind that takes its turn among the messages. */
export interface QueuedStep {
  /** Assigns what it wants in the batch under way; answers a refusal at once. */
  assign(nowMs: number): void;
  /** All of it is durable: shows, publishes and answers it. */
  commit(publish: (event: ClusterEvent) => void): void;
  /** Rolls back what it assigned, newest first: it was not written. */
  rollBack(): void;
  /** Harmless once it is answered. */
  reject(error: BrokerError): void;
}

/** A call under way. One shape for both kinds. */
interface Call {
  /** Undefined: a message. */
  readonly step: QueuedStep | undefined;
  readonly draft: MessageDraft;
  /** Memory it takes while it is queued, about. */
  readonly bytes: number;
  readonly resolve: (answer: AppendResult) => void;
  readonly reject: (error: BrokerError) => void;
  /** Its own message; undefined while not assigned and for a retry. */
  message: Message | undefined;
  /** Its place in the memtable; undefined when nothing of it is kept. */
  record: MemtableRecord | undefined;
  /** The uncommitted first call that this one repeats. */
  original: MemtableRecord | undefined;
}

interface AppendsParts extends TurnPorts {
  readonly memtable: Memtable;
  readonly assigner: Assigner;
  readonly clock: Clock;
  readonly publisher: Publisher;
  readonly judge: Judge;
}

export class Appends {
  readonly #parts: AppendsParts;
  readonly turn: Turn<Call>;
  #appended = 0;
  #duplicates = 0;

  constructor(parts: AppendsParts) {
    this.#parts = parts;
    this.turn = new Turn(parts, {
      assign: (calls, bytes) => this.#assignAll(calls, bytes),
      commit: (call) => this.#commit(call),
      rollBack: (calls) => this.#rollBack(calls),
    });
  }

  get counts(): { readonly appended: number; readonly duplicates: number } {
    return { appended: this.#appended, duplicates: this.#duplicates };
  }

  /** The memtable has no room for more than is queued. */
  get isFull(): boolean {
    return this.#parts.memtable.isFull(this.turn.queued);
  }

  /** The port's `append`. */
  append(draft: MessageDraft): Promise<AppendResult> {
    const refused = refusal(draft);
    if (refused !== undefined) return Promise.reject(refused);
    if (this.isFull) return Promise.reject(new BrokerError("overloaded"));
    return new Promise((resolve, reject) => {
      this.turn.enqueue({
        step: undefined,
        draft,
        bytes: draft.payload.length + QUEUED_BYTES,
        resolve,
        reject,
        message: undefined,
        record: undefined,
        original: undefined,
      });
    });
  }

  /**
   * Puts a call of another kind, which takes about so many bytes, into the queue; it answers for
   * itself.
   */
  enqueue(step: QueuedStep, bytes: number): void {
    this.turn.enqueue({
      step,
      draft: NO_DRAFT,
      bytes: bytes + QUEUED_BYTES,
      resolve: answersItself,
      reject: (error) => step.reject(error),
      message: undefined,
      record: undefined,
      original: undefined,
    });
  }

  /**
   * What a retry would be answered, without appending anything; undefined: it would be a new one.
   */
  async earlier(
    message: Pick<MessageDraft, "key" | "fromUid" | "clientMsgNo">,
  ): Promise<AppendResult | undefined> {
    const { assigner, clock } = this.#parts;
    const first = assigner.firstOf(message, clock());
    if (first === undefined) return undefined;
    if ("settling" in first) {
      const command = await first.settling;
      return command && { ...command, duplicate: true };
    }
    if ("committed" in first && !first.committed) {
      await this.turn.syncing;
      if (!first.committed) return undefined; // its batch was not written
    }
    return { ...firstMessage(first), duplicate: true };
  }

  #assignAll(calls: readonly Call[], bytes: number): Buffer | undefined {
    const { assigner, clock } = this.#parts;
    const nowMs = clock();
    assigner.begin(bytes);
    for (const call of calls) {
      if (call.step !== undefined) call.step.assign(nowMs);
      else this.#assign(call, nowMs);
    }
    return assigner.frame();
  }

  /** A message whose channel or permission facts cannot be read fails alone. */
  #assign(call: Call, nowMs: number): void {
    try {
      if (this.#isRetry(call, nowMs) || this.#isRefused(call)) return;
      const { message, record } = this.#parts.assigner.assign(call.draft, nowMs);
      call.message = message;
      call.record = record;
    } catch (error) {
      call.reject(toBrokerError(error));
    }
  }

  /** Answers the retry of a committed message, or ties the call to the first one. */
  #isRetry(call: Call, nowMs: number): boolean {
    const first = this.#parts.assigner.firstOf(call.draft, nowMs);
    if (first === undefined) return false;
    if ("settling" in first) void this.#awaitCommand(call, first);
    else if (!("committed" in first)) this.#answerRetry(call, first);
    else if (first.committed) this.#answerRetry(call, first);
    else call.original = first;
    return true;
  }

  /**
   * Answers a call that repeats a command which is not committed; if that is not stored, it is a
   * call of its own.
   */
  async #awaitCommand(call: Call, { settling }: FirstToCome): Promise<void> {
    const command = await settling;
    if (command !== undefined) this.#answerRetry(call, command);
    else this.append(call.draft).then(call.resolve, call.reject);
  }

  #answerRetry(call: Call, first: MemtableRecord | FirstMessage): void {
    this.#duplicates++;
    call.resolve({ ...firstMessage(first), duplicate: true });
  }

  /** Answers a sender who may not send. */
  #isRefused(call: Call): boolean {
    const refused = this.#parts.judge(call.draft);
    if (refused === undefined) return false;
    call.resolve({ messageId: 0, messageSeq: 0, duplicate: false, refused });
    return true;
  }

  #commit(call: Call): void {
    const { draft, message, record, original, step } = call;
    if (step !== undefined) {
      step.commit(this.#publish);
      return;
    }
    if (original !== undefined) this.#answerRetry(call, original);
    if (message === undefined) return;
    if (record !== undefined) this.#parts.memtable.commit(record);
    const { origin, recipients } = draft;
    this.#publish({ kind: "message", message, origin, recipients });
    const { messageId, messageSeq } = message;
    call.resolve({ messageId, messageSeq, duplicate: false });
  }

  readonly #publish = (event: ClusterEvent): void => {
    if (event.kind === "message") this.#appended++;
    this.#parts.publisher.publish(event);
  };

  #rollBack(calls: readonly Call[]): void {
    const { memtable, assigner } = this.#parts;
    for (const { step, record } of calls.toReversed()) {
      step?.rollBack();
      if (record !== undefined) memtable.rollBack(record);
    }
    assigner.failed();
  }
}

/** Stands for the draft of a call that is no message. */
const NO_DRAFT: MessageDraft = {
  key: "",
  channel: { id: "", type: 1 },
  fromUid: "",
  clientMsgNo: "",
  header: { noPersist: true, redDot: false },
  expireS: 0,
  streamNo: undefined,
  tagKey: undefined,
  payload: new Uint8Array(0),
  origin: undefined,
  recipients: undefined,
  permission: "granted",
};

function answersItself(): void {}

function firstMessage(first: MemtableRecord | FirstMessage): FirstMessage {
  const { messageSeq } = first;
  const messageId = "committed" in first ? peekId(first.bytes, first.start) : first.messageId;
  return { messageId, messageSeq };
}

/**
 * What no record or database key can hold: it must not reach a batch, where it would fail others.
 */
function refusal(draft: MessageDraft): BrokerError | undefined {
  if (
    draft.key.length > MAX_KEY_UNITS ||
    draft.channel.id.length > MAX_LABEL_UNITS ||
    draft.fromUid.length > MAX_LABEL_UNITS ||
    draft.clientMsgNo.length > MAX_LABEL_UNITS ||
    (draft.streamNo?.length ?? 0) > MAX_LABEL_UNITS ||
    (draft.tagKey?.length ?? 0) > MAX_LABEL_UNITS ||
    (draft.passthrough?.topic.length ?? 0) > MAX_LABEL_UNITS
  )
    return new BrokerError("too_large");
  const { expireS } = draft;
  if (!Number.isInteger(expireS) || expireS < 0 || expireS > MAX_EXPIRE_S)
    return new BrokerError("bad_request", {
      message: `expire is an integer from 0 to ${MAX_EXPIRE_S}`,
    });
  return undefined;
}
