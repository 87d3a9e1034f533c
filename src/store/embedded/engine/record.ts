// One WAL record ⇄ bytes: the codec of everything the message path stores. The same bytes are the
// value in the database's log. Pure. Layout, little-endian: version u8, kind u8, flags u8,
// channelType u8, expireS u32, timestampMs f64, messageId f64, messageSeq f64, counted f64 (not in
// version 1), then strings (length u16, UTF-8): key, channelId, fromUid, clientMsgNo, [streamNo],
// [tagKey], [setting u8 and topic: version 3, which no other record has]; the rest is the payload.

import { BrokerError } from "../../../broker/errors.ts";
import {
  type ChannelType,
  expiresAtMs,
  type Message,
  type MessageHead,
  type Passthrough,
} from "../../../broker/model.ts";
import { writeText } from "../../../lib/write-text.ts";

/** The newest record format this build writes and reads. */
const RECORD_VERSION = 3;
/** Of records without passthrough: the build before reads them. */
export const PLAIN_VERSION = 2;

/** A message of a channel's log. */
export const MESSAGE_RECORD = 1;
/** Only the memory of a clientMsgNo: the message itself was not to be kept. */
export const DEDUPE_RECORD = 2;
/** Only the promise that no message id below `messageId` will be given again. */
export const ID_RESERVATION_RECORD = 3;
/** An event of a stream: another layout behind version and kind (see stream-record.ts). */
export const STREAM_RECORD = 4;
type RecordKind =
  | typeof MESSAGE_RECORD
  | typeof DEDUPE_RECORD
  | typeof ID_RESERVATION_RECORD
  | typeof STREAM_RECORD;

const FIXED_BYTES = 40;
/** Of version 1, which has no count. */
const OLD_FIXED_BYTES = 32;
const EXPIRE_AT = 4;
const TIMESTAMP_AT = 8;
const ID_AT = 16;
const SEQ_AT = 24;
const COUNTED_AT = 32;
/** Before the bytes of a text. */
export const TEXT_LENGTH_BYTES = 2;

const RED_DOT = 1;
const DEDUPE = 2;
const HAS_STREAM = 4;
const HAS_TAG = 8;
const IS_STREAM = 16;
const HAS_PASSTHROUGH = 32;

export interface StoredRecord {
  readonly kind: RecordKind;
  readonly message: Message;
  /** The sender chose the clientMsgNo: a retry is answered with this message. */
  readonly dedupe: boolean;
  /**
   * Of a message: how many of its channel's messages through it count as unread for as long as they
   * are kept (`countsForEver`); else 0.
   */
  readonly counted: number;
  /** The message is a stream's: its text is kept elsewhere and the payload is empty. */
  readonly isStream: boolean;
}

/** What decides whether a message is shown, Unix milliseconds. */
export interface RecordTimes {
  readonly timestampMs: number;
  /** Infinity: never. */
  readonly expiresAtMs: number;
}

/**
 * Whether a message is among the `counted`: those that expire come and go and are counted one by
 * one.
 */
export function countsForEver(redDot: boolean, { expireS }: Pick<Message, "expireS">): boolean {
  return redDot && expireS === 0;
}

/** Room the record of `message` needs at most; strings take up to 3 bytes per UTF-16 unit. */
export function maxRecordBytes(message: Message): number {
  const units =
    message.key.length +
    message.channel.id.length +
    message.fromUid.length +
    message.clientMsgNo.length +
    (message.streamNo?.length ?? 0) +
    (message.tagKey?.length ?? 0) +
    (message.passthrough?.topic.length ?? 0);
  return FIXED_BYTES + 15 + units * 3 + message.payload.length;
}

/**
 * Writes the record at `at` and returns the position behind it. The target has room for
 * `maxRecordBytes`.
 */
export function encodeRecord(target: Buffer, at: number, record: StoredRecord): number {
  const { kind, message, dedupe, isStream } = record;
  const { streamNo, tagKey, passthrough, payload } = message;
  target[at] = passthrough === undefined ? PLAIN_VERSION : RECORD_VERSION;
  target[at + 1] = kind;
  target[at + 2] =
    (message.header.redDot ? RED_DOT : 0) |
    (dedupe ? DEDUPE : 0) |
    (streamNo === undefined ? 0 : HAS_STREAM) |
    (tagKey === undefined ? 0 : HAS_TAG) |
    (isStream ? IS_STREAM : 0) |
    (passthrough === undefined ? 0 : HAS_PASSTHROUGH);
  target[at + 3] = message.channel.type;
  target.writeUInt32LE(message.expireS, at + EXPIRE_AT);
  target.writeDoubleLE(message.timestampMs, at + TIMESTAMP_AT);
  target.writeDoubleLE(message.messageId, at + ID_AT);
  target.writeDoubleLE(message.messageSeq, at + SEQ_AT);
  target.writeDoubleLE(record.counted, at + COUNTED_AT);
  let end = writeString(target, at + FIXED_BYTES, message.key);
  end = writeString(target, end, message.channel.id);
  end = writeString(target, end, message.fromUid);
  end = writeString(target, end, message.clientMsgNo);
  if (streamNo !== undefined) end = writeString(target, end, streamNo);
  if (tagKey !== undefined) end = writeString(target, end, tagKey);
  if (passthrough !== undefined) {
    target[end] = passthrough.setting;
    end = writeString(target, end + 1, passthrough.topic);
  }
  target.set(payload, end);
  return end + payload.length;
}

/** Reads a whole record. Keeps no reference to `data`. Throws `internal` on a newer format. */
export function decodeRecord(data: Uint8Array): StoredRecord {
  const bytes = asBuffer(data);
  assertVersion(bytes[0]);
  const flags = bytes[2] ?? 0;
  let at = textAt(bytes, 0, 0);
  const next = (): string => {
    const start = at + 2;
    at = start + bytes.readUInt16LE(at);
    return bytes.toString("utf8", start, at);
  };
  const passthrough = (): Passthrough => {
    const setting = bytes[at++] ?? 0;
    return { setting, topic: next() };
  };
  const key = next();
  const channel = { id: next(), type: bytes[3] as ChannelType };
  const kind = bytes[1] as RecordKind;
  const message: Message = {
    messageId: bytes.readDoubleLE(ID_AT),
    messageSeq: bytes.readDoubleLE(SEQ_AT),
    key,
    channel,
    fromUid: next(),
    clientMsgNo: next(),
    timestampMs: bytes.readDoubleLE(TIMESTAMP_AT),
    header: {
      noPersist: kind !== MESSAGE_RECORD,
      redDot: (flags & RED_DOT) !== 0,
    },
    expireS: bytes.readUInt32LE(EXPIRE_AT),
    streamNo: flags & HAS_STREAM ? next() : undefined,
    tagKey: flags & HAS_TAG ? next() : undefined,
    passthrough: flags & HAS_PASSTHROUGH ? passthrough() : undefined,
    payload: new Uint8Array(bytes.subarray(at)),
    stream: undefined,
  };
  return {
    kind,
    message,
    dedupe: isDeduped(bytes, 0),
    counted: countedIn(bytes),
    isStream: (flags & IS_STREAM) !== 0,
  };
}

/** A text of every record, in the order they stand in. */
export const FROM_UID = 2;
export const CLIENT_MSG_NO = 3;

/** Where such a text of the record at `at` begins: its length u16, then its bytes. */
export function textAt(bytes: Buffer, at: number, text: number): number {
  let start = at + (bytes[at] === 1 ? OLD_FIXED_BYTES : FIXED_BYTES);
  for (let i = 0; i < text; i++) start += TEXT_LENGTH_BYTES + bytes.readUInt16LE(start);
  return start;
}

/** A text of the record at `at`. */
export function peekText(bytes: Buffer, at: number, text: number): string {
  const start = textAt(bytes, at, text) + TEXT_LENGTH_BYTES;
  const end = start + bytes.readUInt16LE(start - TEXT_LENGTH_BYTES);
  return bytes.toString("utf8", start, end);
}

/**
 * What the record at `at` means for the count of unread messages, without reading the rest of it.
 */
export function peekCounted(
  data: Uint8Array,
  at = 0,
): {
  readonly counted: number;
  /** It is among them itself. */
  readonly counts: boolean;
} {
  const bytes = asBuffer(data);
  assertVersion(bytes[at]);
  const expireS = bytes.readUInt32LE(at + EXPIRE_AT);
  // Nothing of version 1 was counted, so neither is one of it counted alone.
  const counts = bytes[at] !== 1 && countsForEver(hasRedDot(bytes, at), { expireS });
  return { counted: countedIn(bytes, at), counts };
}

/** Of any record, also one of another layout. Throws `internal` on a newer format. */
export function recordKind(data: Uint8Array): RecordKind {
  assertVersion(data[0]);
  return data[1] as RecordKind;
}

/** Whether the record at `at` is a stream's message, without reading the rest of it. */
export function isStreamRecord(data: Uint8Array, at = 0): boolean {
  assertVersion(data[at]);
  return hasFlag(data, at, IS_STREAM);
}

/** Whether the sender of the record at `at` chose its clientMsgNo. */
export function isDeduped(data: Uint8Array, at: number): boolean {
  return hasFlag(data, at, DEDUPE);
}

/** Whether the record at `at` has a red dot. */
export function hasRedDot(data: Uint8Array, at: number): boolean {
  return hasFlag(data, at, RED_DOT);
}

/** Which message the record at `at` is, without reading its content. */
export function peekHead(data: Uint8Array, at = 0): MessageHead {
  const bytes = asBuffer(data);
  assertVersion(bytes[at]);
  return {
    messageId: bytes.readDoubleLE(at + ID_AT),
    messageSeq: bytes.readDoubleLE(at + SEQ_AT),
    clientMsgNo: peekText(bytes, at, CLIENT_MSG_NO),
    timestampMs: bytes.readDoubleLE(at + TIMESTAMP_AT),
  };
}

/** The id of the message that the record at `at` is. */
export function peekId(bytes: Buffer, at: number): number {
  return bytes.readDoubleLE(at + ID_AT);
}

/** Whether the message that the record at `at` is expires. */
export function expires(bytes: Buffer, at: number): boolean {
  return bytes.readUInt32LE(at + EXPIRE_AT) > 0;
}

/** What decides whether the record at `at` is shown, without reading the rest of it. */
export function peekTimes(data: Uint8Array, at = 0): RecordTimes {
  const bytes = asBuffer(data);
  assertVersion(bytes[at]);
  const timestampMs = bytes.readDoubleLE(at + TIMESTAMP_AT);
  const expireS = bytes.readUInt32LE(at + EXPIRE_AT);
  return { timestampMs, expiresAtMs: expiresAtMs({ timestampMs, expireS }) };
}

export function assertVersion(version: number | undefined): void {
  if (version === undefined || version > RECORD_VERSION)
    throw new BrokerError("internal", {
      message: `A stored message has format ${version}; this build reads up to ${RECORD_VERSION}`,
    });
}

function hasFlag(data: Uint8Array, at: number, flag: number): boolean {
  return ((data[at + 2] ?? 0) & flag) !== 0;
}

function countedIn(bytes: Buffer, at = 0): number {
  return bytes[at] === 1 ? 0 : bytes.readDoubleLE(at + COUNTED_AT);
}

function asBuffer(data: Uint8Array): Buffer {
  return Buffer.isBuffer(data) ? data : Buffer.from(data.buffer, data.byteOffset, data.length);
}

function writeString(target: Buffer, at: number, text: string): number {
  const size = writeText(target, at + 2, text);
  target[at] = size & 0xff;
  target[at + 1] = size >>> 8;
  return at + 2 + size;
}
