// What nodes write into Redis and tell each other through it: records of messages and events, and the frames published on topics. The one place
// that knows their bytes; `lua/shared.lua` is the other half of the frames. Every frame and record begins with a version: a newer one is refused.
// What is read may be anything: every field is checked, so that nothing behind it has to. Pure.
//
// Frames, numbers big-endian (doubles are integers below 2^53):
//   u8 version, u8 MESSAGE, f64 pub, f64 messageId, f64 messageSeq, u32 record length, record, extra
//   u8 version, u8 EVENT,   f64 pub, f64 messageSeq, f64 index, f64 textOffset, u8 state, event record
//   u8 version, u8 LOOSE,   msgpack [id, event]
//   u8 version, u8 MARK,    bytes of who published it
//   u8 version, u8 BATCH,   then of each frame in it: u32 length, the frame, which is no BATCH
//   u8 version, u8 REMOVAL, f64 pub, msgpack [group, uids or false]
//   u8 version, u8 COMMAND, f64 messageId, f64 inboxSeq, u32 record length, record, u16 uid length, uid, origin (empty: none)

import { Packr } from "msgpackr";
import { BrokerError } from "../broker/errors.ts";
import {
  type ChannelEvent,
  type ChannelRef,
  type CommandCopy,
  channelKey,
  GROUP_CHANNEL,
  type Message,
  type MessageHeader,
  PERSON_CHANNEL,
  type StreamSnapshot,
  type StreamState,
  streamPayload,
} from "../broker/model.ts";
import type { ClusterEvent } from "../broker/ports.ts";

/** What a channel publishes in turn. */
export type OrderedEvent = Extract<
  ClusterEvent,
  { kind: "message" | "event" | "removal" }
>;

/** The newest format this build writes and reads, of frames, records and keys alike. */
export const WIRE_VERSION = 2;

export const MESSAGE_FRAME = 1;
export const EVENT_FRAME = 2;
export const LOOSE_FRAME = 3;
const MARK_FRAME = 4;
export const COMMAND_FRAME = 5;
export const BATCH_FRAME = 6;
export const REMOVAL_FRAME = 7;

/** The order is part of the format. */
export const STREAM_STATES: readonly StreamState[] = [
  "active",
  "closed",
  "cancelled",
  "interrupted",
];

const MESSAGE_BODY_AT = 30;
const EVENT_BODY_AT = 35;
const REMOVAL_BODY_AT = 10;
const COMMAND_BODY_AT = 22;
const LENGTH_BYTES = 4;
const MIN_FRAME_BYTES = 2;
const NO_PERSIST = 1;
const RED_DOT = 2;

/** How values are packed in all that is written into Redis. */
export const packr = new Packr({ useRecords: false, int64AsType: "number" });

const NO_EXTRA = packr.pack([null, null, null]);

/** A message without its place. */
type RecordedMessage = Pick<
  Message,
  | "channel"
  | "fromUid"
  | "clientMsgNo"
  | "timestampMs"
  | "header"
  | "expireS"
  | "streamNo"
  | "tagKey"
  | "payload"
>;

/** What is told of a message beside its record. */
interface MessageExtra {
  readonly origin: string | undefined;
  readonly recipients: readonly string[] | undefined;
  /** Of a stream's message: what the stream begins with. */
  readonly startData: string | undefined;
}

/** A message as kept in a channel's log and in inboxes. */
export function encodeRecord(message: RecordedMessage): Buffer {
  const { channel, header, streamNo, tagKey, payload } = message;
  return packr.pack([
    WIRE_VERSION,
    channel.type,
    channel.id,
    message.fromUid,
    message.clientMsgNo,
    message.timestampMs,
    (header.noPersist ? NO_PERSIST : 0) | (header.redDot ? RED_DOT : 0),
    message.expireS,
    streamNo ?? null,
    tagKey ?? null,
    Buffer.from(payload.buffer, payload.byteOffset, payload.length),
  ]);
}

/** The message of a record at its place. Throws `internal` on a newer format and on anything else that is no record. */
export function decodeRecord(
  record: Uint8Array,
  place: {
    readonly messageId: number;
    readonly messageSeq: number;
    readonly stream?: StreamSnapshot | undefined;
    /** Of a stream: its text so far as a payload. */
    readonly payload?: Uint8Array;
  },
): Message {
  const fields = unpackVersioned(record);
  const [, type, id, from, clientMsgNo, timestampMs, flags] = fields;
  const [expireS, streamNo, tagKey, payload] = fields.slice(7);
  const channel = channelOf(type, id);
  const fromUid = text(from);
  const bits = uint(flags);
  const header: MessageHeader = {
    noPersist: (bits & NO_PERSIST) !== 0,
    redDot: (bits & RED_DOT) !== 0,
  };
  if (!(payload instanceof Uint8Array)) throw unreadable("a payload");
  return {
    messageId: place.messageId,
    messageSeq: place.messageSeq,
    key: channelKey(channel, fromUid),
    channel,
    fromUid,
    clientMsgNo: text(clientMsgNo),
    timestampMs: uint(timestampMs),
    header,
    expireS: uint(expireS),
    streamNo: label(streamNo),
    tagKey: label(tagKey),
    payload: place.payload ?? new Uint8Array(payload),
    stream: place.stream,
  };
}

/** An event of a stream without its place. */
export type RecordedEvent = Omit<ChannelEvent, "key" | "stream">;

function decodeEvent(
  record: Uint8Array,
  stream: ChannelEvent["stream"],
): ChannelEvent {
  const [, type, id, from, clientMsgNo, eventId, kind, data, timestampMs] =
    unpackVersioned(record);
  const channel = channelOf(type, id);
  const fromUid = text(from);
  return {
    key: channelKey(channel, fromUid),
    channel,
    fromUid,
    clientMsgNo: text(clientMsgNo),
    eventId: text(eventId),
    type: text(kind),
    data: text(data),
    timestampMs: uint(timestampMs),
    stream,
  };
}

export function encodeExtra(extra: MessageExtra): Buffer {
  const { origin, recipients, startData } = extra;
  if (origin === undefined && recipients === undefined)
    if (startData === undefined) return NO_EXTRA; // every message over HTTP
  return packr.pack([origin ?? null, recipients ?? null, startData ?? null]);
}

/**
 * A frame on a topic. `pub` counts the publications of the channel from 1 without gaps: messages, kept or not, events of streams, and removals of a
 * group's members.
 */
export type Publication =
  | {
      readonly kind: "ordered";
      readonly pub: number;
      readonly event: OrderedEvent;
    }
  | {
      readonly kind: "loose";
      /** The same publication may come on several topics. */
      readonly id: string;
      readonly event: ClusterEvent;
    }
  | { readonly kind: "mark"; readonly mark: string };

/** What the steps in Lua publish, for a node that publishes it itself (Redis Cluster: a user's topic is not in the channel's slot). */
export function messageFrame(parts: {
  readonly pub: number;
  readonly messageId: number;
  readonly messageSeq: number;
  readonly record: Uint8Array;
  readonly extra: Uint8Array;
}): Buffer {
  const { record, extra } = parts;
  const head = Buffer.alloc(MESSAGE_BODY_AT);
  head[0] = WIRE_VERSION;
  head[1] = MESSAGE_FRAME;
  head.writeDoubleBE(parts.pub, 2);
  head.writeDoubleBE(parts.messageId, 10);
  head.writeDoubleBE(parts.messageSeq, 18);
  head.writeUInt32BE(record.length, 26);
  return Buffer.concat([head, record, extra]);
}

export function looseFrame(id: string, event: ClusterEvent): Buffer {
  return Buffer.concat([
    Buffer.from([WIRE_VERSION, LOOSE_FRAME]),
    packr.pack([id, event]),
  ]);
}

export function markFrame(mark: string): Buffer {
  return Buffer.concat([
    Buffer.from([WIRE_VERSION, MARK_FRAME]),
    Buffer.from(mark),
  ]);
}

/** One user's copy of a command: it goes to the user's topic only. */
export function commandFrame(parts: {
  readonly messageId: number;
  readonly copy: CommandCopy;
  readonly record: Uint8Array;
  readonly origin: string | undefined;
}): Buffer {
  const { record, copy, origin = "" } = parts;
  const uid = Buffer.from(copy.uid);
  const head = Buffer.alloc(COMMAND_BODY_AT);
  head[0] = WIRE_VERSION;
  head[1] = COMMAND_FRAME;
  head.writeDoubleBE(parts.messageId, 2);
  head.writeDoubleBE(copy.inboxSeq, 10);
  head.writeUInt32BE(record.length, 18);
  const size = Buffer.alloc(2);
  size.writeUInt16BE(uid.length);
  return Buffer.concat([head, record, size, uid, Buffer.from(origin)]);
}

/** The kind of a frame; undefined: of a newer format, or no frame. */
export function kindOf(frame: Buffer): number | undefined {
  return (frame[0] ?? WIRE_VERSION + 1) <= WIRE_VERSION ? frame[1] : undefined;
}

/** The publication's number of a message's or an event's frame. */
export const pubOf = (frame: Buffer): number => frame.readDoubleBE(2);

/** Of a message's frame, without reading the record. */
export const messageIdOf = (frame: Buffer): number => frame.readDoubleBE(10);
export const messageSeqOf = (frame: Buffer): number => frame.readDoubleBE(18);

/** Reads a frame. Throws on a newer format, an unknown kind and anything else that is no frame; of an unordered event only its id is checked. */
export function decodeFrame(frame: Buffer): Publication {
  assertVersion(frame[0]);
  switch (frame[1]) {
    case MESSAGE_FRAME:
      return decodeMessageFrame(frame);
    case EVENT_FRAME:
      return decodeEventFrame(frame);
    case LOOSE_FRAME: {
      // Bytes within become what the source is: plain bytes of their own.
      const source = new Uint8Array(frame.subarray(2));
      const [id, event] = unpackList(source);
      return { kind: "loose", id: text(id), event: event as ClusterEvent };
    }
    case REMOVAL_FRAME:
      return decodeRemovalFrame(frame);
    case MARK_FRAME:
      return { kind: "mark", mark: frame.toString("utf8", 2) };
    case COMMAND_FRAME:
      return decodeCommandFrame(frame);
    default:
      throw unreadable(`a frame of kind ${frame[1]}`);
  }
}

/** The frames within a BATCH, in order, and whether it ends where one does: what is behind that cannot be read. */
export function framesOf(batch: Buffer): {
  readonly frames: readonly Buffer[];
  readonly isWhole: boolean;
} {
  const frames: Buffer[] = [];
  let at = 2;
  while (at + LENGTH_BYTES <= batch.length) {
    const start = at + LENGTH_BYTES;
    const end = start + batch.readUInt32BE(at);
    if (end > batch.length || end < start + MIN_FRAME_BYTES) break;
    frames.push(batch.subarray(start, end));
    at = end;
  }
  return { frames, isWhole: at === batch.length };
}

function decodeMessageFrame(frame: Buffer): Publication {
  const end = MESSAGE_BODY_AT + frame.readUInt32BE(26);
  const [origin, recipients, startData] = unpackList(frame.subarray(end));
  const pub = positive(frame.readDoubleBE(2));
  const place = {
    messageId: positive(frame.readDoubleBE(10)),
    messageSeq: uint(frame.readDoubleBE(18)),
  };
  if (place.messageSeq > pub) throw unreadable("a seq"); // each message takes a number
  const plain = decodeRecord(frame.subarray(MESSAGE_BODY_AT, end), place);
  const message = startData === null ? plain : withStream(plain, startData);
  return {
    kind: "ordered",
    pub,
    event: {
      kind: "message",
      message,
      origin: label(origin),
      recipients: recipients === null ? undefined : list(recipients).map(text),
    },
  };
}

function withStream(plain: Message, startData: unknown): Message {
  const message = { ...plain, payload: streamPayload("") };
  return { ...message, stream: begun(message, text(startData)) };
}

/** A stream as its message is published: nothing of it yet. */
export function begun(
  message: Message,
  startData: string,
): NonNullable<Message["stream"]> {
  const { key, channel, fromUid, clientMsgNo, messageId, messageSeq } = message;
  return {
    ...{ key, channel, fromUid, clientMsgNo, messageId, messageSeq },
    ...{ state: "active", text: "", nextIndex: 0, startData },
    ...{ endData: undefined, notes: [] },
  };
}

function decodeEventFrame(frame: Buffer): Publication {
  const index = uint(frame.readDoubleBE(18));
  const state = STREAM_STATES[frame[34] ?? -1];
  if (state === undefined) throw unreadable(`a stream's state ${frame[34]}`);
  const event = decodeEvent(frame.subarray(EVENT_BODY_AT), {
    messageSeq: uint(frame.readDoubleBE(10)),
    index,
    nextIndex: index + 1,
    textOffset: uint(frame.readDoubleBE(26)),
    state,
  });
  return {
    kind: "ordered",
    pub: positive(frame.readDoubleBE(2)),
    event: { kind: "event", event },
  };
}

function decodeRemovalFrame(frame: Buffer): Publication {
  const [group, uids] = unpackList(frame.subarray(REMOVAL_BODY_AT));
  return {
    kind: "ordered",
    pub: positive(frame.readDoubleBE(2)),
    event: {
      kind: "removal",
      channelId: text(group),
      uids: uids === false ? undefined : list(uids).map(text),
    },
  };
}

function decodeCommandFrame(frame: Buffer): Publication {
  const end = COMMAND_BODY_AT + frame.readUInt32BE(18);
  const uidAt = end + 2;
  const originAt = uidAt + frame.readUInt16BE(end);
  const uid = frame.toString("utf8", uidAt, originAt);
  const origin = frame.toString("utf8", originAt);
  const messageId = positive(frame.readDoubleBE(2));
  return {
    kind: "loose",
    id: `c${messageId}/${uid}`,
    event: {
      kind: "command",
      message: decodeRecord(frame.subarray(COMMAND_BODY_AT, end), {
        messageId,
        messageSeq: 0,
      }),
      copies: [{ uid, inboxSeq: uint(frame.readDoubleBE(10)) }],
      origin: origin === "" ? undefined : origin,
    },
  };
}

/** The fields of what begins with its version. Throws `internal` on a newer one, and on what is no list. */
export function unpackVersioned(record: Uint8Array): readonly unknown[] {
  const fields = unpackList(record);
  assertVersion(fields[0]);
  return fields;
}

function unpackList(source: Uint8Array): readonly unknown[] {
  try {
    return list(packr.unpack(source));
  } catch (cause) {
    throw unreadable("no MessagePack list", cause);
  }
}

function assertVersion(version: unknown): void {
  if (typeof version !== "number" || version > WIRE_VERSION)
    throw unreadable(
      `format ${String(version)}; this build reads up to ${WIRE_VERSION}`,
    );
}

function channelOf(type: unknown, id: unknown): ChannelRef {
  if (type !== PERSON_CHANNEL && type !== GROUP_CHANNEL)
    throw unreadable("a channel's type");
  return { id: text(id), type };
}

function list(value: unknown): readonly unknown[] {
  if (!Array.isArray(value)) throw unreadable("no list");
  return value;
}

function text(value: unknown): string {
  if (typeof value !== "string") throw unreadable("no string");
  return value;
}

/** Of what may be absent, which is written as null. */
function label(value: unknown): string | undefined {
  return value === null ? undefined : text(value);
}

function uint(value: unknown): number {
  if (!Number.isSafeInteger(value) || (value as number) < 0)
    throw unreadable("a number out of range");
  return value as number; // just checked
}

function positive(value: number): number {
  if (value === 0) throw unreadable("a number out of range");
  return uint(value);
}

function unreadable(what: string, cause?: unknown): BrokerError {
  const message = `Redis holds data that cannot be read: ${what}`;
  return new BrokerError("internal", { message, cause });
}
