// The codec of stream events: decoding returns what was encoded, readers of the log get the event
// as JSON, and types of a newer build are refused.

import {
  frameOf,
  openEventFrame,
  recordCount,
  recordsIn,
  sealFrame,
  visitEvents,
} from "../../src/broker/log-frame.ts";
import {
  STREAM_CONTENT,
  STREAM_END,
  STREAM_START,
  TOOL_CALL_EVENTS,
} from "../../src/broker/model.ts";
import { isStreamType, type StreamEvent } from "../../src/broker/stream-event.ts";
import { t } from "../support/suite.ts";

const TYPES = [STREAM_START, STREAM_CONTENT, STREAM_END, ...TOOL_CALL_EVENTS, "zustand ü"];
/** Offset of the event type in a frame. */
const TYPE_AT = 5;
const TEXTS = ["", "a", "äöü", "漢字\u{1F600}", "x".repeat(70_000)];

const eventOf = (type: string, over: Partial<StreamEvent> = {}): StreamEvent => ({
  ...{ type, eventId: undefined, data: "text", timestampMs: 1.7e12, isTimed: false, detail: 0 },
  ...{ state: "active", isHidden: false },
  ...over,
});

function eventsIn(frames: Buffer): readonly StreamEvent[] {
  const events: StreamEvent[] = [];
  visitEvents(frames, (event) => events.push(event));
  return events;
}

t.test("decoding an encoded event returns the same event, for every event type", async (t) => {
  for (const type of TYPES)
    for (const [i, data] of TEXTS.entries()) {
      const eventId = i % 2 === 0 ? undefined : `id-${data.slice(0, 100)}`;
      const hasDetail = type === STREAM_START || type === STREAM_END;
      const detail = hasDetail ? 2 ** 40 + i : 0;
      const event = eventOf(type, { eventId, data, detail, isTimed: i % 3 === 0 });
      t.same(eventsIn(openEventFrame(event).bytes), [event]);
    }
});

t.test("readers of a log get an event as one JSON message with its index", async (t) => {
  const first = 7;
  const messageOf = (event: StreamEvent) => {
    const open = openEventFrame(event);
    sealFrame(open, { first, checkBefore: 1 });
    const frame = frameOf(open.bytes);
    t.equal(recordCount(frame), 1);
    return recordsIn(frame).map((record) => JSON.parse(String(record)) as unknown);
  };
  const fields = { index: first, timestamp: 1.7e12, data: "text" };
  t.same(messageOf(eventOf(STREAM_CONTENT)), [{ type: STREAM_CONTENT, id: "7", ...fields }]);
  t.same(messageOf(eventOf("status", { eventId: "é" })), [{ type: "status", id: "é", ...fields }]);
});

t.test("an event with an unknown type code is refused when it is read", async (t) => {
  for (const code of [0, 99]) {
    const { bytes } = openEventFrame(eventOf(STREAM_CONTENT));
    bytes[TYPE_AT] = code;
    t.throws(() => eventsIn(bytes), { code: "internal" });
  }
});

t.test("isStreamType accepts the types of the specification and of custom events", async (t) => {
  for (const type of TYPES) t.equal(isStreamType(type), true);
  for (const type of ["", "___Other"]) t.equal(isStreamType(type), false);
});
