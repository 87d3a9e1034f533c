// Appends messages (the port's `append`): recognises retries, checks the sender's permission and
// assigns seq and id. Once its batch is durable, a message becomes visible and is published, and
// its call is resolved. Hot path: no await per message.

import { BrokerError } from "../../../broker/errors.ts";
import { type ChannelKey, MAX_EXPIRE_S, type Message } from "../../../broker/model.ts";
import type {
  AppendResult,
  Clock,
  ClusterEvent,
  MessageDraft,
  Publisher,
} from "../../../broker/ports.ts";
import { toBrokerError } from "../../lifecycle.ts";
import { type DiskSpace, diskFull } from "../engine/disk-space.ts";
import type { Memtable, MemtableRecord } from "../engine/memtable.ts";
import { MAX_KEY_UNITS, MAX_LABEL_UNITS } from "../engine/tables.ts";
import { Turn, type TurnPorts } from "../engine/turn.ts";
import type { Assigner, RepeatableDraft } from "./assigner.ts";
import {
  type FirstMessage,
  firstMessage,
  hasOtherPayload,
  type PendingCommand,
  type RememberedMessage,
} from "./dedupe.ts";
import type { PermissionCheck } from "./permissions.ts";

const QUEUED_BYTES = 256;

/** A call that is not a message, for example a stream event, but is queued with the messages. */
export interface QueuedStep {
  assign(nowMs: number): void;
  /** Called after all changes of the call are durable. */
  commit(publish: (event: ClusterEvent) => void): void;
  /** Called if the batch fails. Undoes the changes in reverse order. */
  rollBack(): void;
  /** Rejects the call. Must not use `this`. */
  readonly reject: (error: BrokerError) => void;
}

/**
 * A queued call. The objects of messages and of other calls have the same shape, so that property
 * access is fast.
 */
interface PendingCall {
  /** `undefined` if the call is a message. */
  readonly step: QueuedStep | undefined;
  readonly draft: MessageDraft;
  readonly bytes: number;
  readonly resolve: (answer: AppendResult) => void;
  readonly reject: (error: BrokerError) => void;
  /** `undefined` until the message has its id. Always `undefined` for calls without a message. */
  message: Message | undefined;
  /** Record of the message, or `undefined` if there is no record. */
  record: MemtableRecord | undefined;
  /** Record of the uncommitted message that this call repeats, or `undefined`. */
  original: MemtableRecord | undefined;
}

interface AppendsPorts extends TurnPorts {
  readonly memtable: Memtable;
  readonly space: Pick<DiskSpace, "isFull">;
  readonly assigner: Assigner;
  readonly clock: Clock;
  readonly publisher: Publisher;
  readonly checkPermission: PermissionCheck;
  readonly newestId: number;
}

export class Appends {
  readonly #ports: AppendsPorts;
  readonly turn: Turn<PendingCall>;
  #appended = 0;
  #duplicates = 0;
  #newestId: number;

  constructor(ports: AppendsPorts) {
    this.#ports = ports;
    this.#newestId = ports.newestId;
    this.turn = new Turn(ports, {
      assign: (calls, bytes) => this.#assignAll(calls, bytes),
      commit: (call) => this.#commit(call),
      rollBack: (calls) => this.#rollBack(calls),
    });
  }

  get counts(): { readonly appended: number; readonly duplicates: number } {
    return { appended: this.#appended, duplicates: this.#duplicates };
  }

  /**
   * Upper bound on the ids of committed messages. Messages that are committed later have higher
   * ids.
   */
  get newestId(): number {
    return this.#newestId;
  }

  get isFull(): boolean {
    return this.#ports.memtable.isFull(this.turn.queued);
  }

  get lackOfRoom(): BrokerError | undefined {
    if (this.isFull) return new BrokerError("overloaded");
    return this.#ports.space.isFull ? diskFull() : undefined;
  }

  /**
   * Rejects with `too_large` or `bad_request` if the draft is not valid, with `overloaded` or
   * `disk_full` if there is no room for it, with `unavailable` if it cannot be written, and with
   * `internal` if the channel's data cannot be read.
   */
  append(draft: MessageDraft): Promise<AppendResult> {
    const error = draftError(draft) ?? this.lackOfRoom;
    if (error !== undefined) return Promise.reject(error);
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

  /** Queues a step. The step resolves its call itself. */
  enqueue(step: QueuedStep, bytes: number): void {
    this.turn.enqueue({
      step,
      draft: NO_DRAFT,
      bytes: bytes + QUEUED_BYTES,
      resolve: ignoreAnswer,
      reject: step.reject,
      message: undefined,
      record: undefined,
      original: undefined,
    });
  }

  /**
   * Returns the result for a draft that repeats an earlier message or command. Returns `undefined`
   * for any other draft, or if the earlier message or command failed.
   */
  async findEarlier(draft: RepeatableDraft): Promise<AppendResult | undefined> {
    const { assigner, clock } = this.#ports;
    const first = assigner.findRepeated(draft, clock());
    if (first === undefined) return undefined;
    if ("outcome" in first) {
      const command = await first.outcome;
      return command && repeatedResult(first, command, draft);
    }
    if ("committed" in first && !first.committed) {
      await this.turn.syncing;
      if (!first.committed) return undefined; // the batch of the first message failed
    }
    return repeatedResult(first, firstMessage(first), draft);
  }

  /** See `MessageStore`. */
  async seqOfRetry(
    key: ChannelKey,
    fromUid: string,
    clientMsgNo: string,
  ): Promise<number | undefined> {
    const { assigner, clock } = this.#ports;
    const first = assigner.findFirst({ key, fromUid, clientMsgNo }, clock());
    if (first === undefined || "outcome" in first) return undefined;
    if ("committed" in first && !first.committed) return undefined;
    return firstMessage(first).messageSeq || undefined;
  }

  #assignAll(calls: readonly PendingCall[], bytes: number): Buffer | undefined {
    const { assigner, clock } = this.#ports;
    const nowMs = clock();
    assigner.begin(bytes);
    for (const call of calls) {
      if (call.step !== undefined) call.step.assign(nowMs);
      else this.#assign(call, nowMs);
    }
    return assigner.frame();
  }

  /**
   * Assigns a seq and an id to a call's message, unless the call is a retry or is refused. If the
   * channel's data cannot be read, only this call fails.
   */
  #assign(call: PendingCall, nowMs: number): void {
    try {
      if (this.#answerRetryOf(call, nowMs) || this.#answerRefusal(call)) return;
      const { message, record } = this.#ports.assigner.assign(call.draft, nowMs);
      call.message = message;
      call.record = record;
    } catch (error) {
      call.reject(toBrokerError(error));
    }
  }

  /**
   * Resolves a retry, at once or after the first message or command is committed. Returns false if
   * the call is not a retry.
   */
  #answerRetryOf(call: PendingCall, nowMs: number): boolean {
    const first = this.#ports.assigner.findRepeated(call.draft, nowMs);
    if (first === undefined) return false;
    if ("outcome" in first) void this.#awaitCommand(call, first);
    else if (!("committed" in first)) this.#answerRetry(call, first, first);
    else if (first.committed) this.#answerRetry(call, first, firstMessage(first));
    else call.original = first;
    return true;
  }

  /** Resolves a retry of a command. If the command failed, appends the message of the retry. */
  async #awaitCommand(call: PendingCall, first: PendingCommand): Promise<void> {
    const command = await first.outcome;
    if (command !== undefined) this.#answerRetry(call, first, command);
    else this.append(call.draft).then(call.resolve, call.reject);
  }

  #answerRetry(call: PendingCall, first: RememberedMessage, message: FirstMessage): void {
    const result = repeatedResult(first, message, call.draft);
    if (result.duplicate) this.#duplicates++;
    call.resolve(result);
  }

  #answerRefusal(call: PendingCall): boolean {
    const refused = this.#ports.checkPermission(call.draft);
    if (refused === undefined) return false;
    call.resolve({ messageId: 0, messageSeq: 0, duplicate: false, refused });
    return true;
  }

  #commit(call: PendingCall): void {
    const { draft, message, record, original, step } = call;
    if (step !== undefined) {
      step.commit(this.#publish);
      return;
    }
    if (original !== undefined) this.#answerRetry(call, original, firstMessage(original));
    if (message === undefined) return;
    if (record !== undefined) this.#ports.memtable.commit(record);
    const { origin, recipients } = draft;
    this.#publish({ kind: "message", message, origin, recipients });
    const { messageId, messageSeq } = message;
    call.resolve({ messageId, messageSeq, duplicate: false });
  }

  readonly #publish = (event: ClusterEvent): void => {
    if (event.kind === "message") {
      this.#appended++;
      this.#newestId = event.message.messageId; // ids are committed in ascending order
    }
    this.#ports.publisher.publish(event);
  };

  #rollBack(calls: readonly PendingCall[]): void {
    const { memtable, assigner } = this.#ports;
    for (const { step, record } of calls.toReversed()) {
      step?.rollBack();
      if (record !== undefined) memtable.rollBack(record);
    }
    assigner.batchFailed();
  }
}

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

const REUSED: AppendResult = {
  messageId: 0,
  messageSeq: 0,
  duplicate: false,
  refused: "client_msg_no_reused",
};

function ignoreAnswer(): void {}

/** Returns the result for a draft whose `clientMsgNo` belongs to `first`. */
function repeatedResult(
  first: RememberedMessage,
  { messageId, messageSeq }: FirstMessage,
  draft: Pick<MessageDraft, "payload" | "sentPayload">,
): AppendResult {
  return hasOtherPayload(first, draft) ? REUSED : { messageId, messageSeq, duplicate: true };
}

/**
 * Returns the error for an invalid draft. If such a draft were queued, the other calls of its batch
 * would fail too.
 */
function draftError(draft: MessageDraft): BrokerError | undefined {
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
      message: `\`expire\` must be an integer from 0 to ${MAX_EXPIRE_S}.`,
    });
  return undefined;
}
