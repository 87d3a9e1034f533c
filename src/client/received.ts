// What the wire brings, as the app gets it: channels by this user's name for them, JSON read. Pure.

import {
  type ChannelRef,
  type Conversation,
  channelSeenBy,
  type Message,
} from "../broker/model.ts";
import type {
  Command,
  Content,
  ConversationView,
  ReceivedMessage,
} from "./api.ts";
import type { StreamFor } from "./live-stream.ts";

/** What a user receives, as the app gets it. */
export interface Receiving {
  message(message: Message): ReceivedMessage;
  conversation(conversation: Conversation): ConversationView;
}

export function createReceiving(uid: string, streamFor: StreamFor): Receiving {
  const message: Receiving["message"] = (received) => {
    const { key: _, header, ...rest } = received;
    const channel = channelSeenBy(uid, received);
    const content = contentOf(received.payload);
    const stream = streamFor(channel, received);
    return { ...rest, ...header, channel, content, stream };
  };
  return {
    message,
    conversation: ({ last, ...rest }) => ({
      ...rest,
      last: last && message(last),
    }),
  };
}

export function receivedCommand(
  channel: ChannelRef,
  message: Message,
): Command {
  const { messageId, fromUid, clientMsgNo, timestampMs, payload } = message;
  const sender = { fromUid, clientMsgNo, timestampMs };
  return {
    channel,
    messageId,
    ...sender,
    payload,
    content: contentOf(payload),
  };
}

const UTF8 = new TextDecoder();

/** The JSON object in a payload; payloads may be anything where the server does not check them. */
function contentOf(payload: Uint8Array): Content | undefined {
  try {
    const value: unknown = JSON.parse(UTF8.decode(payload));
    return isContent(value) ? value : undefined;
  } catch {
    return undefined; // not JSON
  }
}

function isContent(value: unknown): value is Content {
  return (
    typeof value === "object" &&
    value !== null &&
    "type" in value &&
    Number.isInteger(value.type)
  );
}

const ENCODER = new TextEncoder();

/** The payload for what an app gives to `send`. */
export function payloadOf(content: string | Content | Uint8Array): Uint8Array {
  if (content instanceof Uint8Array) return content.slice();
  const body = typeof content === "string" ? { type: 1, content } : content;
  return ENCODER.encode(JSON.stringify(body));
}
