// What messages, conversations and events of streams count against the bounds of what is kept and
// read at once, alike in every store. Pure.

import {
  type Message,
  STREAM_CONTENT,
  STREAM_END,
  STREAM_START,
  type StreamNote,
  type StreamSnapshot,
} from "../broker/model.ts";

/** What a conversation counts beside its message's content, about. */
export const CONVERSATION_BYTES = 256;
/** What is kept with a tool-call event beside its strings, about. */
const NOTE_BYTES = 48;

/** The payload, and what is kept with a stream beside its text, which the payload has. */
export function contentBytes({ payload, stream }: Message): number {
  return payload.length + (stream === undefined ? 0 : streamBytes(stream));
}

function streamBytes({ startData, endData, notes }: StreamSnapshot): number {
  let bytes = Buffer.byteLength(startData) + Buffer.byteLength(endData ?? "");
  for (const note of notes) bytes += noteBytes(note);
  return bytes;
}

/** An event as it is counted; without an id its producer named none. */
type CountedEvent = Pick<StreamNote, "type" | "data"> & {
  readonly eventId?: string | undefined;
};

/**
 * Bytes an event counts against the bound of its stream: what it adds to what a viewer who joins is
 * sent, where text may come as JSON. Never 0, so that the bound holds for empty ones too. The same
 * event always counts the same, or a replay would judge otherwise.
 */
export function snapshotBytes(event: CountedEvent): number {
  const { type, data } = event;
  if (type === STREAM_CONTENT) return Math.max(1, jsonBytes(data));
  if (type === STREAM_START || type === STREAM_END) return Math.max(1, Buffer.byteLength(data));
  return noteBytes(event);
}

function noteBytes({ type, data, eventId = "" }: CountedEvent): number {
  const strings = Buffer.byteLength(eventId) + type.length;
  return NOTE_BYTES + strings + Buffer.byteLength(data);
}

/** Within the quotes. */
function jsonBytes(text: string): number {
  return Buffer.byteLength(JSON.stringify(text)) - 2;
}
