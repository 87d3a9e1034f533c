// Encodes and decodes the records that nodes store in Redis, and the frames that they send each
// other through Redis. No other TypeScript file reads or writes these bytes. `lua/shared.lua`
// builds the same frames inside Redis. Newer formats are rejected, and fields are checked, because
// Redis may contain any data. Exceptions: the event in UNORDERED, and the `logFrame` in LOG. Pure.
//
// Frames. Numbers are big-endian, and every f64 is an integer below 2^53. All fields of a frame are
// always present, in this order.
//
//   frame      field           type        value
//   (all)      version         u8          WIRE_VERSION
//              kind            u8          kind of the frame, see the `…_FRAME` constants
//   MESSAGE    publicationSeq  f64
//              messageId       f64
//              messageSeq      f64         0 if the message is not stored
//              record          str         MessagePack string, see `encodeRecord`
//              extra           str         MessagePack string, see below
//   EVENT      publicationSeq  f64
//              messageSeq      f64         seq of the stream's message
//              index           f64         index of the event in its stream
//              textOffset      f64         UTF-16 code units of the stream's text before the event
//              state           u8          index into STREAM_STATES
//              headLength      u16
//              head            bytes       see `encodeStreamHead`
//              logFrame        bytes       the event's frame in the log of its stream; extends to
//                                          the end of the frame
//   UNORDERED  body            msgpack     [id, event]
//   BATCH      frames          list        UNORDERED frames, each preceded by its length as u32;
//                                          extends to the end of the frame
//   MARK       mark            bytes       chosen by the publisher; extends to the end of the frame
//   REMOVAL    publicationSeq  f64
//              body            msgpack     [group id, removed uids]; false in place of the uids
//                                          if any member may have been removed
//   COMMAND    messageId       f64
//              inboxSeq        f64         0 if the user's inbox contains no copy
//              recordLength    u32
//              record          bytes       see `encodeRecord`
//              uidLength       u16
//              uid             bytes
//              origin          bytes       session that sent the command and gets no push of it;
//                                          empty if all sessions get the push; extends to the
//                                          end of the frame
//   LOG        change          u8          index into LOG_CHANGES
//              ending          u8          index into LOG_ENDINGS
//              incarnation     u32
//              fromPosition    f64         offset before the change: position and check
//              fromCheck       u32
//              tailPosition    f64         offset after the change
//              tailCheck       u32
//              nameLength      u16
//              name            bytes       see `logNameText`
//              logFrame        bytes       empty if the event has no frame; extends to the end of
//                                          the frame
//   RECORDS    publicationSeq  f64
//              messageSeq      f64         seq of the stream's message
//              textOffset      f64         UTF-16 code units of the text that viewers are shown
//                                          before the first event
//              cutIndex        f64         index of the first event that viewers are not shown,
//                                          -1 if they are shown all events
//              maxDataBytes    u32         see `ViewLimits`, 0 if no limit applies to the stream
//              headLength      u16
//              head            bytes       see `encodeStreamHead`
//              logFrame        bytes       a frame of the log, whose records are events of the
//                                          stream; extends to the end of the frame
//
// The extra is a MessagePack list:
//
//   field       type            value
//   origin      string or null  session that sent the message and gets no push of it
//   recipients  list or null    uids to which the push is limited
//   stream      "" or null      "" if the message begins a stream
//   idBefore    integer         id of the channel's message before this one, 0 if unknown; present
//                               only if publications of the channel may overtake each other
//
// A publication is one frame, except that MESSAGE frames are published together as a MessagePack
// list of strings. The list contains three strings for each message: the fields before `record`,
// the record and the extra.

import { Packr } from "msgpackr";
import { BrokerError } from "../broker/errors.ts";
import { eventIn, visitEvents, wholeFrames } from "../broker/log-frame.ts";
import type { LogEnding, LogEvent } from "../broker/log-ports.ts";
import {
  type ChannelEvent,
  type ChannelRef,
  type CommandCopy,
  channelKey,
  clientMsgNoOf,
  GROUP_CHANNEL,
  isEmptyStreamPayload,
  type Message,
  type MessageHeader,
  type Passthrough,
  PERSON_CHANNEL,
  STREAM_CONTENT,
  type StreamSnapshot,
  type StreamState,
  streamPayload,
} from "../broker/model.ts";
import type { ClusterEvent } from "../broker/ports.ts";
import { defaultEventId, type StreamEvent } from "../broker/stream-event.ts";
import { publishedEvent, StreamView } from "../broker/stream-fold.ts";

export type OrderedEvent = Extract<ClusterEvent, { kind: "message" | "event" | "removal" }>;

/** A stream's events in one publication. `events` is empty if viewers are not shown any of them. */
export interface EventList {
  readonly kind: "events";
  readonly source: EventSource;
  readonly events: readonly ChannelEvent[];
}

/** Format of the frames and records that this build writes. Newer formats are rejected. */
export const WIRE_VERSION = 2;

export const MESSAGE_FRAME = 1;
export const EVENT_FRAME = 2;
const UNORDERED_FRAME = 3;
const MARK_FRAME = 4;
const COMMAND_FRAME = 5;
export const REMOVAL_FRAME = 7;
const BATCH_FRAME = 8;
const LOG_FRAME = 9;
const RECORDS_FRAME = 10;

/**
 * Stream states. The index of a state is its number in records and keys. The order is part of the
 * format.
 */
export const STREAM_STATES: readonly StreamState[] = [
  "active",
  "closed",
  "cancelled",
  "interrupted",
];

/**
 * Log endings. The index of an ending is its number in frames and keys. The order is part of the
 * format.
 */
export const LOG_ENDINGS: readonly (LogEnding | undefined)[] = [
  undefined,
  "closed",
  "stopped",
  "cancelled",
  "interrupted",
];
const LOG_CHANGES: readonly (LogEvent["change"] | undefined)[] = [undefined, "appended", "deleted"];

/** Offsets of the first variable-length field in each frame. */
const MESSAGE_RECORD_AT = 26;
const EVENT_HEAD_AT = 37;
const REMOVAL_BODY_AT = 10;
const COMMAND_BODY_AT = 22;
const BATCH_FRAMES_AT = 2;
const BATCH_LENGTH_BYTES = 4;
const LOG_BODY_AT = 34;
const RECORDS_HEAD_AT = 40;
const MAX_EXTRA = 4;
const STRINGS_PER_MESSAGE = 3;
// First bytes of the MessagePack types that Lua in Redis writes.
const FIXED_LIST = 0x90;
const LIST_16 = 0xdc;
const FIXED_STRING = 0xa0;
const STRING_8 = 0xd9;
const STRING_16 = 0xda;
const STRING_32 = 0xdb;
const NO_PERSIST = 1;
const RED_DOT = 2;
const SYNC_ONCE = 4;

export const packr = new Packr({ useRecords: false, int64AsType: "number" });

const EMPTY_EXTRA = [null, null, null];
const PACKED_EMPTY_EXTRA = packr.pack(EMPTY_EXTRA);

type RecordedMessage = Pick<
  Message,
  | "channel"
  | "fromUid"
  | "clientMsgNo"
  | "header"
  | "expireS"
  | "streamNo"
  | "tagKey"
  | "passthrough"
  | "sourceId"
  | "payload"
>;

interface MessageExtra {
  readonly origin: string | undefined;
  readonly recipients: readonly string[] | undefined;
  readonly isStream?: boolean;
  readonly idBefore?: number | undefined;
}

export function encodeRecord(message: RecordedMessage, timestampMs: number): Buffer {
  const { channel, header, streamNo, tagKey, passthrough, sourceId, payload } = message;
  const fields = [
    WIRE_VERSION,
    channel.type,
    channel.id,
    message.fromUid,
    message.clientMsgNo,
    timestampMs,
    (header.noPersist ? NO_PERSIST : 0) |
      (header.redDot ? RED_DOT : 0) |
      (header.syncOnce ? SYNC_ONCE : 0),
    message.expireS,
    streamNo ?? null,
    tagKey ?? null,
    Buffer.from(payload.buffer, payload.byteOffset, payload.length),
  ];
  if (passthrough !== undefined || sourceId !== undefined)
    fields.push(passthrough?.setting ?? null, passthrough?.topic ?? null);
  if (sourceId !== undefined) fields.push(sourceId);
  return packr.pack(fields);
}

/** Decodes a record. Throws `internal` if the record has a newer format or is invalid. */
export function decodeRecord(
  record: Uint8Array,
  place: {
    readonly messageId: number;
    readonly messageSeq: number;
    readonly stream?: StreamSnapshot | undefined;
    /**
     * Payload with the stream's text so far. Used if the stream's message has no payload of its
     * own.
     */
    readonly payload?: Uint8Array;
  },
): Message {
  const fields = unpackVersioned(record);
  const channel = channelOf(fields[1], fields[2]);
  const fromUid = text(fields[3]);
  const bits = uint(fields[6]);
  const header: MessageHeader = {
    noPersist: (bits & NO_PERSIST) !== 0,
    redDot: (bits & RED_DOT) !== 0,
    ...((bits & SYNC_ONCE) !== 0 && { syncOnce: true }),
  };
  const payload = fields[10];
  if (!(payload instanceof Uint8Array)) throw unreadable("a payload is not a byte string");
  return {
    messageId: place.messageId,
    messageSeq: place.messageSeq,
    key: channelKey(channel, fromUid),
    channel,
    fromUid,
    clientMsgNo: text(fields[4]) || clientMsgNoOf(place.messageId),
    timestampMs: uint(fields[5]),
    header,
    expireS: uint(fields[7]),
    streamNo: label(fields[8]),
    tagKey: label(fields[9]),
    passthrough: passthroughOf(fields),
    ...(fields.length < 14 ? {} : { sourceId: text(fields[13]) }),
    payload:
      place.payload !== undefined && isEmptyStreamPayload(payload)
        ? place.payload
        : copied(payload),
    stream: place.stream,
  };
}

function passthroughOf(fields: readonly unknown[]): Passthrough | undefined {
  if (fields.length < 13 || fields[11] === null) return undefined;
  return { setting: uint(fields[11]), topic: text(fields[12]) };
}

function copied(bytes: Uint8Array): Uint8Array {
  const { buffer, byteOffset, length } = Buffer.from(bytes);
  return new Uint8Array(buffer, byteOffset, length);
}

/** Fields that all events of a stream share. */
type EventSource = Pick<ChannelEvent, "key" | "channel" | "fromUid" | "clientMsgNo">;

/** Returns the channel, the sender and the `clientMsgNo` of a message or of events. */
export function sourceOf(
  event: Exclude<OrderedEvent, { kind: "removal" }> | EventList,
): EventSource {
  switch (event.kind) {
    case "message":
      return event.message;
    case "event":
      return event.event;
    case "events":
      return event.source;
  }
}

/** Encodes the fields that all events of a stream share. They are also stored with the stream. */
export function encodeStreamHead(source: Omit<EventSource, "key">): Buffer {
  const { channel, fromUid, clientMsgNo } = source;
  return packr.pack([WIRE_VERSION, channel.type, channel.id, fromUid, clientMsgNo]);
}

/** Decodes a stream's head. Throws `internal` if the version is newer or the bytes are invalid. */
export function decodeStreamHead(head: Uint8Array): EventSource {
  const [, type, id, from, clientMsgNo] = unpackVersioned(head);
  const channel = channelOf(type, id);
  const fromUid = text(from);
  const key = channelKey(channel, fromUid);
  return { key, channel, fromUid, clientMsgNo: text(clientMsgNo) };
}

export function encodeExtra(extra: MessageExtra): Buffer {
  const { origin, recipients, isStream = false, idBefore } = extra;
  const stream = isStream ? "" : null;
  const fields = [origin ?? null, recipients ?? null, stream];
  if (idBefore !== undefined) return packr.pack([...fields, idBefore]);
  // Most messages that are sent over HTTP have an empty extra.
  if (origin === undefined && recipients === undefined) if (!isStream) return PACKED_EMPTY_EXTRA;
  return packr.pack(fields);
}

/**
 * A decoded frame. `publicationSeq` numbers the publications of a channel from 1. Messages, stream
 * events and member removals are publications.
 */
export type Publication =
  | {
      readonly kind: "ordered";
      readonly publicationSeq: number;
      readonly event: OrderedEvent | EventList;
    }
  | {
      readonly kind: "unordered";
      /** Id of the publication. The same publication may arrive on several topics. */
      readonly id: string;
      readonly event: ClusterEvent;
    }
  | { readonly kind: "log"; readonly event: LogEvent }
  | { readonly kind: "mark"; readonly mark: string };

/**
 * Encodes a publication of one message in the same way as the Lua scripts. Used on a Redis Cluster,
 * where a channel's script cannot publish to users.
 */
export function messagePublication(message: {
  readonly publicationSeq: number;
  readonly messageId: number;
  readonly messageSeq: number;
  readonly record: Uint8Array;
  readonly extra: Uint8Array;
}): Buffer {
  const head = Buffer.alloc(MESSAGE_RECORD_AT);
  head[0] = WIRE_VERSION;
  head[1] = MESSAGE_FRAME;
  head.writeDoubleBE(message.publicationSeq, 2);
  head.writeDoubleBE(message.messageId, 10);
  head.writeDoubleBE(message.messageSeq, 18);
  return Buffer.concat([
    Buffer.from([FIXED_LIST | STRINGS_PER_MESSAGE]),
    ...[head, message.record, message.extra].flatMap((bytes) => [stringHead(bytes.length), bytes]),
  ]);
}

export function unorderedFrame(id: string, event: ClusterEvent): Buffer {
  return Buffer.concat([Buffer.from([WIRE_VERSION, UNORDERED_FRAME]), packr.pack([id, event])]);
}

/** Joins unordered frames into one publication. */
export function batchOf(frames: readonly Buffer[]): Buffer {
  return Buffer.concat([
    Buffer.from([WIRE_VERSION, BATCH_FRAME]),
    ...frames.flatMap((frame) => {
      const length = Buffer.alloc(BATCH_LENGTH_BYTES);
      length.writeUInt32BE(frame.length);
      return [length, frame];
    }),
  ]);
}

export function isUnorderedBatch(publication: Buffer): boolean {
  return kindOf(publication) === BATCH_FRAME;
}

/** Splits a batch into its frames. `isWhole` is false if the batch ends inside a frame. */
export function framesOfBatch(batch: Buffer): {
  readonly frames: readonly Buffer[];
  readonly isWhole: boolean;
} {
  const frames: Buffer[] = [];
  let at = BATCH_FRAMES_AT;
  while (at + BATCH_LENGTH_BYTES <= batch.length) {
    const start = at + BATCH_LENGTH_BYTES;
    const end = start + batch.readUInt32BE(at);
    if (end > batch.length) break;
    frames.push(batch.subarray(start, end));
    at = end;
  }
  return { frames, isWhole: at === batch.length };
}

/** Encodes a mark. A subscriber sends marks to check that its connection still delivers frames. */
export function markFrame(mark: string): Buffer {
  return Buffer.concat([Buffer.from([WIRE_VERSION, MARK_FRAME]), Buffer.from(mark)]);
}

export function commandFrame(command: {
  readonly messageId: number;
  readonly copy: CommandCopy;
  readonly record: Uint8Array;
  readonly origin: string | undefined;
}): Buffer {
  const { record, copy, origin = "" } = command;
  const uid = Buffer.from(copy.uid);
  const head = Buffer.alloc(COMMAND_BODY_AT);
  head[0] = WIRE_VERSION;
  head[1] = COMMAND_FRAME;
  head.writeDoubleBE(command.messageId, 2);
  head.writeDoubleBE(copy.inboxSeq, 10);
  head.writeUInt32BE(record.length, 18);
  const size = Buffer.alloc(2);
  size.writeUInt16BE(uid.length);
  return Buffer.concat([head, record, size, uid, Buffer.from(origin)]);
}

/** Returns the kind of a frame, or `undefined` if the frame is empty or has a newer format. */
export function kindOf(frame: Buffer): number | undefined {
  return (frame[0] ?? WIRE_VERSION + 1) <= WIRE_VERSION ? frame[1] : undefined;
}

export const publicationSeqOf = (frame: Buffer): number => frame.readDoubleBE(2);

export const messageIdOf = (frame: Buffer): number => frame.readDoubleBE(10);
export const messageSeqOf = (frame: Buffer): number => frame.readDoubleBE(18);

/**
 * Returns the id of the channel's message before the message in this frame, 0 if it is unknown.
 * Returns `undefined` if the frame does not contain that id. Only frames on topics without a fixed
 * order need it.
 */
export function idBeforeOf(frame: Buffer): number | undefined {
  const from = endOfString(frame, MESSAGE_RECORD_AT);
  const at = contentAt(frame, from);
  if (frame[at] !== (FIXED_LIST | MAX_EXTRA)) return undefined;
  const extra = frame.subarray(at, endOfString(frame, from));
  return uint(unpackList(extra)[MAX_EXTRA - 1]);
}

/**
 * Decodes a frame. Throws `internal` if the frame is invalid, or has an unknown kind or a newer
 * format. In an unordered frame, only the id is checked.
 */
export function decodeFrame(frame: Buffer): Publication {
  assertVersion(frame[0]);
  switch (frame[1]) {
    case MESSAGE_FRAME:
      return decodeMessageFrame(frame);
    case EVENT_FRAME:
      return decodeEventFrame(frame);
    case UNORDERED_FRAME: {
      // Byte strings are decoded to the type of `source`, which must therefore be a plain
      // `Uint8Array`.
      const source = new Uint8Array(frame.subarray(2));
      const [id, event] = unpackList(source);
      return { kind: "unordered", id: text(id), event: event as ClusterEvent };
    }
    case REMOVAL_FRAME:
      return decodeRemovalFrame(frame);
    case MARK_FRAME:
      return { kind: "mark", mark: frame.toString("utf8", 2) };
    case COMMAND_FRAME:
      return decodeCommandFrame(frame);
    case LOG_FRAME:
      return { kind: "log", event: decodeLogFrame(frame) };
    case RECORDS_FRAME:
      return decodeRecordsFrame(frame);
    default:
      throw unreadable(`the frame kind ${frame[1]} is unknown`);
  }
}

export function isMessages(publication: Buffer): boolean {
  const [first = 0] = publication;
  return (first & 0xf0) === FIXED_LIST || first === LIST_16;
}

/**
 * Splits a list of messages into its frames, in order. `isWhole` is false if the list ends inside a
 * message, or if the number of strings differs from the number that the head of the list contains.
 */
export function framesOf(messages: Buffer): {
  readonly frames: readonly Buffer[];
  readonly isWhole: boolean;
} {
  const frames: Buffer[] = [];
  const isLong = messages[0] === LIST_16;
  let at = isLong ? 3 : 1;
  while (at < messages.length) {
    const start = contentAt(messages, at);
    const recordAt = endOfString(messages, at);
    const end = endOfString(messages, endOfString(messages, recordAt));
    if (!(end <= messages.length) || recordAt - start !== MESSAGE_RECORD_AT) break;
    frames.push(messages.subarray(start, end));
    at = end;
  }
  const [first = 0, high = 0, low = 0] = messages;
  const strings = isLong ? high * 256 + low : first & 0x0f;
  const isWhole = at === messages.length && strings === frames.length * STRINGS_PER_MESSAGE;
  return { frames, isWhole };
}

function stringHead(bytes: number): Buffer {
  const head = Buffer.alloc(5);
  if (bytes < 32) return head.fill(FIXED_STRING | bytes).subarray(0, 1);
  if (bytes < 2 ** 8) {
    head[0] = STRING_8;
    return head.subarray(0, head.writeUInt8(bytes, 1));
  }
  if (bytes < 2 ** 16) {
    head[0] = STRING_16;
    return head.subarray(0, head.writeUInt16BE(bytes, 1));
  }
  head[0] = STRING_32;
  head.writeUInt32BE(bytes, 1);
  return head;
}

function contentAt(bytes: Buffer, at: number): number {
  const kind = bytes[at] ?? 0;
  if ((kind & 0xe0) === FIXED_STRING) return at + 1;
  if (kind === STRING_8) return at + 2;
  if (kind === STRING_16) return at + 3;
  return kind === STRING_32 ? at + 5 : Number.NaN;
}

/**
 * Returns the offset after the string at `at`. The offset is beyond the end of `bytes` if the
 * string is cut off. Returns `NaN` if there is no string.
 */
function endOfString(bytes: Buffer, at: number): number {
  const start = contentAt(bytes, at);
  if (!(start <= bytes.length)) return Number.NaN;
  switch (start - at) {
    case 1:
      return start + ((bytes[at] ?? 0) & 0x1f);
    case 2:
      return start + bytes.readUInt8(at + 1);
    case 3:
      return start + bytes.readUInt16BE(at + 1);
    default:
      return start + bytes.readUInt32BE(at + 1);
  }
}

function decodeMessageFrame(frame: Buffer): Publication {
  const end = endOfString(frame, MESSAGE_RECORD_AT);
  const record = frame.subarray(contentAt(frame, MESSAGE_RECORD_AT), end);
  const extra = frame.subarray(contentAt(frame, end), endOfString(frame, end));
  const fields = unpackExtra(extra);
  const [origin, recipients, stream] = fields;
  // `idBefore` is checked here so that `idBeforeOf` cannot throw.
  if (fields.length >= MAX_EXTRA) uint(fields[MAX_EXTRA - 1]);
  const publicationSeq = positive(frame.readDoubleBE(2));
  const place = {
    messageId: positive(frame.readDoubleBE(10)),
    messageSeq: uint(frame.readDoubleBE(18)),
  };
  // Every stored message also has a publication number, so its seq cannot exceed that number.
  if (place.messageSeq > publicationSeq)
    throw unreadable("the seq of a message is higher than its publication number");
  const plain = decodeRecord(record, place);
  const message = stream === null ? plain : withStream(plain);
  return {
    kind: "ordered",
    publicationSeq,
    event: {
      kind: "message",
      message,
      origin: label(origin),
      recipients: recipients === null ? undefined : list(recipients).map(text),
    },
  };
}

function unpackExtra(extra: Buffer): readonly unknown[] {
  return PACKED_EMPTY_EXTRA.equals(extra) ? EMPTY_EXTRA : unpackList(extra);
}

/** Returns a stream's message as it was when the stream started. */
export function withStream(plain: Message): Message {
  const text = plain.stream?.text ?? "";
  const hasOwnPayload = Buffer.compare(plain.payload, streamPayload(text)) !== 0;
  const message = { ...plain, payload: hasOwnPayload ? plain.payload : streamPayload("") };
  const { key, channel, fromUid, clientMsgNo, messageId, messageSeq } = message;
  return {
    ...message,
    stream: {
      ...{ key, channel, fromUid, clientMsgNo, messageId, messageSeq },
      ...{ state: "active", text: "", nextIndex: 0, startData: "" },
      ...{ endData: undefined, notes: [] },
    },
  };
}

function decodeEventFrame(frame: Buffer): Publication {
  const index = uint(frame.readDoubleBE(18));
  const state = STREAM_STATES[frame[34] ?? -1];
  if (state === undefined) throw unreadable(`the stream state ${frame[34]} is unknown`);
  const logFrameAt = EVENT_HEAD_AT + frame.readUInt16BE(EVENT_HEAD_AT - 2);
  const { eventId, type, data, timestampMs } = storedEvent(frame.subarray(logFrameAt));
  const stream = {
    messageSeq: uint(frame.readDoubleBE(10)),
    index,
    nextIndex: index + 1,
    textOffset: uint(frame.readDoubleBE(26)),
    state,
  };
  const { key, channel, fromUid, clientMsgNo } = decodeStreamHead(
    frame.subarray(EVENT_HEAD_AT, logFrameAt),
  );
  const hasGivenId = eventId !== undefined;
  return {
    kind: "ordered",
    publicationSeq: positive(frame.readDoubleBE(2)),
    event: {
      kind: "event",
      event: {
        ...{ key, channel, fromUid, clientMsgNo, type, data, hasGivenId, stream },
        eventId: eventId ?? defaultEventId(index),
        timestampMs: uint(timestampMs),
      },
    },
  };
}

function storedEvent(logFrame: Buffer): StreamEvent {
  try {
    return eventIn(logFrame);
  } catch (cause) {
    throw unreadable("the frame of an event is invalid", cause);
  }
}

function decodeRecordsFrame(frame: Buffer): Publication {
  const maxDataBytes = frame.readUInt32BE(34);
  const cutIndex = frame.readDoubleBE(26);
  const logFrameAt = RECORDS_HEAD_AT + frame.readUInt16BE(RECORDS_HEAD_AT - 2);
  const source = decodeStreamHead(frame.subarray(RECORDS_HEAD_AT, logFrameAt));
  const head = { ...source, messageSeq: uint(frame.readDoubleBE(10)) };
  const view = new StreamView(head, { maxBytes: Infinity, maxDataBytes }, maxDataBytes > 0);
  if (cutIndex >= 0) view.cutFrom(uint(cutIndex));
  let textOffset = uint(frame.readDoubleBE(18));
  const events: ChannelEvent[] = [];
  for (const { event, index } of storedEvents(frame.subarray(logFrameAt))) {
    // A viewer who joins after the cut has less text than was published. An event after the cut
    // therefore has the offset 0, which is never too high.
    const offset = index > (view.cutIndex ?? Infinity) ? 0 : textOffset;
    const published = publishedEvent(head, view, { ...event, index }, offset);
    if (published === undefined) continue;
    events.push(published);
    if (published.type === STREAM_CONTENT) textOffset += published.data.length;
  }
  return {
    kind: "ordered",
    publicationSeq: positive(frame.readDoubleBE(2)),
    event: { kind: "events", source, events },
  };
}

function storedEvents(logFrame: Buffer) {
  const events: { readonly event: StreamEvent; readonly index: number }[] = [];
  try {
    if (wholeFrames(logFrame) === logFrame.length)
      visitEvents(logFrame, (event, index) => events.push({ event, index }));
  } catch (cause) {
    throw unreadable("the frame of records is invalid", cause);
  }
  if (events.length === 0)
    throw unreadable("a publication does not contain a complete frame of records");
  for (const { event } of events) uint(event.timestampMs);
  return events;
}

function decodeRemovalFrame(frame: Buffer): Publication {
  const [group, uids] = unpackList(frame.subarray(REMOVAL_BODY_AT));
  return {
    kind: "ordered",
    publicationSeq: positive(frame.readDoubleBE(2)),
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
    kind: "unordered",
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

function decodeLogFrame(frame: Buffer): LogEvent {
  const change = LOG_CHANGES[frame[2] ?? 0];
  const ending = frame[3] ?? 0;
  if (change === undefined || ending >= LOG_ENDINGS.length)
    throw unreadable("the change or the ending of a log is unknown");
  const offsetAt = (at: number) => ({
    position: uint(frame.readDoubleBE(at)),
    check: frame.readUInt32BE(at + 8),
  });
  const end = LOG_BODY_AT + frame.readUInt16BE(LOG_BODY_AT - 2);
  const logFrame = frame.subarray(end);
  return {
    ...{ kind: "log", change, closed: LOG_ENDINGS[ending] },
    nameText: frame.toString("utf8", LOG_BODY_AT, end),
    incarnation: frame.readUInt32BE(4),
    ...{ from: offsetAt(8), tail: offsetAt(20) },
    frame: logFrame.length > 0 ? logFrame : undefined,
  };
}

/**
 * Unpacks a MessagePack list whose first item is a version. Throws `internal` if the version is
 * newer than this build's or the bytes are not such a list.
 */
export function unpackVersioned(record: Uint8Array): readonly unknown[] {
  const fields = unpackList(record);
  assertVersion(fields[0]);
  return fields;
}

function unpackList(source: Uint8Array): readonly unknown[] {
  try {
    return list(packr.unpack(source));
  } catch (cause) {
    throw unreadable("a record or frame is not a MessagePack list", cause);
  }
}

function assertVersion(version: unknown): void {
  if (typeof version !== "number" || version > WIRE_VERSION)
    throw unreadable(
      `format ${String(version)} is unknown; the newest format of this build is ${WIRE_VERSION}`,
    );
}

function channelOf(type: unknown, id: unknown): ChannelRef {
  if (type !== PERSON_CHANNEL && type !== GROUP_CHANNEL)
    throw unreadable("a channel type is unknown");
  return { id: text(id), type };
}

function list(value: unknown): readonly unknown[] {
  if (!Array.isArray(value)) throw unreadable("a field is not a list");
  return value;
}

function text(value: unknown): string {
  if (typeof value !== "string") throw unreadable("a field is not a string");
  return value;
}

function label(value: unknown): string | undefined {
  return value === null ? undefined : text(value);
}

function uint(value: unknown): number {
  if (!Number.isSafeInteger(value) || (value as number) < 0)
    throw unreadable("a number is out of range");
  return value as number;
}

function positive(value: number): number {
  if (value === 0) throw unreadable("a number is out of range");
  return uint(value);
}

function unreadable(problem: string, cause?: unknown): BrokerError {
  const message = `Redis holds data that cannot be decoded: ${problem}`;
  return new BrokerError("internal", { message, cause });
}
