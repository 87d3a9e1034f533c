// Encodes the events of text streams as frame bodies, and converts them to the JSON messages that
// log readers get. Keeps no state. Numbers are little-endian.
//
//   type          u8      index in TYPES, or CUSTOM
//   flags         u8      HAS_ID, HAS_TIME, IS_HIDDEN; the upper 4 bits are the stream's state
//                         after the event, as an index in STATES
//   timestampMs   f64
//   detail        f64     only in a start or an end (see `StreamEvent`)
//   customType    string  only if the type is CUSTOM
//   eventId       string  only if the flag HAS_ID is set
//   data          bytes   UTF-8, to the end of the body
//
// A string is the number of its bytes (u16), followed by the bytes in UTF-8.

import { writeText } from "../lib/write-text.ts";
import { BrokerError } from "./errors.ts";
import {
  isCustomType,
  STREAM_CONTENT,
  STREAM_END,
  STREAM_START,
  type StreamState,
  TOOL_CALL_EVENTS,
} from "./model.ts";

/** Entries must not be removed or moved, because stored events contain their indexes. */
const TYPES: readonly string[] = [
  "",
  STREAM_START,
  STREAM_CONTENT,
  STREAM_END,
  ...TOOL_CALL_EVENTS,
];
const CUSTOM = 0xff;
const HAS_ID = 1;
const HAS_TIME = 2;
const IS_HIDDEN = 4;
/** Entries must not be removed or moved, because stored events contain their indexes. */
const STATES: readonly StreamState[] = ["active", "closed", "cancelled", "interrupted"];
const STATE_SHIFT = 4;
const HEADER_BYTES = 10;
const DETAIL_BYTES = 8;
const LENGTH_BYTES = 2;

export interface StreamEvent {
  readonly type: string;
  /** `undefined` if the producer chose no id. */
  readonly eventId: string | undefined;
  readonly data: string;
  readonly timestampMs: number;
  /** True if the producer set the time. */
  readonly isTimed: boolean;
  /**
   * For a start in the embedded store, the seq of the stream's message. For an end in the embedded
   * store, the time of `StreamEnd` in Unix milliseconds. Otherwise 0.
   */
  readonly detail: number;
  /** State of the stream after the event. It is `active` unless the event is an end. */
  readonly state: StreamState;
  /**
   * True if no producer posted the event to `/event`. This is the case for the start of a stream
   * that was created through the Durable Streams protocol, for an event that was derived from a
   * record, and for an end that no producer sent. Readers of the log get no message for a hidden
   * event, and its id does not identify retries.
   */
  readonly isHidden: boolean;
  /** Size of the record from which the event was derived. `undefined` for other events. */
  readonly recordBytes?: number | undefined;
}

/** Matches an id that `/message/event` composed (`compat/wukongim/event-ids.ts`). */
export const COMPOSED_EVENT_ID = /^(stream\.[a-z]+)\/(public|)\/([0-9a-z]*)\/([0-9a-z]*)\/(.+)$/is;

/**
 * Returns the id that the producer chose: the last part of an id that `/message/event` composed, or
 * any other id unchanged.
 */
export function givenEventId(eventId: string): string {
  return COMPOSED_EVENT_ID.exec(eventId)?.[5] ?? eventId;
}

export function isStreamType(type: string): boolean {
  return isCustomType(type) || (type !== "" && TYPES.includes(type));
}

/** Returns the number of bytes that `writeEvent` writes. */
export function eventSize({ type, eventId, data }: StreamEvent): number {
  let size = HEADER_BYTES + Buffer.byteLength(data);
  if (hasDetail(type)) size += DETAIL_BYTES;
  if (isCustomType(type)) size += LENGTH_BYTES + Buffer.byteLength(type);
  return eventId === undefined ? size : size + LENGTH_BYTES + Buffer.byteLength(eventId);
}

export function writeEvent(target: Buffer, at: number, event: StreamEvent): void {
  const { type, eventId, data, timestampMs, isTimed, detail, state, isHidden } = event;
  const isCustom = isCustomType(type);
  target[at] = isCustom ? CUSTOM : TYPES.indexOf(type);
  target[at + 1] =
    (eventId === undefined ? 0 : HAS_ID) |
    (isTimed ? HAS_TIME : 0) |
    (isHidden ? IS_HIDDEN : 0) |
    (state === "active" ? 0 : STATES.indexOf(state) << STATE_SHIFT);
  let end = target.writeDoubleLE(timestampMs, at + 2);
  if (hasDetail(type)) end = target.writeDoubleLE(detail, end);
  if (isCustom) end = writeString(target, end, type);
  if (eventId !== undefined) end = writeString(target, end, eventId);
  writeText(target, end, data);
}

/**
 * Decodes the event that `writeEvent` wrote from `start` to `end`. Throws `internal` if the type is
 * unknown.
 */
export function decodeEvent(body: Buffer, start = 0, end = body.length): StreamEvent {
  const code = body[start] ?? 0;
  const flags = body[start + 1] ?? 0;
  let at = start + HEADER_BYTES;
  let type = TYPES[code] ?? "";
  let detail = 0;
  if (hasDetail(type)) {
    detail = body.readDoubleLE(at);
    at += DETAIL_BYTES;
  }
  if (code === CUSTOM) {
    type = stringAt(body, at);
    at += LENGTH_BYTES + body.readUInt16LE(at);
  }
  if (type === "")
    throw new BrokerError("internal", {
      message: `A stored stream contains an event of the unknown type ${code}. Start the newer build that wrote it.`,
    });
  let eventId: string | undefined;
  if ((flags & HAS_ID) !== 0) {
    eventId = stringAt(body, at);
    at += LENGTH_BYTES + body.readUInt16LE(at);
  }
  return {
    type,
    eventId,
    data: body.toString("utf8", at, end),
    timestampMs: body.readDoubleLE(start + 2),
    isTimed: (flags & HAS_TIME) !== 0,
    detail,
    state: STATES[flags >>> STATE_SHIFT] ?? "closed",
    isHidden: (flags & IS_HIDDEN) !== 0,
  };
}

/**
 * Returns the JSON messages that log readers get for an event: the event itself, unless it is
 * hidden, and the stream's state, if the event ends the stream. `index` is the index of the event
 * in the stream.
 */
export function eventMessages(body: Buffer, index: number): Buffer[] {
  const { type, eventId, data, timestampMs, state, isHidden } = decodeEvent(body);
  const messages: Buffer[] = [];
  const id = eventId ?? defaultEventId(index);
  if (!isHidden)
    messages.push(Buffer.from(JSON.stringify({ type, id, index, timestamp: timestampMs, data })));
  if (state !== "active") messages.push(Buffer.from(JSON.stringify({ type: "end", state })));
  return messages;
}

/** Returns the id of an event whose producer chose no id. */
export function defaultEventId(index: number): string {
  return String(index);
}

function hasDetail(type: string): boolean {
  return type === STREAM_START || type === STREAM_END;
}

function stringAt(bytes: Buffer, at: number): string {
  const start = at + LENGTH_BYTES;
  return bytes.toString("utf8", start, start + bytes.readUInt16LE(at));
}

function writeString(target: Buffer, at: number, text: string): number {
  const size = writeText(target, at + LENGTH_BYTES, text);
  target.writeUInt16LE(size, at);
  return at + LENGTH_BYTES + size;
}
