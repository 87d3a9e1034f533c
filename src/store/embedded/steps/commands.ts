// Commands: the message that one becomes, what is known of it after a restart, and the steps of the
// inbox queue: a new command, an acknowledgement, a removal of what expired. Each step decides what
// it does to the batch and is then done or failed, once. State: each step's own.

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
import { fieldsOf } from "../engine/database.ts";
import { encodeRecord, MESSAGE_RECORD, maxRecordBytes } from "../engine/record.ts";
import type { Tables } from "../engine/tables.ts";
import type { DedupeIndex } from "./dedupe.ts";
import type { InboxBatch } from "./inbox-batch.ts";
import { commandKey, seqOfCopy } from "./inbox-rows.ts";

const LAST_COMMAND_ID = "lastCommandId";
const VERSION = 1;
/** Counted for a queued step on top of a payload, and for each of its copies. */
const QUEUED_BYTES = 512;
const COPY_BYTES = 128;

interface Step {
  /** Copies it is about, at least 1. */
  readonly size: number;
  readonly bytes: number;
  /** May be called again, with another batch, when the first failed. */
  decide(batch: InboxBatch, slice: TimeSlice): void | Promise<void>;
  done(): void;
  fail(error: BrokerError): void;
}

/** `copies` are there once it is decided. */
interface CommandStep extends Step {
  readonly kind: "command";
  readonly draft: CommandDraft;
  readonly message: Message;
  readonly copies: readonly CommandCopy[];
}

export type InboxStep = CommandStep | (Step & { readonly kind: "removal" });

interface Promised<T, S> {
  readonly promise: Promise<T>;
  readonly step: S;
}

export interface AppendingParts {
  readonly ids: { next(nowMs: number): number };
  readonly clock: Clock;
  readonly inboxTtlMs: number;
}

/** Takes the next message id: to be called in the order in which steps are queued. */
export function appending(
  draft: CommandDraft,
  parts: AppendingParts,
): Promised<AppendResult, CommandStep> {
  const { recipients } = draft;
  const nowMs = parts.clock();
  const messageId = parts.ids.next(nowMs);
  const message = commandMessage(draft, messageId, nowMs);
  const endMs = Math.min(nowMs + parts.inboxTtlMs, expiresAtMs(message));
  const copies: CommandCopy[] = [];
  const { promise, resolve, reject } = deferred<AppendResult>();
  const step: CommandStep = {
    kind: "command",
    size: Math.max(1, recipients.length),
    bytes: QUEUED_BYTES + draft.payload.length + recipients.length * COPY_BYTES,
    draft,
    message,
    copies,
    async decide(batch, slice) {
      const key = commandKey(endMs, messageId);
      const command = { key, copies: recipients.length };
      copies.length = 0;
      const keys: Buffer[] = [];
      for (const uid of recipients) {
        if (slice.isUsedUp()) await slice.rest();
        const copy = batch.add(uid, command);
        keys.push(copy);
        copies.push({ uid, inboxSeq: seqOfCopy(copy) });
      }
      for (const uid of draft.pushOnlyRecipients) copies.push({ uid, inboxSeq: 0 });
      if (slice.isUsedUp()) await slice.rest();
      if (keys.length > 0)
        batch.putCommand(key, {
          record: encodeCommand(message),
          copies: keys,
        });
    },
    done: () => resolve({ messageId, messageSeq: 0, duplicate: false }),
    fail: reject,
  };
  return { promise, step };
}

/** Resolves to how many of the copies were there and not expired. */
export function acknowledging(
  uid: string,
  inboxSeqs: readonly number[],
  nowMs: number,
): Promised<number, InboxStep> {
  let count = 0;
  const { promise, resolve, reject } = deferred<number>();
  const step: InboxStep = {
    kind: "removal",
    size: inboxSeqs.length,
    bytes: QUEUED_BYTES,
    async decide(batch, slice) {
      count = 0;
      for (const seq of inboxSeqs) {
        if (slice.isUsedUp()) await slice.rest();
        const endMs = batch.take(uid, seq);
        if (endMs !== undefined && endMs > nowMs) count++;
      }
    },
    done: () => resolve(count),
    fail: reject,
  };
  return { promise, step };
}

/** Takes copies out that expired; `command`: the command itself as well. */
export function expiring(
  copies: readonly { readonly uid: string; readonly seq: number }[],
  command: Buffer | undefined,
): Promised<void, InboxStep> {
  const { promise, resolve, reject } = deferred<void>();
  const step: InboxStep = {
    kind: "removal",
    size: Math.max(1, copies.length),
    bytes: QUEUED_BYTES,
    async decide(batch, slice) {
      for (const { uid, seq } of copies) {
        if (slice.isUsedUp()) await slice.rest();
        batch.take(uid, seq);
      }
      if (command !== undefined) batch.removeCommand(command);
    },
    done: resolve,
    fail: reject,
  };
  return { promise, step };
}

/** The greatest id of a stored command: none up to it is given again. */
export function lastCommandId(tables: Pick<Tables, "meta">): number {
  const stored = tables.meta.get(LAST_COMMAND_ID);
  return stored === undefined ? 0 : Number(fieldsOf(stored, VERSION)[0]);
}

/** To be called inside the transaction that keeps `commands`, in any order. */
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
    if (draft.clientMsgNo !== "") dedupe.putCommand(message);
}

/** The message of an accepted command; it has no seq of its own. */
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
