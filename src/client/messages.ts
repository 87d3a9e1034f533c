// Messages between the app and the wire: options checked and payloads encoded on the way out,
// channels under this user's name for them and JSON parsed on the way in. Pure.

import {
  type ChannelRef,
  type Conversation,
  channelKey,
  channelSeenBy,
  type Message,
} from "../broker/model.ts";
import type { Command, Content, ConversationView, ReceivedMessage, SendOptions } from "./api.ts";
import type { Request } from "./connection.ts";
import { JindouError } from "./errors.ts";
import type { StreamFor } from "./live-stream.ts";
import { checkNames, randomName } from "./options.ts";

const SEND_OPTIONS = "clientMsgNo redDot expireS noPersist syncOnce tagKey";

/** The request for a message of the app. Throws `bad_option`, `bad_request`. */
export function draftOf(
  { id, type }: ChannelRef,
  content: string | Content | Uint8Array,
  options: SendOptions,
): Request<"send"> {
  checkNames("send", options, SEND_OPTIONS);
  const { expireS = 0 } = options;
  if (!Number.isSafeInteger(expireS) || expireS < 0)
    throw new JindouError("bad_request", {
      message: "expireS must be a whole number of seconds, 0 for never",
    });
  return {
    kind: "send",
    channel: { id, type },
    clientMsgNo: options.clientMsgNo || randomName(),
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

const ENCODER = new TextEncoder();

function payloadOf(content: string | Content | Uint8Array): Uint8Array {
  if (content instanceof Uint8Array) return content.slice();
  const body = typeof content === "string" ? { type: 1, content } : content;
  return ENCODER.encode(JSON.stringify(body));
}

/** The key of a message or stream among those of all channels of user `uid`. */
export function messageKey(uid: string, channel: ChannelRef, clientMsgNo: string): string {
  return `${channelKey(channel, uid)}\n${clientMsgNo}`;
}

/** Makes what the app gets of what one user receives. */
export interface Receiver {
  message(message: Message): ReceivedMessage;
  conversation(conversation: Conversation): ConversationView;
}

export function createReceiver(uid: string, streamFor: StreamFor): Receiver {
  const message: Receiver["message"] = (received) => {
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

/** The content object in a payload; a server that does not check payloads passes anything. */
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
