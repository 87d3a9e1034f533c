// Encodes EVENT, STREAM and the `stream` record of a message, on the server. An EVENT is written
// for every chunk of a stream, so it is written in one pass without intermediate arrays.

import type {
  ChannelEvent,
  ChannelRef,
  StreamNote,
  StreamPlace,
  StreamSnapshot,
  StreamState,
} from "../../broker/model.ts";
import { PUSH_OPS, STREAM_STATES } from "./ops.ts";
import { begin, FIXED_BYTES, type FrameWriter, textBytes } from "./writer.ts";

const EVENT_FIELDS = 9;
const STREAM_FIELDS = 8;

export function writeEvent(writer: FrameWriter, channel: ChannelRef, event: ChannelEvent): void {
  const { fromUid, clientMsgNo, eventId, type, data, stream } = event;
  begin(
    writer,
    { op: PUSH_OPS.event, ref: 0, fields: EVENT_FIELDS },
    textBytes(channel.id) +
      textBytes(fromUid) +
      textBytes(clientMsgNo) +
      textBytes(eventId) +
      textBytes(type) +
      textBytes(data),
  );
  writer.uint(channel.type);
  writer.text(channel.id);
  writer.text(fromUid);
  writer.text(clientMsgNo);
  writer.text(eventId);
  writer.text(type);
  writer.text(data);
  writer.uint(event.timestampMs);
  if (stream === undefined) writer.nil();
  else writeStreamPosition(writer, stream);
}

export function writeStream(
  writer: FrameWriter,
  head: { readonly op: number; readonly ref: number },
  { channel, snapshot }: { readonly channel: ChannelRef; readonly snapshot: StreamSnapshot },
): void {
  const { fromUid, clientMsgNo, text } = snapshot;
  begin(
    writer,
    { ...head, fields: STREAM_FIELDS },
    textBytes(channel.id) +
      textBytes(fromUid) +
      textBytes(clientMsgNo) +
      textBytes(text) +
      recordBytes(snapshot),
  );
  writer.uint(channel.type);
  writer.text(channel.id);
  writer.uint(snapshot.messageSeq);
  writer.uint(snapshot.messageId);
  writer.text(fromUid);
  writer.text(clientMsgNo);
  writer.text(text);
  writeRecord(writer, snapshot);
}

export function recordBytes(snapshot: StreamSnapshot): number {
  const { startData, endData, notes } = snapshot;
  let bytes = FIXED_BYTES + textBytes(startData) + textBytes(endData ?? "");
  for (const note of notes) bytes += noteBytes(note);
  return bytes;
}

export function writeRecord(writer: FrameWriter, snapshot: StreamSnapshot): void {
  const { notes, truncated } = snapshot;
  writer.array(truncated ? 6 : 5);
  writer.uint(stateNumber(snapshot.state));
  writer.uint(snapshot.nextIndex);
  writer.text(snapshot.startData);
  writer.optionalText(snapshot.endData);
  writer.array(notes.length);
  for (const note of notes) writeNote(writer, note);
  if (truncated) writer.bool(true);
}

export function stateNumber(state: StreamState): number {
  return STREAM_STATES.indexOf(state);
}

function noteBytes({ eventId, type, data }: StreamNote): number {
  return FIXED_BYTES + textBytes(eventId) + textBytes(type) + textBytes(data);
}

function writeNote(writer: FrameWriter, note: StreamNote): void {
  writer.array(6);
  writer.uint(note.index);
  writer.uint(note.textOffset);
  writer.text(note.eventId);
  writer.text(note.type);
  writer.text(note.data);
  writer.uint(note.timestampMs);
}

function writeStreamPosition(writer: FrameWriter, position: StreamPlace): void {
  writer.array(position.truncated ? 6 : 5);
  writer.uint(position.messageSeq);
  writer.uint(position.index);
  writer.uint(position.nextIndex);
  writer.uint(position.textOffset);
  writer.uint(stateNumber(position.state));
  if (position.truncated) writer.bool(true);
}
