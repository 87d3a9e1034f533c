// The calls about messages: sending (the hot path of the control plane) and reading history. State: none.

import type { Messages, SendInput, Sent } from "../broker/messages.ts";
import { PERSON_CHANNEL } from "../broker/model.ts";
import { errorReply } from "./errors.ts";
import { decodeBase64, messageJson } from "./message-json.ts";
import { jsonReply } from "./reply.ts";
import type { Outcome } from "./route.ts";
import type { Body } from "./schemas.ts";

const HISTORY_LIMIT = 50;
/** Payload bytes in one page of history: what one call may cost in memory, whatever its limit says. */
const HISTORY_BYTES = 8 * 1024 * 1024;

export interface MessageParts {
  readonly messages: Messages;
}

export interface MessageCalls {
  send(body: Body<"send">): Outcome;
  history(query: Body<"history">): Outcome;
}

export function createMessageCalls({ messages }: MessageParts): MessageCalls {
  return {
    send(body) {
      const payload = decodeBase64(body.payload);
      if (payload === undefined)
        return errorReply("bad_payload", {
          message: "payload must be standard base64 with padding",
          details: [{ path: "payload", message: "is not base64" }],
        });
      return messages.send(toInput(body, payload)).then(sentReply);
    },

    async history(query) {
      const { uid } = query;
      const channel = { id: query.channel_id, type: query.channel_type };
      if (channel.type === PERSON_CHANNEL && uid === undefined)
        return errorReply("bad_request", {
          message: "uid is required for a personal channel",
          details: [{ path: "uid", message: "is required" }],
        });
      const page = await messages.history({ channel, uid }, toRange(query));
      const body = {
        messages: page.messages.map((message) => messageJson(message, uid)),
        head_seq: page.headSeq,
        more: page.more ? 1 : 0,
      };
      return jsonReply(JSON.stringify(body));
    },
  };
}

function toInput(body: Body<"send">, payload: Uint8Array): SendInput {
  const { header } = body;
  return {
    fromUid: body.from_uid,
    channel: { id: body.channel_id, type: body.channel_type },
    clientMsgNo: body.client_msg_no,
    header: {
      noPersist: header?.no_persist === 1,
      redDot: header?.red_dot === 1,
      syncOnce: header?.sync_once === 1,
    },
    expireS: body.expire ?? 0,
    streamNo: body.stream_no || undefined,
    tagKey: body.tag_key || undefined,
    payload,
    subscribers: body.subscribers,
    origin: undefined,
  };
}

function toRange(query: Body<"history">): Parameters<Messages["history"]>[1] {
  return {
    fromSeq: query.from_seq ?? 1,
    toSeq: query.to_seq || Number.MAX_SAFE_INTEGER,
    limit: query.limit ?? HISTORY_LIMIT,
    reverse: query.order === "desc",
    maxBytes: HISTORY_BYTES,
  };
}

/** Exactly the three fields of the specification. */
function sentReply({ messageId, messageSeq, clientMsgNo }: Sent) {
  return jsonReply(
    `{"message_id":${messageId},"message_seq":${messageSeq},"client_msg_no":${JSON.stringify(clientMsgNo)}}`,
  );
}
