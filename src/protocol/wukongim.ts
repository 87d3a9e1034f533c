// Definitions that WuKongIM's two protocols, WKProto and JSON-RPC, share: setting bits of a
// message, events as the clients receive them, and node numbers.

import {
  type ChannelEvent,
  messageTimeMs,
  STREAM_CONTENT,
  STREAM_END,
  STREAM_START,
  type StreamSnapshot,
} from "../broker/model.ts";

export const RECEIPT_BIT = 0x80;
export const SIGNAL_BIT = 0x20;

export interface ClientEvent {
  readonly id: string;
  readonly type: string;
  readonly timestampMs: number;
  readonly data: string;
}

/** Types of events that have the stream's `clientMsgNo` as id [decisions: Event id]. */
const STREAM_EVENTS: ReadonlySet<string> = new Set([STREAM_START, STREAM_CONTENT, STREAM_END]);

export function clientEvent(event: ChannelEvent): ClientEvent {
  const { type, timestampMs, data, clientMsgNo, eventId } = event;
  const id = STREAM_EVENTS.has(type) ? clientMsgNo : eventId;
  return { id, type, timestampMs, data };
}

/**
 * Returns the events that rebuild a stream: its start, its text in one piece, and its end if it has
 * ended.
 */
export function snapshotEvents(snapshot: StreamSnapshot): readonly ClientEvent[] {
  const { clientMsgNo: id, startData, text, state, endData = "" } = snapshot;
  const timestampMs = messageTimeMs(snapshot.messageId);
  const events = [{ type: STREAM_START, data: startData }];
  if (text !== "") events.push({ type: STREAM_CONTENT, data: text });
  if (state !== "active") events.push({ type: STREAM_END, data: endData });
  return events.map((event) => ({ id, timestampMs, ...event }));
}

/**
 * Returns the id as an integer below 2^31, WuKongIM's form. An id is hashed unless it is a number
 * of at most 9 digits.
 */
export function nodeNumber(nodeId: string): number {
  if (/^\d{1,9}$/.test(nodeId)) return Number(nodeId);
  let number = 0;
  for (const letter of nodeId) number = (number * 31 + (letter.codePointAt(0) ?? 0)) % 0x7fff_ffff;
  return number;
}
