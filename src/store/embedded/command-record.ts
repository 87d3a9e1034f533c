// A command as it is kept: what of a draft no record or key could hold, the message it becomes, and that message's bytes. Pure.

import { BrokerError } from "../../broker/errors.ts";
import type { Message } from "../../broker/model.ts";
import type { CommandDraft } from "../../broker/ports.ts";
import type { DedupeIndex } from "./dedupe.ts";
import { encodeRecord, MESSAGE_RECORD, maxRecordBytes } from "./record.ts";

/** Longest uid or label; an inbox key and a label fit a database key. Edges refuse far shorter ones. */
const MAX_LABEL_UNITS = 256;
const MAX_EXPIRE_S = 0xffff_ffff;

/** Whether no key of an inbox or label holds it. */
export function isTooLong(text: string): boolean {
  return text.length > MAX_LABEL_UNITS;
}

/** What no record or database key can hold. */
export function refusal(
  draft: CommandDraft,
  dedupe: Pick<DedupeIndex, "isCommandTooLong">,
): BrokerError | undefined {
  const labels = [draft.channel.id, draft.clientMsgNo, draft.tagKey ?? ""];
  if (
    [...labels, draft.fromUid].some(isTooLong) ||
    draft.recipients.some(isTooLong) ||
    dedupe.isCommandTooLong(draft)
  )
    return new BrokerError("too_large");
  const { expireS } = draft;
  if (Number.isInteger(expireS) && expireS >= 0 && expireS <= MAX_EXPIRE_S)
    return undefined;
  return new BrokerError("bad_request", {
    message: `expire is an integer from 0 to ${MAX_EXPIRE_S}`,
  });
}

/** The message of an accepted command; it has no seq of its own. */
export function commandMessage(
  draft: CommandDraft,
  messageId: number,
  timestampMs: number,
): Message {
  return {
    messageId,
    messageSeq: 0,
    key: draft.key,
    channel: draft.channel,
    fromUid: draft.fromUid,
    clientMsgNo: draft.clientMsgNo,
    timestampMs,
    header: { noPersist: false, redDot: draft.header.redDot },
    expireS: draft.expireS,
    streamNo: undefined,
    tagKey: draft.tagKey,
    payload: draft.payload,
    stream: undefined,
  };
}

export function encodeCommand(message: Message): Buffer {
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
