// Turns a stream's snapshot into events for a reader that joins late or lags. Consecutive content
// is merged into one event.

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

/**
 * Position of a reader that has all events with an index below `index`. The text of these events
 * has `textOffset` UTF-16 code units.
 */
export interface StreamCursor {
  readonly index: number;
  readonly textOffset: number;
}

/**
 * Returns the events that follow `cursor`. All events except notes have the time of the stream's
 * start.
 */
export function eventsFrom(
  snapshot: StreamSnapshot,
  cursor: StreamCursor,
): readonly ChannelEvent[] {
  const isEnded = snapshot.state !== "active";
  const contentEnd = isEnded ? snapshot.nextIndex - 1 : snapshot.nextIndex;
  const events: ChannelEvent[] = [];
  let { index, textOffset } = cursor;

  function addEvent(type: string, data: string, nextIndex: number, givenId?: string): void {
    const state: StreamState =
      isEnded && nextIndex === snapshot.nextIndex ? snapshot.state : "active";
    const place = { index, nextIndex, textOffset, state };
    events.push(pieceOf(snapshot, { type, data, place, givenId }));
    index = nextIndex;
    if (type === STREAM_CONTENT) textOffset += data.length;
  }

  function addContent(toIndex: number, toOffset: number): void {
    if (index >= toIndex) return;
    addEvent(STREAM_CONTENT, snapshot.text.slice(textOffset, toOffset), toIndex);
  }

  if (index === 0 && snapshot.nextIndex > 0)
    addEvent(STREAM_START, snapshot.startData, 1, snapshot.startId);
  for (const note of snapshot.notes) {
    if (note.index < index) continue;
    addContent(note.index, note.textOffset);
    events.push(noteEvent(snapshot, note));
    index = note.index + 1;
  }
  // After the note of a truncated stream, only the end is shown.
  if (!snapshot.truncated) addContent(contentEnd, snapshot.text.length);
  if (isEnded && index < snapshot.nextIndex)
    addEvent(STREAM_END, snapshot.endData ?? "", snapshot.nextIndex, snapshot.endId);
  return events;
}

export function cursorAfter(
  { type, data }: Pick<ChannelEvent, "type" | "data">,
  { nextIndex, textOffset }: StreamPlace,
): StreamCursor {
  const length = type === STREAM_CONTENT ? data.length : 0;
  return { index: nextIndex, textOffset: textOffset + length };
}

export function cursorAtEnd({
  nextIndex,
  text,
}: Pick<StreamSnapshot, "nextIndex" | "text">): StreamCursor {
  return { index: nextIndex, textOffset: text.length };
}

/**
 * Returns the part of the event that a reader at the cursor lacks, or `undefined` if the reader has
 * the whole event.
 */
export function restOf(
  event: ChannelEvent,
  place: StreamPlace,
  { index, textOffset }: StreamCursor,
): ChannelEvent | undefined {
  if (place.nextIndex <= index) return undefined;
  if (place.index >= index || event.type !== STREAM_CONTENT) return event;
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
    readonly givenId: string | undefined;
  },
): ChannelEvent {
  const { key, channel, fromUid, clientMsgNo, messageId, messageSeq, startId } = snapshot;
  const { type, data, place, givenId } = piece;
  return {
    ...{ key, channel, fromUid, clientMsgNo, type, data },
    eventId: givenId ?? String(place.index),
    ...(givenId !== undefined && { hasGivenId: true }),
    ...(startId !== undefined && { start: { messageId, startId } }),
    timestampMs: messageTimeMs(messageId),
    stream: { messageSeq, ...place },
  };
}

function noteEvent(snapshot: StreamSnapshot, note: StreamNote): ChannelEvent {
  const { index, textOffset, type, data, eventId, timestampMs } = note;
  // A truncated stream has no other note.
  const truncation = snapshot.truncated && { truncated: snapshot.truncated };
  const place = { index, nextIndex: index + 1, textOffset, ...truncation };
  const event = pieceOf(snapshot, {
    type,
    data,
    place: { ...place, state: "active" },
    givenId: undefined,
  });
  return { ...event, eventId, timestampMs };
}
