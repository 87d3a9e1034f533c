// Helpers for the Store contract's stream suites: drafts of events, the calls of a producer,
// and the published events.

import {
  type ChannelEvent,
  type ChannelKey,
  channelKey,
  STREAM_CONTENT,
  STREAM_END,
  STREAM_START,
  type StreamSnapshot,
} from "../../src/broker/model.ts";
import type { StreamDraft, StreamResult } from "../../src/broker/ports.ts";
import type { StoreFixture } from "./store-fixture.ts";

/** Key of the channel that the stream tests use. */
export const KEY: ChannelKey = "2:g";
/** Type of an event of a tool call. */
export const TOOL = "___ToolCallArgs";

/** Returns a draft of an event of alice's stream "s" in group g. `over` replaces fields. */
export function eventOf(type: string, data = "", over: Partial<StreamDraft> = {}): StreamDraft {
  const channel = over.channel ?? { id: "g", type: 2 };
  const fromUid = over.fromUid ?? "alice";
  return {
    key: channelKey(channel, fromUid),
    channel,
    fromUid,
    clientMsgNo: "s",
    eventId: undefined,
    type,
    data,
    timestampMs: undefined,
    force: false,
    ...over,
  };
}

/** Returns the calls of one producer. `base` replaces fields of every event. */
export function producer(fixture: StoreFixture, base: Partial<StreamDraft> = {}) {
  const post =
    (type: string) =>
    (data = "", over: Partial<StreamDraft> = {}) =>
      fixture.store.streamEvent(eventOf(type, data, { ...base, ...over }));
  return {
    start: post(STREAM_START),
    content: post(STREAM_CONTENT),
    end: post(STREAM_END),
    tool: post(TOOL),
  };
}

/** Returns the stream's snapshot. Throws if the store does not have the stream. */
export async function snapshotOf(
  { store }: StoreFixture,
  clientMsgNo = "s",
  key = KEY,
): Promise<StreamSnapshot> {
  const snapshot = await store.stream(key, clientMsgNo);
  if (snapshot === undefined) throw new Error(`the store has no stream ${clientMsgNo}`);
  return snapshot;
}

/** Returns the events of streams that were published, in order. */
export function channelEventsOf({ events }: StoreFixture): ChannelEvent[] {
  return events.flatMap((event) => (event.kind === "event" ? [event.event] : []));
}

export const streamResult = (
  verdict: StreamResult["verdict"],
  state: StreamResult["state"],
): StreamResult => ({
  verdict,
  state,
});
/** The result of a call that an active stream accepts. */
export const ACTIVE = streamResult("done", "active");
