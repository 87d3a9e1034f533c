// Derives the events of a channel stream from the records that clients append through the Durable
// Streams protocol. The log keeps each record as it was sent. Sessions and readers of the history
// get the event, which is derived again at each read. Pure functions.
//
//   record                                                         event
//   text in a stream that is not JSON                              content
//   {"type":"___…","data":"…","id":"…"} of content or a tool call  that event
//   {"type":"text-delta","delta":"…"} of the AI SDK                content
//   {"type":"TEXT_MESSAGE_CONTENT","delta":"…"} of AG-UI           content
//   other JSON                                                     custom event of type `record`

import { isUtf8 } from "node:buffer";
import { stringField } from "../lib/json-scan.ts";
import {
  isWellFormed,
  MAX_ID_LENGTH,
  RESERVED_EVENT_PREFIX,
  STREAM_CONTENT,
  TOOL_CALL_EVENTS,
} from "./model.ts";
import type { StreamEvent } from "./stream-event.ts";

/** Event type of a JSON record that does not represent any other type of event. */
export const RECORD_TYPE = "record";

/** Types of JSON records whose `delta` field is text. */
const TEXT_DELTAS: ReadonlySet<string> = new Set(["text-delta", "TEXT_MESSAGE_CONTENT"]);

/** Returns the event of a record. `timeMs` is the time of the append. */
export function eventOfRecord(record: Uint8Array, timeMs: number, isJson: boolean): StreamEvent {
  const { type, data, eventId } = isJson ? jsonEvent(record) : contentEvent(textOf(record));
  return {
    type,
    eventId,
    data,
    timestampMs: timeMs,
    isTimed: false,
    detail: 0,
    state: "active",
    isHidden: true,
    recordBytes: record.length,
  };
}

/** Returns the reason why a record cannot be an event, or `undefined` if it can be an event. */
export function recordProblem(record: Uint8Array, isJson: boolean): string | undefined {
  if (!isJson) return isUtf8(record) ? undefined : "The body must be UTF-8 text";
  const type = stringField(record, "type");
  if (type === undefined || !type.startsWith(RESERVED_EVENT_PREFIX)) return undefined;
  if (!isEventType(type))
    return "A message may have the type ___TextMessageContent or a type of tool-call events, but no other type that begins with ___";
  const data = stringField(record, "data");
  if (data === undefined || !isWellFormed(data))
    return `The data field of a message of type ${type} must be a string of well-formed Unicode`;
  return undefined;
}

type EventFields = Pick<StreamEvent, "type" | "data" | "eventId">;

function jsonEvent(record: Uint8Array): EventFields {
  const type = stringField(record, "type") ?? "";
  if (isEventType(type)) {
    const id = stringField(record, "id");
    const data = stringField(record, "data") ?? "";
    return { type, data, eventId: id !== undefined && isEventId(id) ? id : undefined };
  }
  const delta = TEXT_DELTAS.has(type) ? stringField(record, "delta") : undefined;
  // A delta may end inside a surrogate pair. The conversion to UTF-8 replaces the lone surrogate.
  if (delta !== undefined) return contentEvent(Buffer.from(delta).toString());
  return { type: RECORD_TYPE, data: textOf(record), eventId: undefined };
}

function contentEvent(data: string): EventFields {
  return { type: STREAM_CONTENT, data, eventId: undefined };
}

function textOf({ buffer, byteOffset, length }: Uint8Array): string {
  return Buffer.from(buffer, byteOffset, length).toString();
}

function isEventType(type: string): boolean {
  return type === STREAM_CONTENT || TOOL_CALL_EVENTS.has(type);
}

function isEventId(id: string): boolean {
  return id !== "" && id.length <= MAX_ID_LENGTH && isWellFormed(id);
}
