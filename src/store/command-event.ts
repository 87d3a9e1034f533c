// The event `command.sent`, which contains the whole command. Pure.

import type { EventFields } from "../broker/event-ports.ts";
import { clientMsgNoOf } from "../broker/model.ts";
import type { CommandDraft } from "../broker/ports.ts";

/** Returns the event's fields that do not depend on the command's id. */
export function commandFields(draft: CommandDraft, timestampMs: number): EventFields {
  const { channel, header, expireS, tagKey = "", passthrough, payload, fromUid } = draft;
  return {
    message_seq: 0,
    ...(draft.clientMsgNo === "" ? {} : { client_msg_no: draft.clientMsgNo }),
    ...{ from_uid: fromUid, channel_id: channel.id, channel_type: channel.type },
    ...{ timestamp: Math.floor(timestampMs / 1000), timestamp_ms: timestampMs },
    header: { no_persist: 0, red_dot: header.redDot ? 1 : 0, sync_once: 1 },
    ...{ expire: expireS, stream_no: "", tag_key: tagKey, ...passthrough },
    payload: Buffer.from(payload).toString("base64"),
  };
}

/** Returns the fields that depend on the id. */
export function commandIdFields(messageId: number, clientMsgNo: string): EventFields {
  return {
    ...{ message_id: messageId, message_idstr: String(messageId) },
    ...(clientMsgNo === "" ? { client_msg_no: clientMsgNoOf(messageId) } : {}),
  };
}
