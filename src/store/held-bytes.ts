// Sizes of messages, conversations and stream events, as counted against the limits on memory and
// reads. All stores count in the same way.

import {
  type Message,
  STREAM_CONTENT,
  STREAM_END,
  STREAM_START,
  type StreamNote,
  type StreamSnapshot,
} from "../broker/model.ts";

export const CONVERSATION_BYTES = 256;
const NOTE_BYTES = 48;

export function contentBytes({ payload, stream }: Pick<Message, "payload" | "stream">): number {
  return payload.length + (stream === undefined ? 0 : streamBytes(stream, payload));
}

/**
 * Returns the size of a stream. The text is not counted if the payload is longer than the text,
 * because the payload may then contain the text.
 */
function streamBytes(
  { text, startData, endData, notes }: StreamSnapshot,
  { length }: Uint8Array,
): number {
  const textBytes = Buffer.byteLength(text);
  let bytes = length > textBytes ? 0 : textBytes;
  bytes += Buffer.byteLength(startData) + Buffer.byteLength(endData ?? "");
  for (const note of notes) bytes += noteBytes(note);
  return bytes;
}

type CountedEvent = Pick<StreamNote, "type" | "data"> & {
  readonly eventId?: string | undefined;
};

/**
 * Returns the size that an event adds towards its stream's limit, at least 1. The result must
 * always be the same for the same event, because a rollback and a restart compute it again.
 */
export function snapshotBytes(event: CountedEvent): number {
  const { type, data } = event;
  if (type === STREAM_CONTENT) return Math.max(1, jsonBytes(data));
  if (type === STREAM_START || type === STREAM_END) return Math.max(1, Buffer.byteLength(data));
  return noteBytes(event);
}

/** Maximum number of bytes that JSON needs for a UTF-16 code unit: `\u` and 4 digits. */
const MAX_UNIT_BYTES = 6;

/** Returns an upper bound of `snapshotBytes` that is fast to compute. */
export function maxSnapshotBytes({ type, data, eventId = "" }: CountedEvent): number {
  return NOTE_BYTES + MAX_UNIT_BYTES * (type.length + data.length + eventId.length);
}

function noteBytes({ type, data, eventId = "" }: CountedEvent): number {
  const strings = Buffer.byteLength(eventId) + Buffer.byteLength(type);
  return NOTE_BYTES + strings + Buffer.byteLength(data);
}

function jsonBytes(text: string): number {
  return Buffer.byteLength(JSON.stringify(text)) - 2;
}
