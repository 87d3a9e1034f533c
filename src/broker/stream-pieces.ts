// Turns a snapshot of a stream into events, neighbouring content merged, for a reader that joins
// late or lags. Pure.

import {
  type ChannelEvent,
  messageTimeMs,
  STREAM_CONTENT,
  STREAM_END,
  STREAM_START,
  type StreamNote,
  type StreamPlace,
  type StreamSnapshot,
  type StreamState,
} from "./model.ts";

/** A reader's position: it has every event before `index`, `textOffset` UTF-16 units of text. */
export interface StreamCursor {
  readonly index: number;
  readonly textOffset: number;
}

/**
 * Everything from `cursor` to the snapshot's nextIndex, in order. Merged and reconstructed events
 * carry the time of the stream's start.
 */
export function eventsFrom(
  snapshot: StreamSnapshot,
  cursor: StreamCursor,
): readonly ChannelEvent[] {
  const isEnded = snapshot.state !== "active";
  const contentEnd = isEnded ? snapshot.nextIndex - 1 : snapshot.nextIndex;
  const events: ChannelEvent[] = [];
  let { index, textOffset } = cursor;

  function take(type: string, data: string, nextIndex: number): void {
    const state: StreamState =
      isEnded && nextIndex === snapshot.nextIndex ? snapshot.state : "active";
    const place = { index, nextIndex, textOffset, state };
    events.push(pieceOf(snapshot, { type, data, place }));
    index = nextIndex;
    if (type === STREAM_CONTENT) textOffset += data.length;
  }

  function takeContent(toIndex: number, toOffset: number): void {
    if (index >= toIndex) return;
    take(STREAM_CONTENT, snapshot.text.slice(textOffset, toOffset), toIndex);
  }

  if (index === 0 && snapshot.nextIndex > 0) take(STREAM_START, snapshot.startData, 1);
  for (const note of snapshot.notes) {
    if (note.index < index) continue;
    takeContent(note.index, note.textOffset);
    events.push(noteEvent(snapshot, note));
    index = note.index + 1;
  }
  takeContent(contentEnd, snapshot.text.length);
  if (isEnded && index < snapshot.nextIndex)
    take(STREAM_END, snapshot.endData ?? "", snapshot.nextIndex);
  return events;
}

/** The position after an event. */
export function cursorAfter(
  { type, data }: Pick<ChannelEvent, "type" | "data">,
  { nextIndex, textOffset }: StreamPlace,
): StreamCursor {
  const length = type === STREAM_CONTENT ? data.length : 0;
  return { index: nextIndex, textOffset: textOffset + length };
}

/** The position after the whole snapshot. */
export function cursorAtEnd({
  nextIndex,
  text,
}: Pick<StreamSnapshot, "nextIndex" | "text">): StreamCursor {
  return { index: nextIndex, textOffset: text.length };
}

/**
 * The part of an event that is new at `cursor`: all of it, the rest of merged content, or undefined
 * if nothing is.
 */
export function restOf(
  event: ChannelEvent,
  place: StreamPlace,
  { index, textOffset }: StreamCursor,
): ChannelEvent | undefined {
  if (place.nextIndex <= index) return undefined;
  if (place.index >= index) return event;
  const data = event.data.slice(textOffset - place.textOffset);
  const stream = { ...place, index, textOffset };
  return { ...event, eventId: String(index), data, stream };
}

function pieceOf(
  snapshot: StreamSnapshot,
  piece: {
    readonly type: string;
    readonly data: string;
    readonly place: Omit<StreamPlace, "messageSeq">;
  },
): ChannelEvent {
  const { key, channel, fromUid, clientMsgNo, messageSeq } = snapshot;
  const { type, data, place } = piece;
  return {
    ...{ key, channel, fromUid, clientMsgNo, type, data },
    eventId: String(place.index),
    timestampMs: messageTimeMs(snapshot.messageId),
    stream: { messageSeq, ...place },
  };
}

function noteEvent(snapshot: StreamSnapshot, note: StreamNote): ChannelEvent {
  const { index, textOffset, type, data, eventId, timestampMs } = note;
  const place = { index, nextIndex: index + 1, textOffset };
  const event = pieceOf(snapshot, {
    type,
    data,
    place: { ...place, state: "active" },
  });
  return { ...event, eventId, timestampMs };
}
