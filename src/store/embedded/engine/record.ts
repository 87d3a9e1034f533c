// Encodes and decodes a message's record: its value in the WAL and in the table `log`. Keeps
// no state.
//
// Layout of versions 1 to 5, little-endian. A log change (kind LOG_RECORD) and an event of the feed
// (kind EVENT_RECORD) have different layouts after the first two bytes (see log-state.ts and
// event-record.ts).
//
//   offset   field         type     present
//        0   version       u8       always
//        1   kind          u8       always
//        2   flags         u8       always
//        3   channelType   u8       always
//        4   expireS       u32      always; 0 means that the message does not expire
//        8   timestampMs   f64      always
//       16   messageId     f64      always
//       24   messageSeq    f64      always; 0 if the message is not stored
//       32   counted       f64      in version 2 and later
//       40   key           string   always (at offset 32 in version 1)
//            channelId     string   always
//            fromUid       string   always
//            clientMsgNo   string   always
//            streamNo      string   if the flag HAS_STREAM is set
//            tagKey        string   if the flag HAS_TAG is set
//            setting       u8       if the flag HAS_PASSTHROUGH is set, always in version 3
//            topic         string   if the flag HAS_PASSTHROUGH is set
//            sourceId      u64      in version 4, whose flag HAS_SOURCE is always set: the message
//                                   was imported
//            sentHash      8 bytes  in version 5: the hash of the payload that the sender sent and
//                                   that a hook replaced
//            payload       bytes    always; up to the end of the record. A DEDUPE_RECORD has the
//                                   hash of the payload instead (see store/payload-hash.ts)
//
// A string is its length in bytes (u16), followed by its UTF-8 bytes.

import { BrokerError } from "../../../broker/errors.ts";
import {
  type ChannelType,
  expiresAtMs,
  type Message,
  type MessageHead,
  messageTimeMs,
  type Passthrough,
} from "../../../broker/model.ts";
import { HASH_BYTES } from "../../../lib/byte-hash.ts";
import { writeText } from "../../../lib/write-text.ts";

/** Highest record version that this build reads. */
export const RECORD_VERSION = 6;
/**
 * Version of event records. It is higher than the versions of message records, so that an older
 * build rejects an event record instead of reading it as a message.
 */
export const EVENT_VERSION = 6;
const SENT_HASH_VERSION = 5;
const IMPORTED_VERSION = 4;
const PASSTHROUGH_VERSION = 3;
/** Version of records without a `passthrough`. Builds that do not know version 3 can read them. */
export const PLAIN_VERSION = 2;

export const MESSAGE_RECORD = 1;
/** Kind of the record of a message that is not stored but whose retries must be recognised. */
export const DEDUPE_RECORD = 2;
/** Kind of a record that reserves ids: no id up to its `messageId` may be assigned again. */
export const ID_RESERVATION_RECORD = 3;
export const LOG_RECORD = 5;
export const EVENT_RECORD = 6;
type RecordKind =
  | typeof MESSAGE_RECORD
  | typeof DEDUPE_RECORD
  | typeof ID_RESERVATION_RECORD
  | typeof LOG_RECORD
  | typeof EVENT_RECORD;

const FIXED_BYTES = 40;
const OLD_FIXED_BYTES = 32;
const EXPIRE_AT = 4;
const TIMESTAMP_AT = 8;
const ID_AT = 16;
const SEQ_AT = 24;
const COUNTED_AT = 32;
export const TEXT_LENGTH_BYTES = 2;

const RED_DOT = 1;
const DEDUPE = 2;
const HAS_STREAM = 4;
const HAS_TAG = 8;
const IS_STREAM = 16;
const HAS_PASSTHROUGH = 32;
const HAS_SOURCE = 64;
const HAS_EVENT = 128;
const SOURCE_BYTES = 8;

export interface StoredRecord {
  readonly kind: RecordKind;
  readonly message: Message;
  /** True if the sender chose the clientMsgNo, so that retries of the message are recognised. */
  readonly dedupe: boolean;
  /**
   * Number of the channel's messages that have a red dot and do not expire, up to and including
   * this message. 0 in version 1 records, in command records and in all kinds except
   * MESSAGE_RECORD.
   */
  readonly counted: number;
  readonly isStream: boolean;
  /**
   * True if the message has an event in the feed. `undefined` is encoded as false. Decoding omits
   * the value (see the function `hasEvent`).
   */
  readonly hasEvent?: boolean;
  /**
   * Hash of the payload that the sender sent. `undefined` if no hook replaced the payload. Decoding
   * omits the hash (see `hasSentHash`).
   */
  readonly sentHash?: Uint8Array | undefined;
}

export interface RecordTimes {
  /**
   * Time from which the message's age is computed: the time in the message id, or `timestampMs` for
   * an imported message. It never decreases within a channel.
   */
  readonly acceptedMs: number;
  readonly timestampMs: number;
  /** `Infinity` if the message does not expire. */
  readonly expiresAtMs: number;
}

export function countsPermanently(redDot: boolean, { expireS }: Pick<Message, "expireS">): boolean {
  return redDot && expireS === 0;
}

/**
 * Returns an upper bound for the size of a record. A UTF-16 code unit takes at most 3 bytes in
 * UTF-8.
 */
export function maxRecordBytes(message: Message): number {
  const units =
    message.key.length +
    message.channel.id.length +
    message.fromUid.length +
    message.clientMsgNo.length +
    (message.streamNo?.length ?? 0) +
    (message.tagKey?.length ?? 0) +
    (message.passthrough?.topic.length ?? 0);
  const optionalBytes = 15 + SOURCE_BYTES + HASH_BYTES;
  return FIXED_BYTES + optionalBytes + units * 3 + message.payload.length;
}

/**
 * Encodes a record at the offset `at` and returns the offset of its end. The target must have room
 * for `maxRecordBytes` bytes.
 */
export function encodeRecord(target: Buffer, at: number, record: StoredRecord): number {
  const { kind, message, dedupe, isStream, sentHash } = record;
  const { streamNo, tagKey, passthrough, sourceId, payload } = message;
  target[at] = sentHash === undefined ? versionOf(message) : SENT_HASH_VERSION;
  target[at + 1] = kind;
  target[at + 2] =
    (message.header.redDot ? RED_DOT : 0) |
    (dedupe ? DEDUPE : 0) |
    (streamNo === undefined ? 0 : HAS_STREAM) |
    (tagKey === undefined ? 0 : HAS_TAG) |
    (isStream ? IS_STREAM : 0) |
    (passthrough === undefined ? 0 : HAS_PASSTHROUGH) |
    (sourceId === undefined ? 0 : HAS_SOURCE) |
    (record.hasEvent ? HAS_EVENT : 0);
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
  if (sourceId !== undefined) end = target.writeBigUInt64LE(BigInt(sourceId), end);
  if (sentHash !== undefined) {
    target.set(sentHash, end);
    end += HASH_BYTES;
  }
  target.set(payload, end);
  return end + payload.length;
}

function versionOf({ passthrough, sourceId }: Message): number {
  if (sourceId !== undefined) return IMPORTED_VERSION;
  return passthrough === undefined ? PLAIN_VERSION : PASSTHROUGH_VERSION;
}

/**
 * Decodes a record of any kind except LOG_RECORD and EVENT_RECORD. Keeps no reference to `data`.
 */
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
  const source = (): string => {
    at += SOURCE_BYTES;
    return String(bytes.readBigUInt64LE(at - SOURCE_BYTES));
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
    ...(flags & HAS_SOURCE ? { sourceId: source() } : {}),
    payload: new Uint8Array(bytes.subarray(bytes[0] === SENT_HASH_VERSION ? at + HASH_BYTES : at)),
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

/** Indexes of strings in the layout. The string `key` has the index 0. */
export const FROM_UID = 2;
export const CLIENT_MSG_NO = 3;
const AFTER_CLIENT_MSG_NO = 4;

export function textAt(bytes: Buffer, at: number, text: number): number {
  let start = at + (bytes[at] === 1 ? OLD_FIXED_BYTES : FIXED_BYTES);
  for (let i = 0; i < text; i++) start += TEXT_LENGTH_BYTES + bytes.readUInt16LE(start);
  return start;
}

export function peekText(bytes: Buffer, at: number, text: number): string {
  const start = textAt(bytes, at, text) + TEXT_LENGTH_BYTES;
  const end = start + bytes.readUInt16LE(start - TEXT_LENGTH_BYTES);
  return bytes.toString("utf8", start, end);
}

/** Returns the offset at which the payload of the record at `at` begins. */
export function payloadAt(bytes: Buffer, at: number): number {
  const flags = bytes[at + 2] ?? 0;
  let start = textAt(bytes, at, AFTER_CLIENT_MSG_NO);
  const skipText = () => {
    start += TEXT_LENGTH_BYTES + bytes.readUInt16LE(start);
  };
  if (flags & HAS_STREAM) skipText();
  if (flags & HAS_TAG) skipText();
  if (flags & HAS_PASSTHROUGH) {
    start += 1; // setting
    skipText();
  }
  if (flags & HAS_SOURCE) start += SOURCE_BYTES;
  return bytes[at] === SENT_HASH_VERSION ? start + HASH_BYTES : start;
}

/**
 * Returns true if a hook replaced the payload. The hash of the payload that the sender sent is then
 * stored before the new payload.
 */
export function hasSentHash(bytes: Buffer, at: number): boolean {
  return bytes[at] === SENT_HASH_VERSION;
}

export function peekCounted(
  data: Uint8Array,
  at = 0,
): {
  readonly counted: number;
  readonly isCounted: boolean;
} {
  const bytes = asBuffer(data);
  assertVersion(bytes[at]);
  const expireS = bytes.readUInt32LE(at + EXPIRE_AT);
  // A record of version 1 has no `counted`, so its message is not included in the `counted` of
  // later records either.
  const isCounted = bytes[at] !== 1 && countsPermanently(hasRedDot(bytes, at), { expireS });
  return { counted: countedIn(bytes, at), isCounted };
}

export function recordKind(data: Uint8Array): RecordKind {
  assertVersion(data[0]);
  return data[1] as RecordKind;
}

export function isStreamRecord(data: Uint8Array, at = 0): boolean {
  assertVersion(data[at]);
  return hasFlag(data, at, IS_STREAM);
}

/** Returns the id that an imported message had at its source, or `undefined` for other messages. */
export function peekSourceId(bytes: Buffer, at = 0): bigint | undefined {
  if (!hasFlag(bytes, at, HAS_SOURCE)) return undefined;
  return bytes.readBigUInt64LE(payloadAt(bytes, at) - SOURCE_BYTES);
}

export function hasEvent(data: Uint8Array, at: number): boolean {
  return hasFlag(data, at, HAS_EVENT);
}

export function isDeduped(data: Uint8Array, at: number): boolean {
  return hasFlag(data, at, DEDUPE);
}

export function hasRedDot(data: Uint8Array, at: number): boolean {
  return hasFlag(data, at, RED_DOT);
}

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

export function peekId(bytes: Buffer, at: number): number {
  return bytes.readDoubleLE(at + ID_AT);
}

export function expires(bytes: Buffer, at: number): boolean {
  return bytes.readUInt32LE(at + EXPIRE_AT) > 0;
}

export function peekTimes(data: Uint8Array, at = 0): RecordTimes {
  const bytes = asBuffer(data);
  assertVersion(bytes[at]);
  const timestampMs = bytes.readDoubleLE(at + TIMESTAMP_AT);
  const expireS = bytes.readUInt32LE(at + EXPIRE_AT);
  const acceptedMs = hasFlag(bytes, at, HAS_SOURCE)
    ? timestampMs
    : messageTimeMs(bytes.readDoubleLE(at + ID_AT));
  return { acceptedMs, timestampMs, expiresAtMs: expiresAtMs({ timestampMs, expireS }) };
}

export function assertVersion(version: number | undefined): void {
  if (version === undefined || version > RECORD_VERSION)
    throw new BrokerError("internal", {
      message: `A stored message has format ${version}, but this build reads formats up to ${RECORD_VERSION}. Start the newer build that wrote it.`,
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
