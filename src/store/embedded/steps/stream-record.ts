// One event of a stream ⇄ bytes: its WAL record, and its body, the part of the record that the
// database keeps. Pure. A record, little-endian: version u8, kind u8, unused u16, messageSeq f64,
// key (length u16, UTF-8), body. A body: type u8, ending u8, flags u8, unused u8, index u32,
// timestampMs f64, [eventId (length u16, UTF-8)], then the data, UTF-8. It has no version of its
// own: what holds it does.

import { BrokerError } from "../../../broker/errors.ts";
import {
  type ChannelKey,
  STREAM_CONTENT,
  STREAM_END,
  STREAM_START,
  type StreamState,
} from "../../../broker/model.ts";
import { writeText } from "../../../lib/write-text.ts";
import { assertVersion, PLAIN_VERSION, STREAM_RECORD } from "../engine/record.ts";
import { MAX_KEY_UNITS, MAX_LABEL_UNITS } from "../engine/tables.ts";

const RECORD_BYTES = 12;
const BODY_BYTES = 16;
const HAS_ID = 1;

/**
 * How a stream ended. `stopped`: cancelled by a viewer; `replaced`: cancelled by another stream's
 * forced start.
 */
export type Ending = "closed" | "stopped" | "replaced" | "interrupted";

/** Stored as the place in the list. */
const ENDINGS: readonly (Ending | undefined)[] = [
  undefined,
  "closed",
  "stopped",
  "replaced",
  "interrupted",
];
/** Stored as the place in the list. */
const TYPES: readonly string[] = [
  "",
  STREAM_START,
  STREAM_CONTENT,
  STREAM_END,
  "___ToolCallStart",
  "___ToolCallArgs",
  "___ToolCallEnd",
  "___ToolCallResult",
];

/** An event in its place in a stream. */
export interface StreamEvent {
  readonly index: number;
  readonly type: string;
  /** Of the last one. */
  readonly ending: Ending | undefined;
  /** The producer's; undefined: it chose none. */
  readonly eventId: string | undefined;
  readonly data: string;
  readonly timestampMs: number;
}

/** An event's encoded form: the record from `start` to `end`, its body from `body`. */
export interface EncodedEvent {
  readonly bytes: Buffer;
  readonly start: number;
  readonly body: number;
  readonly end: number;
}

/** Which stream an event belongs to. */
export interface StreamName {
  readonly key: ChannelKey;
  readonly messageSeq: number;
}

export function stateAfter(ending: Ending | undefined): StreamState {
  if (ending === undefined) return "active";
  return ending === "stopped" || ending === "replaced" ? "cancelled" : ending;
}

/** Whether a stream can have this name. */
export function isStreamName({
  key,
  clientMsgNo,
}: {
  readonly key: ChannelKey;
  readonly clientMsgNo: string;
}): boolean {
  return key.length <= MAX_KEY_UNITS && clientMsgNo.length <= MAX_LABEL_UNITS;
}

/** Whether events of this type can be kept. */
export function isStreamType(type: string): boolean {
  return type !== "" && TYPES.includes(type);
}

/** As a number, for rows. */
export function endingCode(ending: Ending): number {
  return ENDINGS.indexOf(ending);
}

/** Throws `internal` when no build so far wrote it. */
export function endingOf(code: unknown): Ending {
  const ending = typeof code === "number" ? ENDINGS[code] : undefined;
  if (ending === undefined) throw unreadable(`ending ${code}`);
  return ending;
}

/** The id of an event whose producer chose none. */
export function madeEventId(index: number): string {
  return String(index);
}

/** Room the record needs at most. */
export function maxStreamRecordBytes({ key }: StreamName, { eventId, data }: StreamEvent): number {
  const units = key.length + (eventId?.length ?? 0) + data.length;
  return RECORD_BYTES + BODY_BYTES + 4 + units * 3;
}

/**
 * Writes the record at `at`; returns where its body begins and where it ends. The target has room
 * for `maxStreamRecordBytes`.
 */
export function encodeStreamRecord(
  target: Buffer,
  at: number,
  record: { readonly stream: StreamName; readonly event: StreamEvent },
): { readonly body: number; readonly end: number } {
  const { stream, event } = record;
  target[at] = PLAIN_VERSION;
  target[at + 1] = STREAM_RECORD;
  target[at + 2] = 0;
  target[at + 3] = 0;
  target.writeDoubleLE(stream.messageSeq, at + 4);
  const body = writeString(target, at + RECORD_BYTES, stream.key);
  return { body, end: encodeBody(target, body, event) };
}

function encodeBody(target: Buffer, at: number, event: StreamEvent): number {
  const { index, type, ending, eventId, data, timestampMs } = event;
  target[at] = TYPES.indexOf(type);
  target[at + 1] = ENDINGS.indexOf(ending);
  target[at + 2] = eventId === undefined ? 0 : HAS_ID;
  target[at + 3] = 0;
  target.writeUInt32LE(index, at + 4);
  target.writeDoubleLE(timestampMs, at + 8);
  let end = at + BODY_BYTES;
  if (eventId !== undefined) end = writeString(target, end, eventId);
  return end + writeText(target, end, data);
}

/** Reads a whole record. Throws `internal` on a newer format. */
export function decodeStreamRecord(bytes: Buffer): {
  readonly stream: StreamName;
  readonly event: StreamEvent;
  /** Where the body begins. */
  readonly body: number;
} {
  assertVersion(bytes[0]);
  const keyAt = RECORD_BYTES + 2;
  const body = keyAt + bytes.readUInt16LE(RECORD_BYTES);
  return {
    stream: {
      key: bytes.toString("utf8", keyAt, body),
      messageSeq: bytes.readDoubleLE(4),
    },
    event: decodeBody(bytes.subarray(body)),
    body,
  };
}

/** Reads a whole body. Throws `internal` on what no build so far wrote. */
export function decodeBody(bytes: Buffer): StreamEvent {
  const type = TYPES[bytes[0] ?? 0];
  if (type === undefined || type === "") throw unreadable(`event type ${bytes[0]}`);
  const code = bytes[1] ?? 0;
  let at = BODY_BYTES;
  let eventId: string | undefined;
  if (((bytes[2] ?? 0) & HAS_ID) !== 0) {
    const start = at + 2;
    at = start + bytes.readUInt16LE(at);
    eventId = bytes.toString("utf8", start, at);
  }
  return {
    index: bytes.readUInt32LE(4),
    type,
    ending: code === 0 ? undefined : endingOf(code),
    eventId,
    data: bytes.toString("utf8", at),
    timestampMs: bytes.readDoubleLE(8),
  };
}

function writeString(target: Buffer, at: number, text: string): number {
  const size = writeText(target, at + 2, text);
  target.writeUInt16LE(size, at);
  return at + 2 + size;
}

function unreadable(what: string): BrokerError {
  return new BrokerError("internal", {
    message: `A stored stream has an ${what}, which this build does not know`,
  });
}
