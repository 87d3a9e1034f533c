// Builds the messages of commands, stores the last command id and the dedupe entries of commands,
// and creates the steps of the inbox queue: append a command, acknowledge copies, remove expired
// copies. Each step adds its changes to a batch, and then completes or fails exactly once.

import type { BrokerError } from "../../../broker/errors.ts";
import {
  type CommandCopy,
  clientMsgNoOf,
  expiresAtMs,
  type Message,
} from "../../../broker/model.ts";
import type { AppendResult, Clock, CommandDraft } from "../../../broker/ports.ts";
import { deferred } from "../../../lib/deferred.ts";
import type { TimeSlice } from "../../../lib/time-slice.ts";
import { senderOf, shareIsFull } from "../../command-draft.ts";
import { toBrokerError } from "../../lifecycle.ts";
import { fieldsOf } from "../engine/database.ts";
import { encodeRecord, MESSAGE_RECORD, maxRecordBytes } from "../engine/record.ts";
import type { Tables } from "../engine/tables.ts";
import type { DedupeIndex } from "./dedupe.ts";
import type { ExpiredCopy, InboxBatch } from "./inbox-batch.ts";
import { commandKey, expiryOf, idOf, seqOfCopy } from "./inbox-rows.ts";

const LAST_COMMAND_ID = "lastCommandId";
const VERSION = 1;
const QUEUED_BYTES = 512;
const COPY_BYTES = 128;

interface QueueStep {
  /** Number of copies that the step adds or removes, at least 1. */
  readonly size: number;
  readonly bytes: number;
  /** Adds the step's changes to the batch. May be called again with a different batch. */
  decide(batch: InboxBatch, slice: TimeSlice): void | Promise<void>;
  done(): void;
  fail(error: BrokerError): void;
}

export interface CommandStep extends QueueStep {
  readonly kind: "command";
  readonly draft: CommandDraft;
  readonly message: Message;
  readonly copies: readonly CommandCopy[];
  /**
   * True if the command has only one recipient, whose inbox has no room for it. In that case,
   * nothing is stored.
   */
  isRefused: boolean;
}

interface RemovalStep extends QueueStep {
  readonly kind: "removal";
  readonly expired: readonly ExpiredCopy[];
}

export type InboxStep = CommandStep | RemovalStep;

interface StepAndResult<T, S> {
  readonly promise: Promise<T>;
  readonly step: S;
}

export interface CommandPorts {
  readonly ids: { next(nowMs: number): number };
  readonly clock: Clock;
  readonly inboxTtlMs: number;
}

/** Creates a command's step and assigns the command's id. Must be called in queue order. */
export function appendStep(
  draft: CommandDraft,
  ports: CommandPorts,
): StepAndResult<AppendResult, CommandStep> {
  const { recipients } = draft;
  const sender = senderOf(draft);
  const nowMs = ports.clock();
  const messageId = ports.ids.next(nowMs);
  const message = commandMessage(draft, messageId, nowMs);
  const endMs = Math.min(nowMs + ports.inboxTtlMs, expiresAtMs(message));
  const copies: CommandCopy[] = [];
  const { promise, resolve, reject } = deferred<AppendResult>();
  const step: CommandStep = {
    kind: "command",
    size: Math.max(1, recipients.length),
    bytes: QUEUED_BYTES + draft.payload.length + recipients.length * COPY_BYTES,
    draft,
    message,
    copies,
    isRefused: false,
    async decide(batch, slice) {
      const key = commandKey(endMs, messageId);
      const [recipient, ...others] = recipients;
      copies.length = 0;
      step.isRefused =
        recipient !== undefined && others.length === 0 && !batch.hasRoom(recipient, sender);
      if (step.isRefused) return;
      const command = { key, copies: recipients.length, sender };
      const copyKeys: Buffer[] = [];
      for (const uid of recipients) {
        if (slice.shouldYield()) await slice.yield();
        const copyKey = batch.add(uid, command);
        if (copyKey === undefined) continue;
        copyKeys.push(copyKey);
        copies.push({ uid, inboxSeq: seqOfCopy(copyKey) });
      }
      command.copies = copyKeys.length;
      for (const uid of draft.pushOnlyRecipients) copies.push({ uid, inboxSeq: 0 });
      if (slice.shouldYield()) await slice.yield();
      if (copyKeys.length > 0)
        batch.putCommand(key, {
          record: encodeCommand(message),
          copies: copyKeys,
        });
    },
    done() {
      if (step.isRefused) reject(shareIsFull());
      else resolve({ messageId, messageSeq: 0, duplicate: false });
    },
    fail: reject,
  };
  return { promise, step };
}

/**
 * Creates a step that removes acknowledged copies. The promise resolves to the number of copies
 * that were still in the inbox and had not expired.
 */
export function acknowledgeStep(
  uid: string,
  inboxSeqs: readonly number[],
  nowMs: number,
): StepAndResult<number, InboxStep> {
  let count = 0;
  const expired: ExpiredCopy[] = [];
  const { promise, resolve, reject } = deferred<number>();
  const step: InboxStep = {
    kind: "removal",
    size: inboxSeqs.length,
    bytes: QUEUED_BYTES,
    expired,
    async decide(batch, slice) {
      count = 0;
      expired.length = 0;
      for (const seq of inboxSeqs) {
        if (slice.shouldYield()) await slice.yield();
        const command = batch.remove(uid, seq);
        if (command === undefined) continue;
        if (expiryOf(command) > nowMs) count++;
        else expired.push({ uid, messageId: idOf(command) });
      }
    },
    done: () => resolve(count),
    fail: reject,
  };
  return { promise, step };
}

/**
 * Creates a step that removes expired copies. If `command` is set, the step also removes the
 * command itself. The promise resolves to `undefined`, or to the error of a copy that could not be
 * removed. The other copies are removed nevertheless.
 */
export function expireStep(
  copies: readonly { readonly uid: string; readonly seq: number }[],
  command: Buffer | undefined,
): StepAndResult<BrokerError | undefined, InboxStep> {
  const expired: ExpiredCopy[] = [];
  const { promise, resolve, reject } = deferred<BrokerError | undefined>();
  let failure: BrokerError | undefined;
  const step: InboxStep = {
    kind: "removal",
    size: Math.max(1, copies.length),
    bytes: QUEUED_BYTES,
    expired,
    async decide(batch, slice) {
      failure = undefined;
      expired.length = 0;
      for (const { uid, seq } of copies) {
        if (slice.shouldYield()) await slice.yield();
        try {
          const removed = batch.remove(uid, seq);
          if (removed !== undefined) expired.push({ uid, messageId: idOf(removed) });
        } catch (error) {
          failure = toBrokerError(error);
        }
      }
      if (command !== undefined) batch.removeCommand(command);
    },
    done: () => resolve(failure),
    fail: reject,
  };
  return { promise, step };
}

export function lastCommandId(tables: Pick<Tables, "meta">): number {
  const stored = tables.meta.get(LAST_COMMAND_ID);
  return stored === undefined ? 0 : Number(fieldsOf(stored, VERSION)[0]);
}

/**
 * Stores the last command id and the dedupe entries of the commands. Must be called inside the
 * transaction that stores the commands.
 */
export function rememberCommands(
  tables: Pick<Tables, "meta">,
  dedupe: Pick<DedupeIndex, "putCommand">,
  commands: readonly CommandStep[],
): void {
  if (commands.length === 0) return;
  let lastId = lastCommandId(tables);
  for (const { message } of commands) lastId = Math.max(lastId, message.messageId);
  void tables.meta.put(LAST_COMMAND_ID, [VERSION, lastId]);
  for (const { draft, message } of commands)
    if (draft.clientMsgNo !== "") dedupe.putCommand(message, draft.sentPayload);
}

/** Returns a command's message. It has no seq, because each inbox assigns its own seq. */
function commandMessage(draft: CommandDraft, messageId: number, timestampMs: number): Message {
  return {
    messageId,
    messageSeq: 0,
    key: draft.key,
    channel: draft.channel,
    fromUid: draft.fromUid,
    clientMsgNo: draft.clientMsgNo || clientMsgNoOf(messageId),
    timestampMs,
    header: { noPersist: false, redDot: draft.header.redDot },
    expireS: draft.expireS,
    streamNo: undefined,
    tagKey: draft.tagKey,
    passthrough: draft.passthrough,
    payload: draft.payload,
    stream: undefined,
  };
}

function encodeCommand(message: Message): Buffer {
  const target = Buffer.allocUnsafe(maxRecordBytes(message));
  const end = encodeRecord(target, 0, {
    kind: MESSAGE_RECORD,
    message,
    dedupe: false,
    counted: 0,
    isStream: false,
  });
  return target.subarray(0, end);
}
