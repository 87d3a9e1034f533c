// Definitions that WuKongIM's two protocols, WKProto and JSON-RPC, have in common: a message's
// setting bits, the form in which clients receive events, and node numbers.

import {
  type ChannelEvent,
  messageTimeMs,
  STREAM_CONTENT,
  STREAM_END,
  STREAM_START,
  type StreamSnapshot,
} from "../../broker/model.ts";
import {
  type ClientEvent,
  isMessageStream,
  laneClientEvent,
  laneSnapshotEvents,
} from "./stream-lane.ts";

export const RECEIPT_BIT = 0x80;
export const SIGNAL_BIT = 0x20;

/**
 * Returns an event as clients receive it, or `undefined` if it is not pushed. Content events, and
 * start and end events without an id of their own, have the stream's `clientMsgNo` as their id
 * [decisions: Event id]. Events of `/message/event` are converted by stream-lane.ts.
 */
export function clientEvent(event: ChannelEvent): ClientEvent | undefined {
  const { type, timestampMs, data, clientMsgNo, eventId, hasGivenId } = event;
  if (type === STREAM_START && isMessageStream({ startId: eventId })) return undefined;
  const laneEvent = laneClientEvent(event);
  if (laneEvent !== undefined) return laneEvent;
  const isEdge = type === STREAM_START || type === STREAM_END;
  const isOfStream = type === STREAM_CONTENT || (isEdge && !hasGivenId);
  return { id: isOfStream ? clientMsgNo : eventId, type, timestampMs, data };
}

export function snapshotEvents(snapshot: StreamSnapshot): readonly ClientEvent[] {
  if (isMessageStream(snapshot)) return laneSnapshotEvents(snapshot);
  const { clientMsgNo, startData, text, state, endData = "" } = snapshot;
  const { startId = clientMsgNo, endId = clientMsgNo } = snapshot;
  const timestampMs = messageTimeMs(snapshot.messageId);
  const events = [{ id: startId, type: STREAM_START, data: startData }];
  if (text !== "") events.push({ id: clientMsgNo, type: STREAM_CONTENT, data: text });
  if (state !== "active") events.push({ id: endId, type: STREAM_END, data: endData });
  return events.map((event) => ({ ...event, timestampMs }));
}

/** Returns a node id as an integer below 2^31, as in WuKongIM. */
export function nodeNumber(nodeId: string): number {
  if (/^\d{1,9}$/.test(nodeId)) return Number(nodeId);
  let number = 0;
  for (const letter of nodeId) number = (number * 31 + (letter.codePointAt(0) ?? 0)) % 0x7fff_ffff;
  return number;
}
