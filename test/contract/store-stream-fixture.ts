// What the Store contract's suites of streams work with: drafts of events, a producer's calls, what
// was told.

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

export const KEY: ChannelKey = "2:g";
export const TOOL = "___ToolCallArgs";

/** A draft of an event of stream "s" in group "g" by alice; `over` replaces parts of it. */
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

/** The calls of one producer. */
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

export async function snapshotOf(
  { store }: StoreFixture,
  clientMsgNo = "s",
  key = KEY,
): Promise<StreamSnapshot> {
  const found = await store.stream(key, clientMsgNo);
  if (found === undefined) throw new Error(`there is no stream ${clientMsgNo}`);
  return found;
}

export function channelEventsOf({ events }: StoreFixture): ChannelEvent[] {
  return events.flatMap((e) => (e.kind === "event" ? [e.event] : []));
}

export const streamResult = (
  verdict: StreamResult["verdict"],
  state: StreamResult["state"],
): StreamResult => ({
  verdict,
  state,
});
export const ACTIVE = streamResult("done", "active");
