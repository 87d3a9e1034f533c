// The codec of stream events: decoding returns what was encoded, and newer formats are refused.

import {
  STREAM_CONTENT,
  STREAM_END,
  STREAM_START,
  TOOL_CALL_EVENTS,
} from "../../../src/broker/model.ts";
import { recordKind, STREAM_RECORD } from "../../../src/store/embedded/engine/record.ts";
import {
  decodeBody,
  decodeStreamRecord,
  type Ending,
  encodeStreamRecord,
  isStreamType,
  maxStreamRecordBytes,
  type StreamEvent,
} from "../../../src/store/embedded/steps/stream-record.ts";
import { t } from "../../support/suite.ts";

const TYPES = [STREAM_START, STREAM_CONTENT, STREAM_END, ...TOOL_CALL_EVENTS, "zustand ü"];
const ENDINGS: (Ending | undefined)[] = [
  undefined,
  ...(["closed", "stopped", "cancelled", "interrupted"] as const),
];
const TEXTS = ["", "a", "äöü", "漢字\u{1F600}", "x".repeat(70_000)];

t.test("an event of every kind is decoded as it was encoded", async (t) => {
  const target = Buffer.alloc(300_000);
  for (const type of TYPES)
    for (const ending of ENDINGS)
      for (const [i, data] of TEXTS.entries()) {
        const eventId = i % 2 === 0 ? undefined : `id-${data.slice(0, 100)}`;
        const isTimed = i % 3 === 0;
        const place = { index: i * 2 ** 29, timestampMs: 1.7e12 + i, isTimed };
        const event: StreamEvent = { type, ending, eventId, data, ...place };
        const stream = { key: `2:gruppe-ü${i}`, messageSeq: 2 ** 40 + i };
        const { body, end } = encodeStreamRecord(target, 50, { stream, event });
        t.ok(
          end - 50 <= maxStreamRecordBytes(stream, event),
          "the record is within its maximum size",
        );
        const bytes = target.subarray(50, end);
        t.equal(recordKind(bytes), STREAM_RECORD);
        t.same(decodeStreamRecord(bytes), { stream, event, body: body - 50 });
        t.same(decodeBody(target.subarray(body, end)), event);
      }
});

t.test("a record of a newer build is refused", async (t) => {
  const target = Buffer.alloc(200);
  const place = { index: 0, timestampMs: 0, isTimed: false, eventId: undefined };
  const event = { type: STREAM_END, ending: undefined, data: "", ...place };
  const stream = { key: "2:g", messageSeq: 1 };
  const { body, end } = encodeStreamRecord(target, 0, { stream, event });
  for (const [at, value] of [
    [0, 5],
    [body, 99],
    [body, 0],
    [body + 1, 99],
  ] as const) {
    const bytes = Buffer.from(target.subarray(0, end));
    bytes[at] = value;
    t.throws(() => decodeStreamRecord(bytes), { code: "internal" });
  }
});

t.test("isStreamType accepts the types of the specification and of custom events", async (t) => {
  for (const type of TYPES) t.equal(isStreamType(type), true);
  for (const type of ["", "___Other"]) t.equal(isStreamType(type), false);
});
