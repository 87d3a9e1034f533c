// Conversion of messages between the app and the protocol.

import {
  type ChannelRef,
  type Conversation,
  channelKey,
  channelSeenBy,
  type Message,
} from "../broker/model.ts";
import { utf8 } from "../protocol/native/writer.ts";
import type { Command, Content, ConversationView, ReceivedMessage, SendOptions } from "./api.ts";
import type { Request } from "./connection.ts";
import { JindouError } from "./errors.ts";
import type { StreamFor } from "./live-stream.ts";
import { checkNames, randomId } from "./options.ts";

const SEND_OPTIONS = "clientMsgNo redDot expireS noPersist syncOnce tagKey";

/** Throws `bad_option` or `bad_request`. */
export function draftOf(
  { id, type }: ChannelRef,
  content: string | Content | Uint8Array,
  options: SendOptions,
): Request<"send"> {
  checkNames("send", options, SEND_OPTIONS);
  const { expireS = 0 } = options;
  if (!Number.isSafeInteger(expireS) || expireS < 0)
    throw new JindouError("bad_request", { message: "expireS must be an integer from 0" });
  return {
    kind: "send",
    channel: { id, type },
    clientMsgNo: options.clientMsgNo || randomId(),
    header: {
      noPersist: options.noPersist ?? false,
      redDot: options.redDot ?? true,
      syncOnce: options.syncOnce ?? false,
    },
    expireS,
    streamNo: undefined,
    tagKey: options.tagKey,
    payload: payloadOf(content),
  };
}

/** Copies bytes, because the app may change them while the message is queued. */
function payloadOf(content: string | Content | Uint8Array): Uint8Array {
  if (content instanceof Uint8Array) return content.slice();
  const body = typeof content === "string" ? { type: 1, content } : content;
  return utf8.encode(JSON.stringify(body));
}

export function messageKey(uid: string, channel: ChannelRef, clientMsgNo: string): string {
  return `${channelKey(channel, uid)}\n${clientMsgNo}`;
}

export interface Receiver {
  message(message: Message): ReceivedMessage;
  conversation(conversation: Conversation): ConversationView;
}

export function createReceiver(uid: string, streamFor: StreamFor): Receiver {
  const message: Receiver["message"] = (received) => {
    const { key: _, header, ...fields } = received;
    const channel = channelSeenBy(uid, received);
    const content = contentOf(received.payload);
    const stream = streamFor(channel, received);
    return { ...fields, ...header, channel, content, stream };
  };
  return {
    message,
    conversation: ({ last, ...fields }) => ({
      ...fields,
      last: last && message(last),
    }),
  };
}

export function receivedCommand(channel: ChannelRef, message: Message): Command {
  const { messageId, fromUid, clientMsgNo, timestampMs, payload } = message;
  return {
    channel,
    messageId,
    fromUid,
    clientMsgNo,
    timestampMs,
    payload,
    content: contentOf(payload),
  };
}

const UTF8 = new TextDecoder();

/** Returns the content, `undefined` for any other payload. Some servers accept any bytes. */
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
    typeof value === "object" && value !== null && "type" in value && Number.isInteger(value.type)
  );
}
