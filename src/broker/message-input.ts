// What a message must be before anything is asked of the store, and the draft it becomes. Pure.

import {
  COMMAND_TYPE,
  type ContentValidation,
  contentType,
} from "./content.ts";
import { BrokerError } from "./errors.ts";
import { assertId, assertLabel } from "./ids.ts";
import { type ChannelRef, channelKey, type MessageHeader } from "./model.ts";
import type { MessageDraft } from "./ports.ts";

/** How many copies of commands a sender may make. */
export interface CopyLimit {
  /** Asked once before so many copies are stored. Throws `rate_limited`. */
  admit(copies: number): void;
}

export interface SendInput {
  readonly fromUid: string;
  readonly channel: ChannelRef;
  /** Undefined: it is made of the message's id, and a retry is a new message. */
  readonly clientMsgNo: string | undefined;
  readonly header: MessageHeader & { readonly syncOnce: boolean };
  /** Seconds until it leaves history; 0 = never. */
  readonly expireS: number;
  readonly streamNo: string | undefined;
  readonly tagKey: string | undefined;
  readonly payload: Uint8Array;
  /** Restricts who gets it; only for commands. */
  readonly subscribers: readonly string[] | undefined;
  /** The session it came in on, which gets no push of it. */
  readonly origin: string | undefined;
  /** Undefined: none, as for backends. */
  readonly copyLimit?: CopyLimit | undefined;
}

export interface MessageLimits {
  readonly maxPayloadBytes: number;
  /** Most messages in one page of history. */
  readonly historyLimit: number;
  readonly contentValidation: ContentValidation;
}

/** Throws on what no sender may do; tells whether it is a command. */
export function checkMessage(input: SendInput, limits: MessageLimits): boolean {
  assertId(input.fromUid, "from_uid");
  assertId(input.channel.id, "channel_id");
  if (input.clientMsgNo !== undefined)
    assertLabel(input.clientMsgNo, "client_msg_no");
  if (input.streamNo !== undefined) assertLabel(input.streamNo, "stream_no");
  if (input.tagKey !== undefined) assertLabel(input.tagKey, "tag_key");
  for (const uid of input.subscribers ?? []) assertId(uid, "subscribers");
  if (input.payload.length > limits.maxPayloadBytes)
    throw new BrokerError("too_large", {
      message: `payload exceeds ${limits.maxPayloadBytes} bytes`,
      details: [{ path: "payload", message: "too large" }],
    });
  const type = contentType(input.payload, limits.contentValidation);
  const isCommand = type === COMMAND_TYPE || input.header.syncOnce;
  if (input.subscribers !== undefined && !isCommand)
    throw new BrokerError("bad_request", {
      message: "subscribers is only for commands (sync_once 1 or type 99)",
      details: [{ path: "subscribers", message: "not a command" }],
    });
  return isCommand;
}

/** The place it asks for. */
export function toDraft(input: SendInput): MessageDraft {
  const { noPersist, redDot } = input.header;
  return {
    key: channelKey(input.channel, input.fromUid),
    channel: input.channel,
    fromUid: input.fromUid,
    clientMsgNo: input.clientMsgNo ?? "",
    header: { noPersist, redDot },
    expireS: input.expireS,
    streamNo: input.streamNo,
    tagKey: input.tagKey,
    payload: input.payload,
    origin: input.origin,
    recipients: undefined,
    permission: "check",
  };
}
