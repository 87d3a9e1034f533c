// What WuKongIM's two protocols, WKProto and JSON-RPC, have in common beside the reason codes: how
// its clients see nodes, events and the bits of a message's setting. Pure.

import {
  type ChannelEvent,
  messageTimeMs,
  STREAM_CONTENT,
  STREAM_END,
  STREAM_START,
  type StreamSnapshot,
} from "../broker/model.ts";

/** Bits of a message's setting that are stored and passed on. */
export const RECEIPT_BIT = 0x80;
export const SIGNAL_BIT = 0x20;

/** An event as their clients get it. */
export interface ClientEvent {
  readonly id: string;
  readonly type: string;
  readonly timestampMs: number;
  readonly data: string;
}

/** Events whose id is the stream's name, by which clients match them [decisions: Event id]. */
const STREAM_EVENTS: ReadonlySet<string> = new Set([STREAM_START, STREAM_CONTENT, STREAM_END]);

export function clientEvent(event: ChannelEvent): ClientEvent {
  const { type, timestampMs, data, clientMsgNo, eventId } = event;
  const id = STREAM_EVENTS.has(type) ? clientMsgNo : eventId;
  return { id, type, timestampMs, data };
}

/** The stream so far: its start, the text as one piece, and its end unless it goes on. */
export function snapshotEvents(snapshot: StreamSnapshot): readonly ClientEvent[] {
  const { clientMsgNo: id, startData, text, state, endData = "" } = snapshot;
  const timestampMs = messageTimeMs(snapshot.messageId);
  const parts = [{ type: STREAM_START, data: startData }];
  if (text !== "") parts.push({ type: STREAM_CONTENT, data: text });
  if (state !== "active") parts.push({ type: STREAM_END, data: endData });
  return parts.map((part) => ({ id, timestampMs, ...part }));
}

/** A node's id as an integer below 2^31, which WuKongIM's node ids are. */
export function nodeNumber(nodeId: string): number {
  if (/^\d{1,9}$/.test(nodeId)) return Number(nodeId);
  let number = 0;
  for (const letter of nodeId) number = (number * 31 + (letter.codePointAt(0) ?? 0)) % 0x7fff_ffff;
  return number;
}
