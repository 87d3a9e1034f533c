// Converts messages between the app and the protocol.

import {
  type ChannelRef,
  type Conversation,
  channelKey,
  channelSeenBy,
  type Message,
} from "../broker/model.ts";
import { decodeUtf8, encodeUtf8 } from "../lib/utf8.ts";
import type {
  Command,
  Content,
  ConversationView,
  ReceivedMessage,
  Sendable,
  SendOptions,
  Sent,
  Stream,
} from "./api.ts";
import { bytesOf } from "./bytes.ts";
import type { Request } from "./connection.ts";
import { JindouError } from "./errors.ts";
import { checkedChannel, checkNames, randomId } from "./options.ts";

const SEND_OPTIONS = "clientMsgNo redDot expireS noPersist syncOnce tagKey";

type Draft = Request<"send">;

/** Returns the SEND for a message. Throws `bad_option`, `bad_payload` or `bad_request`. */
export function draftOf(channel: ChannelRef, content: Sendable, options: SendOptions = {}): Draft {
  checkNames("send", options, SEND_OPTIONS);
  const { expireS = 0 } = options;
  if (!Number.isSafeInteger(expireS) || expireS < 0)
    throw new JindouError("bad_request", { message: "expireS must be 0 or a positive integer" });
  return {
    kind: "send",
    channel: checkedChannel(channel),
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

/** Returns the payload. Copies bytes, because the app may change them while the message waits. */
function payloadOf(content: Sendable): Uint8Array {
  const bytes = bytesOf(content);
  if (bytes !== undefined) return bytes.slice();
  const body = typeof content === "string" ? { type: 1, content } : content;
  try {
    const text: string | undefined = JSON.stringify(body);
    if (text === undefined) throw new TypeError(`${typeof body} is not a JSON value`);
    return encodeUtf8(text);
  } catch (cause) {
    const message = `The content cannot be sent as JSON: ${cause}`;
    throw new JindouError("bad_payload", { message, cause });
  }
}

export function messageKey(uid: string, channel: ChannelRef, clientMsgNo: string): string {
  return `${channelKey(channel, uid)}\n${clientMsgNo}`;
}

export type StreamFor = (channel: ChannelRef, message: Message) => Stream | undefined;

interface Receiver {
  message(message: Message): ReceivedMessage;
  conversation(conversation: Conversation): ConversationView;
}

export function createReceiver(uid: string, streamFor: StreamFor): Receiver {
  const message: Receiver["message"] = (received) => {
    const { key: _, header, ...fields } = received;
    const channel = channelSeenBy(uid, received);
    const content = contentOf(received.payload);
    const stream = streamFor(channel, received);
    return { ...fields, ...header, payload: received.payload.slice(), channel, content, stream };
  };
  return {
    message,
    conversation: ({ last, large = false, ...fields }) => ({
      ...fields,
      large,
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
    payload: payload.slice(),
    content: contentOf(payload),
  };
}

/** Returns a message that this client has sent, as the user's other clients receive it. */
export function sentMessage(uid: string, draft: Draft, ack: Sent): ReceivedMessage {
  const { kind: _, header, ...fields } = draft;
  const { noPersist, redDot } = header;
  const content = contentOf(draft.payload);
  return { ...fields, ...ack, noPersist, redDot, content, fromUid: uid, stream: undefined };
}

/**
 * Returns the content of a payload, or `undefined` if the payload is not a JSON object with an
 * integer `type`. Servers accept any bytes as a payload.
 */
function contentOf(payload: Uint8Array): Content | undefined {
  try {
    const value: unknown = JSON.parse(decodeUtf8(payload).replace(/^\ufeff/, ""));
    return isContent(value) ? value : undefined;
  } catch {
    return undefined; // not JSON, or not UTF-8
  }
}

function isContent(value: unknown): value is Content {
  return (
    typeof value === "object" && value !== null && "type" in value && Number.isInteger(value.type)
  );
}
