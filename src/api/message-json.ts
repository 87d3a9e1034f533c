// Messages as the control plane writes and reads them: snake_case, integers for flags, payloads in base64. Pure.

import { channelSeenBy, type Message } from "../broker/model.ts";
import { streamJson } from "./stream-json.ts";

/** The bytes, or undefined unless `text` is canonical standard base64: Buffer skips what it does not know, so the way back must agree. */
export function decodeBase64(text: string): Uint8Array | undefined {
  const bytes = Buffer.from(text, "base64");
  return bytes.toString("base64") === text ? bytes : undefined;
}

/** A message of history, its channel as `uid` names it; undefined: as the sender did. */
export function messageJson(message: Message, uid: string | undefined) {
  const channel =
    uid === undefined ? message.channel : channelSeenBy(uid, message);
  const { payload } = message;
  const bytes = Buffer.from(
    payload.buffer,
    payload.byteOffset,
    payload.byteLength,
  );
  return {
    message_id: message.messageId,
    message_idstr: String(message.messageId),
    message_seq: message.messageSeq,
    client_msg_no: message.clientMsgNo,
    from_uid: message.fromUid,
    channel_id: channel.id,
    channel_type: channel.type,
    timestamp: Math.floor(message.timestampMs / 1000),
    timestamp_ms: message.timestampMs,
    header: {
      no_persist: message.header.noPersist ? 1 : 0,
      red_dot: message.header.redDot ? 1 : 0,
      sync_once: 0, // commands are in no channel's history
    },
    expire: message.expireS,
    stream_no: message.streamNo ?? "",
    tag_key: message.tagKey ?? "",
    payload: bytes.toString("base64"),
    ...(message.stream === undefined
      ? {}
      : { stream: streamJson(message.stream) }),
  };
}
