// Names, buckets, frames and offsets of logs. The stores and the readers of logs use these
// functions, so that all stores keep the same bytes. Keeps no state.
//
// The records of one append are one frame. Numbers are little-endian.
//
//   field    type         meaning
//   size     u32          number of bytes of the body
//   kind     u8           ONE_RECORD, SEVERAL_RECORDS, EVENT, TIMED_RECORDS or TIMED_TEXTS
//   body     size bytes   depends on `kind`, see below
//   first    u32          number of records of the log before this frame
//   check    u32          see `nextCheck`
//
//   kind              body
//   ONE_RECORD        the record
//   SEVERAL_RECORDS   number of records (u32), end of each record counted from the start of the
//                     first record (u32 each), the records
//   EVENT             event of a text stream (see stream-event.ts), which counts as one record
//   TIMED_RECORDS,    time of an append to a channel's stream in Unix milliseconds (f64), then the
//   TIMED_TEXTS       body of SEVERAL_RECORDS
//
// An offset consists of the number of bytes of the log's frames before it, and the check of the
// frame that ends there. The check depends on all bytes before it. An offset is therefore not valid
// in a log with different frames, even if these frames have the same length.

import { crc32, crc32OfText } from "../lib/crc32.ts";
import { BrokerError } from "./errors.ts";
import { type ChannelKey, isId, STREAM_CONTENT, type Topic } from "./model.ts";
import {
  decodeEvent,
  eventMessages,
  eventSize,
  type StreamEvent,
  writeEvent,
} from "./stream-event.ts";
import { eventOfRecord } from "./stream-record.ts";

/**
 * Number of buckets. The bucket of a channel depends on a hash of its key, and the bucket of a free
 * log on a hash of its path. The log of a channel's stream is in the channel's bucket. On Redis,
 * all keys of a bucket are in one hash slot. On a Redis Cluster, a message id has 6 bits for the
 * bucket.
 */
export const BUCKETS = 64;
export const MAX_LOG_SEGMENTS = 8;

/** Name of a free log, which has its own path, or of the log of a channel message. */
export type LogName =
  | {
      readonly kind: "free";
      /** 1 to `MAX_LOG_SEGMENTS` segments, joined by `/` (see `logPath`). */
      readonly path: string;
    }
  | { readonly kind: "channel"; readonly key: ChannelKey; readonly clientMsgNo: string };

/**
 * Returns the path of a free log. Returns `undefined` if the number of segments is not between 1
 * and `MAX_LOG_SEGMENTS`. Also returns `undefined` if a decoded segment contains a slash or is not
 * an id.
 */
export function logPath(segments: readonly string[]): string | undefined {
  if (segments.length === 0 || segments.length > MAX_LOG_SEGMENTS) return undefined;
  return segments.every((segment) => isId(segment) && !segment.includes("/"))
    ? segments.join("/")
    : undefined;
}

/** Returns a string that is different for every log. */
export function logNameText(name: LogName): string {
  // No channel key begins with a slash.
  return name.kind === "free" ? `/${name.path}` : `${name.key}\n${name.clientMsgNo}`;
}

export function logNameOf(text: string): LogName {
  if (text.startsWith("/")) return { kind: "free", path: text.slice(1) };
  const at = text.indexOf("\n");
  return { kind: "channel", key: text.slice(0, at), clientMsgNo: text.slice(at + 1) };
}

/** Returns the bucket of a channel key or of a free log's path. */
export function bucketOf(text: string): number {
  return crc32OfText(text) % BUCKETS;
}

export function logBucket(name: LogName): number {
  return bucketOf(name.kind === "free" ? name.path : name.key);
}

/** Returns the topic on which changes to the bucket's logs are published. */
export function logTopic(bucket: number): Topic {
  return `l:${bucket}`;
}

// --- Content types -------------------------------------------------------------------------------

/** Returns the media type in lower case, without parameters. */
export function mediaTypeOf(contentType: string): string {
  const end = contentType.indexOf(";");
  return (end === -1 ? contentType : contentType.slice(0, end)).trim().toLowerCase();
}

export function isSameMediaType(a: string, b: string): boolean {
  return a === b || mediaTypeOf(a) === mediaTypeOf(b);
}

/** Returns true if the records of a log with this content type are JSON messages. */
export function isJsonLog(contentType: string): boolean {
  return mediaTypeOf(contentType) === "application/json";
}

// --- Offsets -------------------------------------------------------------------------------------

export interface LogOffset {
  /** Number of bytes of the log's frames before this offset. */
  readonly position: number;
  /** Check of the frame that ends at the offset. 0 at position 0. */
  readonly check: number;
}

export const LOG_START: LogOffset = { position: 0, check: 0 };

const OFFSET = /^(\d{16})_(\d{16})$/;
const DIGITS = 16;

/** Returns `<16 digits of the position>_<16 digits of the check>`. */
export function formatOffset({ position, check }: LogOffset): string {
  return `${String(position).padStart(DIGITS, "0")}_${String(check).padStart(DIGITS, "0")}`;
}

/**
 * Parses an offset. Returns `undefined` if the text is malformed. A position above
 * `Number.MAX_SAFE_INTEGER` is reduced to that number.
 */
export function parseOffset(text: string): LogOffset | undefined {
  const [, position, check] = OFFSET.exec(text) ?? [];
  if (position === undefined || check === undefined) return undefined;
  return {
    position: Math.min(Number(position), Number.MAX_SAFE_INTEGER),
    check: Math.min(Number(check), Number.MAX_SAFE_INTEGER),
  };
}

export function isSameOffset(a: LogOffset, b: LogOffset): boolean {
  return a.position === b.position && a.check === b.check;
}

// --- Frames --------------------------------------------------------------------------------------

const ONE_RECORD = 1;
const SEVERAL_RECORDS = 2;
const EVENT = 3;
const TIMED_RECORDS = 4;
const TIMED_TEXTS = 5;
const KIND_AT = 4;
const BODY_AT = 5;
const TIME_BYTES = 8;
const COUNT_BYTES = 4;
const END_BYTES = 4;
/** Size in bytes of the last two fields, which a frame's CRC does not cover. */
export const TRAILER_BYTES = 8;
/** Size in bytes of the check, the last field of a frame. */
export const CHECK_BYTES = 4;

/** Number of bytes that a single-record frame needs in addition to the record. */
export const FRAME_BYTES = BODY_AT + TRAILER_BYTES;

/**
 * Returns the check after a frame: `rol(before, 5) xor crc`. `before` is the check of the previous
 * frame. For the first frame of a log, it is the log's incarnation. `crc` is the CRC-32 of the
 * size, the kind and the body (see `openFrame`).
 */
export function nextCheck(before: number, crc: number): number {
  return (((before << 5) | (before >>> 27)) ^ crc) >>> 0;
}

/** A frame whose last two fields are not set yet. They depend on the frame's place in the log. */
export interface OpenFrame {
  /** The whole frame, including the two fields that are not set yet. */
  readonly bytes: Buffer;
  readonly crc: number;
  readonly records: number;
}

/** Builds the frame of one append. `records` must not be empty. */
export function openFrame(records: readonly Uint8Array[]): OpenFrame {
  const [first] = records;
  const isSingle = records.length === 1;
  const size = records.reduce((sum, record) => sum + record.length, 0);
  const prefix = isSingle ? 0 : COUNT_BYTES + records.length * END_BYTES;
  const bytes = frameWithout(isSingle ? ONE_RECORD : SEVERAL_RECORDS, prefix + size);
  if (isSingle && first !== undefined) bytes.set(first, BODY_AT);
  else writeRecords(bytes, records, BODY_AT);
  return openFrameOf(bytes, records.length);
}

/**
 * Builds the frame of one append to a channel's stream. `records` must not be empty. `isJson` is
 * true if the log is in JSON mode.
 */
export function openTimedFrame(
  records: readonly Uint8Array[],
  timeMs: number,
  isJson: boolean,
): OpenFrame {
  const size = records.reduce((sum, record) => sum + record.length, 0);
  const prefix = TIME_BYTES + COUNT_BYTES + records.length * END_BYTES;
  const bytes = frameWithout(isJson ? TIMED_RECORDS : TIMED_TEXTS, prefix + size);
  writeRecords(bytes, records, bytes.writeDoubleLE(timeMs, BODY_AT));
  return openFrameOf(bytes, records.length);
}

/** Returns a copy of a complete frame as an open frame, which has no place in a log yet. */
export function reopenFrame(frame: LogFrame): OpenFrame {
  return openFrameOf(Buffer.from(frame.bytes), recordCount(frame));
}

export function openEventFrame(event: StreamEvent): OpenFrame {
  const bytes = frameWithout(EVENT, eventSize(event));
  writeEvent(bytes, BODY_AT, event);
  return openFrameOf(bytes, 1);
}

function frameWithout(kind: number, bodyBytes: number): Buffer {
  const bytes = Buffer.allocUnsafe(FRAME_BYTES + bodyBytes);
  bytes.writeUInt32LE(bodyBytes, 0);
  bytes[KIND_AT] = kind;
  return bytes;
}

function openFrameOf(bytes: Buffer, records: number): OpenFrame {
  return { bytes, crc: crc32(bytes.subarray(0, bytes.length - TRAILER_BYTES)), records };
}

/** Writes the number of records, their ends and their bytes, beginning at `countAt`. */
function writeRecords(bytes: Buffer, records: readonly Uint8Array[], countAt: number): void {
  bytes.writeUInt32LE(records.length, countAt);
  const start = countAt + COUNT_BYTES + records.length * END_BYTES;
  let endAt = countAt + COUNT_BYTES;
  let at = start;
  for (const record of records) {
    bytes.set(record, at);
    at += record.length;
    bytes.writeUInt32LE(at - start, endAt);
    endAt += END_BYTES;
  }
}

/** Writes the last two fields. Returns the check, which is part of the offset after the frame. */
export function sealFrame(
  { bytes, crc }: OpenFrame,
  place: { readonly first: number; readonly checkBefore: number },
): number {
  const check = nextCheck(place.checkBefore, crc);
  bytes.writeUInt32LE(place.first, bytes.length - TRAILER_BYTES);
  bytes.writeUInt32LE(check, bytes.length - CHECK_BYTES);
  return check;
}

/** A whole frame. Its bytes are a view of the buffer that it was read from. */
export interface LogFrame {
  readonly bytes: Buffer;
  /** Number of records of the log before this frame. */
  readonly first: number;
  readonly check: number;
}

/** Returns the frame that consists of these bytes. */
export function frameOf(frame: Uint8Array): LogFrame {
  const bytes = asBuffer(frame);
  return {
    bytes,
    first: bytes.readUInt32LE(bytes.length - TRAILER_BYTES),
    check: lastCheck(bytes),
  };
}

/** Returns the check of the frame that ends with these bytes. */
export function lastCheck(frames: Buffer): number {
  return frames.readUInt32LE(frames.length - CHECK_BYTES);
}

/**
 * Yields the whole frames in `piece`, which must begin at the start of a frame. Leaves out an
 * incomplete frame at the end. Use `frameSize` to get the full size of that frame.
 */
export function* framesIn(piece: Uint8Array): Generator<LogFrame> {
  const buffer = asBuffer(piece);
  let at = 0;
  for (;;) {
    const size = frameSize(buffer, at);
    if (size === undefined || at + size > buffer.length) return;
    const bytes = buffer.subarray(at, at + size);
    at += size;
    yield frameOf(bytes);
  }
}

/**
 * Returns the size of the frame that begins at `at`, or `undefined` if `piece` ends within the
 * first two fields of the frame.
 */
export function frameSize(piece: Uint8Array, at: number): number | undefined {
  if (at + BODY_AT > piece.length) return undefined;
  return FRAME_BYTES + asBuffer(piece).readUInt32LE(at);
}

/** Returns the number of bytes that the whole frames at the start of `piece` occupy. */
export function wholeFrames(piece: Uint8Array): number {
  let end = 0;
  for (const { bytes } of framesIn(piece)) end += bytes.length;
  return end;
}

export function recordCount({ bytes }: Pick<LogFrame, "bytes">): number {
  const countAt = countPlace(bytes);
  return countAt === undefined ? 1 : bytes.readUInt32LE(countAt);
}

/**
 * Returns the index of the byte at which a frame stores its number of records, or `undefined` if
 * frames of this kind always have one record.
 */
function countPlace(bytes: Buffer): number | undefined {
  if (bytes[KIND_AT] === SEVERAL_RECORDS) return BODY_AT;
  return isTimed(bytes) ? BODY_AT + TIME_BYTES : undefined;
}

function isTimed(bytes: Buffer): boolean {
  return bytes[KIND_AT] === TIMED_RECORDS || bytes[KIND_AT] === TIMED_TEXTS;
}

/**
 * Calls `visit`, in order, for each event in `piece`. `piece` must consist of whole frames of a
 * channel's stream. This is much faster than `framesIn`, which matters because a history page can
 * have thousands of events. `skipsRecords` is called before each frame of records. If it returns
 * true, the frame is skipped. Callers skip frames because visiting 16 MiB of records takes about a
 * second.
 */
export function visitEvents(
  piece: Buffer,
  visit: (event: StreamEvent, index: number) => void,
  skipsRecords: () => boolean = () => false,
): void {
  let at = 0;
  while (at < piece.length) {
    const end = at + BODY_AT + piece.readUInt32LE(at);
    const first = piece.readUInt32LE(end);
    if (piece[at + KIND_AT] === EVENT) visit(decodeEvent(piece, at + BODY_AT, end), first);
    else if (!skipsRecords()) visitRecords(piece.subarray(at, end + TRAILER_BYTES), visit);
    at = end + TRAILER_BYTES;
  }
}

function visitRecords(bytes: Buffer, visit: (event: StreamEvent, index: number) => void): void {
  const timeMs = isTimed(bytes) ? bytes.readDoubleLE(BODY_AT) : 0;
  const isJson = bytes[KIND_AT] !== TIMED_TEXTS;
  let index = frameOf(bytes).first;
  for (const record of recordsIn({ bytes })) visit(eventOfRecord(record, timeMs, isJson), index++);
}

/** Returns the event of a frame. Throws if the bytes are not one whole event frame. */
export function eventIn(frame: Buffer): StreamEvent {
  if (frameSize(frame, 0) !== frame.length || frame[KIND_AT] !== EVENT)
    throw new BrokerError("internal", { message: "The bytes are not an event frame." });
  return decodeEvent(frame, BODY_AT, frame.length - TRAILER_BYTES);
}

/**
 * Returns the records of a frame as readers of the log receive them. Stored records are views of
 * the frame's bytes. In JSON mode, an event is returned as JSON messages. Otherwise, the data of a
 * content event is returned, and other events yield no records.
 */
export function recordsIn({ bytes }: Pick<LogFrame, "bytes">, isJson = true): Buffer[] {
  const body = bytes.subarray(BODY_AT, bytes.length - TRAILER_BYTES);
  if (bytes[KIND_AT] === EVENT)
    return isJson ? eventMessages(body, frameOf(bytes).first) : contentOf(body);
  const countAt = countPlace(bytes);
  if (countAt === undefined) return [body];
  const list = bytes.subarray(countAt, bytes.length - TRAILER_BYTES);
  const count = list.readUInt32LE(0);
  const start = COUNT_BYTES + count * END_BYTES;
  const records: Buffer[] = [];
  let from = start;
  for (let i = 0; i < count; i++) {
    const end = start + list.readUInt32LE(COUNT_BYTES + i * END_BYTES);
    records.push(list.subarray(from, end));
    from = end;
  }
  return records;
}

function contentOf(body: Buffer): Buffer[] {
  const { type, data } = decodeEvent(body);
  return type === STREAM_CONTENT ? [Buffer.from(data)] : [];
}

/**
 * Returns the first `size` records of the frame if `isJson` is true, otherwise its first `size`
 * bytes. Returns `undefined` if the frame is shorter.
 */
export function cutRecords(
  frame: Pick<LogFrame, "bytes">,
  size: number,
  isJson: boolean,
): readonly Uint8Array[] | undefined {
  const records = recordsIn(frame, isJson);
  if (isJson) return size <= records.length ? records.slice(0, size) : undefined;
  const bytes = records.length === 1 ? records[0] : Buffer.concat(records);
  return bytes !== undefined && size <= bytes.length ? [bytes.subarray(0, size)] : undefined;
}

/** Returns true if the part that `cutRecords` returns for `size` is the whole frame. */
export function isWholeCut(frame: Pick<LogFrame, "bytes">, size: number, isJson: boolean): boolean {
  const records = recordsIn(frame, isJson);
  if (isJson) return size === records.length;
  return size === records.reduce((sum, record) => sum + record.length, 0);
}

function asBuffer(bytes: Uint8Array): Buffer {
  return Buffer.isBuffer(bytes) ? bytes : Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length);
}
