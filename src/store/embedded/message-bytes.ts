// How much a message holds, for the bounds of what is read at once. Pure.

import type { Message, StreamSnapshot } from "../../broker/model.ts";

/** Numbers and marks around one event of a stream. */
const NOTE_BYTES = 48;

/** The payload, and what is kept with a stream beside its text, which the payload has. */
export function contentBytes({ payload, stream }: Message): number {
  return payload.length + (stream === undefined ? 0 : streamBytes(stream));
}

function streamBytes({ startData, endData, notes }: StreamSnapshot): number {
  let bytes = Buffer.byteLength(startData) + Buffer.byteLength(endData ?? "");
  for (const { eventId, type, data } of notes)
    bytes +=
      NOTE_BYTES + eventId.length + type.length + Buffer.byteLength(data);
  return bytes;
}
