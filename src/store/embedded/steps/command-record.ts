// A command as it is kept: the message it becomes, and that message's bytes. Pure.

import { clientMsgNoOf, type Message } from "../../../broker/model.ts";
import type { CommandDraft } from "../../../broker/ports.ts";
import {
  encodeRecord,
  MESSAGE_RECORD,
  maxRecordBytes,
} from "../engine/record.ts";

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
    clientMsgNo: draft.clientMsgNo || clientMsgNoOf(messageId),
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
