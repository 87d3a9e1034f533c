// Decodes the records in a server's frames: messages, events, streams, conversations and presence.
// Works in browsers. Throws only FrameError. Accepts records from a newer server.

import {
  type ChannelEvent,
  type ChannelRef,
  type Conversation,
  channelKey,
  type DeviceFlag,
  GROUP_CHANNEL,
  type Message,
  PERSON_CHANNEL,
  type Presence,
  type StreamNote,
  type StreamPlace,
  type StreamSnapshot,
  type StreamState,
} from "../../broker/model.ts";
import { decodeUtf8 } from "../../lib/utf8.ts";
import { FLAG_BITS, MAX_UINT32, STREAM_STATES } from "./ops.ts";
import type { FrameReader } from "./reader.ts";

/** Limit for fields that need no limit, because a client trusts its server. */
export const ANY = MAX_UINT32;

export interface ServerFrameContext {
  readonly reader: FrameReader;
  readonly ref: number;
  readonly uid: string;
}

/**
 * Reads a message. `channel` is the channel as the receiver sees it, `message.channel` as the
 * sender sees it.
 */
export function readMessage({ reader, uid }: ServerFrameContext): {
  channel: ChannelRef;
  message: Message;
} {
  const channel = readChannel(reader);
  const messageSeq = reader.uint("messageSeq");
  const messageId = reader.uint("messageId");
  const fromUid = reader.text("fromUid", ANY);
  const clientMsgNo = reader.text("clientMsgNo", ANY);
  const timestampMs = reader.uint("timestampMs");
  const flags = reader.uint("flags");
  const plain = {
    messageId,
    messageSeq,
    key: channelKey(channel, uid),
    channel: channelAsSent(channel, { fromUid, uid }),
    fromUid,
    clientMsgNo,
    timestampMs,
    header: {
      noPersist: (flags & FLAG_BITS.noPersist) !== 0,
      redDot: (flags & FLAG_BITS.redDot) !== 0,
    },
    expireS: reader.uint("expireS"),
    payload: reader.bin("payload", ANY),
    streamNo: readLabel(reader, "streamNo"),
    tagKey: readLabel(reader, "tagKey"),
  };
  const stream = reader.absent() ? undefined : readStreamOf(plain, reader);
  return { channel, message: { ...plain, stream } };
}

export function readMessageRecord(context: ServerFrameContext): Message {
  return context.reader.tuple("message", () => readMessage(context).message);
}

export function readEvent({ reader, uid }: ServerFrameContext): {
  channel: ChannelRef;
  event: ChannelEvent;
} {
  const channel = readChannel(reader);
  const fromUid = reader.text("fromUid", ANY);
  const event: ChannelEvent = {
    key: channelKey(channel, uid),
    channel: channelAsSent(channel, { fromUid, uid }),
    fromUid,
    clientMsgNo: reader.text("clientMsgNo", ANY),
    eventId: reader.text("eventId", ANY),
    type: reader.text("type", ANY),
    data: reader.text("data", ANY),
    timestampMs: reader.uint("timestampMs"),
    stream: reader.absent() ? undefined : reader.tuple("stream", () => readStreamPosition(reader)),
  };
  return { channel, event };
}

export function readStream({ reader, uid }: ServerFrameContext): {
  channel: ChannelRef;
  snapshot: StreamSnapshot;
} {
  const channel = readChannel(reader);
  const messageSeq = reader.uint("messageSeq");
  const messageId = reader.uint("messageId");
  const fromUid = reader.text("fromUid", ANY);
  const snapshot: StreamSnapshot = {
    key: channelKey(channel, uid),
    channel: channelAsSent(channel, { fromUid, uid }),
    fromUid,
    clientMsgNo: reader.text("clientMsgNo", ANY),
    messageId,
    messageSeq,
    text: reader.text("text", ANY),
    ...readStreamRecord(reader),
  };
  return { channel, snapshot };
}

export function readConversation(context: ServerFrameContext): Conversation {
  const { reader } = context;
  return {
    channel: readChannel(reader),
    headSeq: reader.uint("headSeq"),
    readSeq: reader.uint("readSeq"),
    unread: reader.uint("unread"),
    deletedSeq: reader.uint("deletedSeq"),
    changedAtMs: reader.uint("changedAtMs"),
    last: reader.absent() ? undefined : readMessageRecord(context),
    ...(readFlag(reader, "large") && { large: true }),
  };
}

export function readPresence(reader: FrameReader): readonly Presence[] {
  const readEntry = (): Presence => ({
    uid: reader.text("uid", ANY),
    online: reader.bool("online"),
    flag: readDeviceFlag(reader),
  });
  return reader.list("presence", ANY, () => reader.tuple("presence", readEntry));
}

/**
 * Reads a state. An unknown state is read as `interrupted`, because every state except `active` is
 * final.
 */
export function readState(reader: FrameReader): StreamState {
  return STREAM_STATES[reader.uint("state")] ?? "interrupted";
}

export function readChannel(reader: FrameReader): ChannelRef {
  const type = reader.uint("channelType");
  if (type !== PERSON_CHANNEL && type !== GROUP_CHANNEL)
    throw reader.refusal("bad_request", `Unknown channel type ${type}`);
  return { type, id: reader.text("channelId", ANY) };
}

/**
 * Reads the stream that a message starts. Fields that the message and the stream have in common are
 * sent only once.
 */
function readStreamOf(message: Omit<Message, "stream">, reader: FrameReader): StreamSnapshot {
  const { key, channel, fromUid, clientMsgNo, messageId, messageSeq } = message;
  const text = textOf(message.payload);
  if (text === undefined) throw reader.refusal("bad_payload", "A stream's message must have text");
  return {
    key,
    channel,
    fromUid,
    clientMsgNo,
    messageId,
    messageSeq,
    text,
    ...readStreamRecord(reader),
  };
}

function textOf(payload: Uint8Array): string | undefined {
  try {
    const { content } = JSON.parse(decodeUtf8(payload));
    return typeof content === "string" ? content : undefined;
  } catch {
    return undefined;
  }
}

function readStreamRecord(
  reader: FrameReader,
): Pick<StreamSnapshot, "state" | "nextIndex" | "startData" | "endData" | "notes" | "truncated"> {
  return reader.tuple("stream", () => ({
    state: readState(reader),
    nextIndex: reader.uint("nextIndex"),
    startData: reader.text("startData", ANY),
    endData: readLabel(reader, "endData"),
    notes: reader.list("notes", ANY, () => reader.tuple("note", () => readNote(reader))),
    ...(readFlag(reader, "truncated") && { truncated: true }),
  }));
}

function readNote(reader: FrameReader): StreamNote {
  return {
    index: reader.uint("index"),
    textOffset: reader.uint("textOffset"),
    eventId: reader.text("eventId", ANY),
    type: reader.text("type", ANY),
    data: reader.text("data", ANY),
    timestampMs: reader.uint("timestampMs"),
  };
}

function readStreamPosition(reader: FrameReader): StreamPlace {
  return {
    messageSeq: reader.uint("messageSeq"),
    index: reader.uint("index"),
    nextIndex: reader.uint("nextIndex"),
    textOffset: reader.uint("textOffset"),
    state: readState(reader),
    ...(readFlag(reader, "truncated") && { truncated: true }),
  };
}

/** Returns true if an optional flag is set. Servers leave out a flag that is not set. */
function readFlag(reader: FrameReader, field: string): boolean {
  return !reader.absent() && reader.bool(field);
}

/**
 * Returns the channel as the sender sees it. If another user sent a personal message, the id of the
 * returned channel is `uid`, the client's own user.
 */
function channelAsSent(
  channel: ChannelRef,
  { fromUid, uid }: { readonly fromUid: string; readonly uid: string },
): ChannelRef {
  if (channel.type === GROUP_CHANNEL || fromUid === uid) return channel;
  return { type: PERSON_CHANNEL, id: uid };
}

function readLabel(reader: FrameReader, field: string): string | undefined {
  return reader.absent() ? undefined : reader.text(field, ANY);
}

function readDeviceFlag(reader: FrameReader): DeviceFlag {
  const value = reader.uint("deviceFlag");
  if (value !== 0 && value !== 1 && value !== 2)
    throw reader.refusal("bad_request", `Unknown device flag ${value}`);
  return value;
}
