// The checks of an event before the store is called, and which error is reported first.

import { BrokerError } from "../../src/broker/errors.ts";
import { STREAM_CONTENT, TOOL_CALL_EVENTS } from "../../src/broker/model.ts";
import { assertStreamName, classify, type EventInput } from "../../src/broker/streams.ts";
import { t } from "../support/suite.ts";
import { group } from "./node-names.ts";

const MAX_BYTES = 100;

const input = (changes: Partial<EventInput> = {}): EventInput => ({
  channel: group("g"),
  fromUid: "alice",
  clientMsgNo: "n1",
  eventId: undefined,
  type: STREAM_CONTENT,
  data: "text",
  timestampMs: undefined,
  force: false,
  ...changes,
});

/** Returns the class of an event, or the error code if it is not valid. */
function resultOf(changes: Partial<EventInput>): string {
  try {
    return classify(input(changes), MAX_BYTES);
  } catch (error) {
    if (error instanceof BrokerError) return error.code;
    throw error;
  }
}

t.test("only event types of the specification are stream or tool call events", async (t) => {
  for (const [type, eventClass] of [
    ["___TextMessageStart", "stream"],
    ["___TextMessageContent", "stream"],
    ["___TextMessageEnd", "stream"],
    ["___ToolCallStart", "tool_call"],
    ["___ToolCallArgs", "tool_call"],
    ["___ToolCallEnd", "tool_call"],
    ["___ToolCallResult", "tool_call"],
    ["status", "custom"],
    ["__TextMessageStart", "custom"],
    ["order.paid", "custom"],
    ["x___TextMessageStart", "custom"],
  ] as const)
    t.equal(resultOf({ type }), eventClass, type);
  t.equal(TOOL_CALL_EVENTS.size, 4);
});

t.test("a reserved event type that the specification does not define is refused", async (t) => {
  for (const type of [
    "___",
    "____system",
    "___TextMessageStop",
    "___toolCallStart",
    "___TextMessageContent ",
  ])
    t.equal(resultOf({ type }), "bad_request", type);
});

t.test("an empty event type is reported before other errors", async (t) => {
  const invalid = {
    clientMsgNo: "",
    channel: group("a@b"),
    fromUid: "c#d",
    data: "x".repeat(MAX_BYTES + 1),
  };
  t.equal(resultOf({ ...invalid, type: "" }), "event_type_empty");
  t.equal(resultOf({ ...invalid, type: "___X" }), "bad_request");
});

t.test("every field of an event rejects values outside its limits", async (t) => {
  const label = "x".repeat(129);
  const cases: readonly (readonly [Partial<EventInput>, string])[] = [
    [{ clientMsgNo: "" }, "bad_request"],
    [{ clientMsgNo: label }, "bad_request"],
    [{ clientMsgNo: "a\ud800" }, "bad_request"],
    [{ clientMsgNo: label.slice(1) }, "stream"],
    [{ channel: group("") }, "bad_id"],
    [{ channel: group("a&b") }, "bad_id"],
    [{ fromUid: "a@b" }, "bad_id"],
    [{ fromUid: "" }, "stream"],
    [{ eventId: "" }, "bad_request"],
    [{ eventId: label }, "bad_request"],
    [{ eventId: "e@#&" }, "stream"],
    [{ type: label }, "bad_request"],
    [{ type: label.slice(1) }, "custom"],
    [{ data: "" }, "stream"],
    [{ data: "half \udc00" }, "bad_request"],
  ];
  for (const [changes, expected] of cases)
    t.equal(resultOf(changes), expected, JSON.stringify(changes).slice(0, 60));
});

t.test("the size of an event's data is measured in bytes of UTF-8", async (t) => {
  t.equal(resultOf({ data: "x".repeat(MAX_BYTES) }), "stream");
  t.equal(resultOf({ data: "x".repeat(MAX_BYTES + 1) }), "too_large");
  t.equal(resultOf({ data: "中".repeat(33) }), "stream");
  t.equal(resultOf({ data: "中".repeat(34) }), "too_large");
  t.equal(resultOf({ type: "custom", data: "中".repeat(34) }), "too_large");
});

t.test("a stream name with an invalid channel or client_msg_no is refused", async (t) => {
  t.doesNotThrow(() => assertStreamName(group("g"), "n1"));
  t.throws(() => assertStreamName(group("g@"), "n1"), { code: "bad_id" });
  t.throws(() => assertStreamName(group("g"), ""), { code: "bad_request" });
});
