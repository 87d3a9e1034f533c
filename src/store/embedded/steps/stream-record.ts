// Encodes and decodes an event of a stream: its record in the WAL, and its body, the part of the
// record that the database stores. Pure. All numbers are little-endian.
//
//   record   version       u8
//            kind          u8       STREAM_RECORD
//            unused        u16
//            messageSeq    f64
//            key           string   channel key
//            body          bytes    to the end of the record
//
//   body     type          u8       index in TYPES, or CUSTOM
//            ending        u8       index in ENDINGS
//            flags         u8       HAS_ID, HAS_TIME
//            unused        u8
//            index         u32
//            timestampMs   f64
//            customType    string   only if the type is CUSTOM
//            eventId       string   only if the flag HAS_ID is set
//            data          bytes    UTF-8, to the end of the body
//
// A string is the number of its bytes (u16), followed by the bytes in UTF-8. A body has no version
// of its own: the record, or the row that contains it, has one.

import { BrokerError } from "../../../broker/errors.ts";
import {
  type ChannelKey,
  isCustomType,
  STREAM_CONTENT,
  STREAM_END,
  STREAM_START,
  type StreamState,
} from "../../../broker/model.ts";
import { writeText } from "../../../lib/write-text.ts";
import { assertVersion, PLAIN_VERSION, STREAM_RECORD } from "../engine/record.ts";
import { MAX_KEY_UNITS, MAX_LABEL_UNITS } from "../engine/tables.ts";

const RECORD_HEADER_BYTES = 12;
const BODY_HEADER_BYTES = 16;
const LENGTH_BYTES = 2;
const HAS_ID = 1;
const HAS_TIME = 2;

/**
 * `stopped` means that a viewer cancelled the stream. `cancelled` means that its producer cancelled
 * it, or that another stream was started by force.
 */
export type Ending = "closed" | "stopped" | "cancelled" | "interrupted";

const ENDINGS: readonly (Ending | undefined)[] = [
  undefined,
  "closed",
  "stopped",
  "cancelled",
  "interrupted",
];
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
const CUSTOM = 0xff;

export interface StreamEvent {
  readonly index: number;
  readonly type: string;
  readonly ending: Ending | undefined;
  readonly eventId: string | undefined;
  readonly data: string;
  readonly timestampMs: number;
  readonly isTimed: boolean;
}

export interface EncodedEvent {
  readonly bytes: Buffer;
  readonly start: number;
  readonly body: number;
  readonly end: number;
}

export interface StreamName {
  readonly key: ChannelKey;
  readonly messageSeq: number;
}

export function stateAfter(ending: Ending | undefined): StreamState {
  if (ending === undefined) return "active";
  return ending === "stopped" ? "cancelled" : ending;
}

export function isStreamName({
  key,
  clientMsgNo,
}: {
  readonly key: ChannelKey;
  readonly clientMsgNo: string;
}): boolean {
  return key.length <= MAX_KEY_UNITS && clientMsgNo.length <= MAX_LABEL_UNITS;
}

export function isStreamType(type: string): boolean {
  return isCustomType(type) || (type !== "" && TYPES.includes(type));
}

export function endingCode(ending: Ending): number {
  return ENDINGS.indexOf(ending);
}

export function endingOf(code: unknown): Ending {
  const ending = typeof code === "number" ? ENDINGS[code] : undefined;
  if (ending === undefined) throw unreadable(`ending ${code}`);
  return ending;
}

export function maxStreamRecordBytes({ key }: StreamName, event: StreamEvent): number {
  const { type, eventId, data } = event;
  const units = key.length + type.length + (eventId?.length ?? 0) + data.length;
  return RECORD_HEADER_BYTES + BODY_HEADER_BYTES + 3 * LENGTH_BYTES + units * 3;
}

/** Encodes the record of an event. The target must have room for `maxStreamRecordBytes`. */
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
  const body = writeString(target, at + RECORD_HEADER_BYTES, stream.key);
  return { body, end: encodeBody(target, body, event) };
}

function encodeBody(target: Buffer, at: number, event: StreamEvent): number {
  const { index, type, ending, eventId, data, timestampMs, isTimed } = event;
  const isCustom = isCustomType(type);
  target[at] = isCustom ? CUSTOM : TYPES.indexOf(type);
  target[at + 1] = ENDINGS.indexOf(ending);
  target[at + 2] = (eventId === undefined ? 0 : HAS_ID) | (isTimed ? HAS_TIME : 0);
  target[at + 3] = 0;
  target.writeUInt32LE(index, at + 4);
  target.writeDoubleLE(timestampMs, at + 8);
  let end = at + BODY_HEADER_BYTES;
  if (isCustom) end = writeString(target, end, type);
  if (eventId !== undefined) end = writeString(target, end, eventId);
  return end + writeText(target, end, data);
}

export function decodeStreamRecord(bytes: Buffer): {
  readonly stream: StreamName;
  readonly event: StreamEvent;
  readonly body: number;
} {
  assertVersion(bytes[0]);
  const keyAt = RECORD_HEADER_BYTES + 2;
  const body = keyAt + bytes.readUInt16LE(RECORD_HEADER_BYTES);
  return {
    stream: {
      key: bytes.toString("utf8", keyAt, body),
      messageSeq: bytes.readDoubleLE(4),
    },
    event: decodeBody(bytes.subarray(body)),
    body,
  };
}

export function decodeBody(bytes: Buffer): StreamEvent {
  const code = bytes[1] ?? 0;
  const flags = bytes[2] ?? 0;
  let at = BODY_HEADER_BYTES;
  const nextString = () => {
    const start = at + LENGTH_BYTES;
    at = start + bytes.readUInt16LE(at);
    return bytes.toString("utf8", start, at);
  };
  const type = bytes[0] === CUSTOM ? nextString() : TYPES[bytes[0] ?? 0];
  if (type === undefined || type === "") throw unreadable(`event type ${bytes[0]}`);
  const eventId = (flags & HAS_ID) !== 0 ? nextString() : undefined;
  return {
    index: bytes.readUInt32LE(4),
    type,
    ending: code === 0 ? undefined : endingOf(code),
    eventId,
    data: bytes.toString("utf8", at),
    timestampMs: bytes.readDoubleLE(8),
    isTimed: (flags & HAS_TIME) !== 0,
  };
}

function writeString(target: Buffer, at: number, text: string): number {
  const size = writeText(target, at + LENGTH_BYTES, text);
  target.writeUInt16LE(size, at);
  return at + LENGTH_BYTES + size;
}

function unreadable(what: string): BrokerError {
  return new BrokerError("internal", {
    message: `A stored stream has the unknown ${what}. Start the newer build that wrote it.`,
  });
}
