// What an event must be before anything is asked of the store, and in which order a producer hears
// what is wrong.

import { BrokerError } from "../../src/broker/errors.ts";
import { STREAM_CONTENT, TOOL_CALL_EVENTS } from "../../src/broker/model.ts";
import { assertStreamName, classify, type EventInput } from "../../src/broker/streams.ts";
import { t } from "../support/suite.ts";
import { group } from "./node-names.ts";

const MAX_BYTES = 100;

const input = (given: Partial<EventInput> = {}): EventInput => ({
  channel: group("g"),
  fromUid: "alice",
  clientMsgNo: "n1",
  eventId: undefined,
  type: STREAM_CONTENT,
  data: "text",
  timestampMs: undefined,
  force: false,
  ...given,
});

function codeOf(given: Partial<EventInput>): string {
  try {
    return classify(input(given), MAX_BYTES);
  } catch (error) {
    if (error instanceof BrokerError) return error.code;
    throw error;
  }
}

t.test("every specified type has its class, any other name is the caller's own", async (t) => {
  for (const [type, found] of [
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
    t.equal(codeOf({ type }), found, type);
  t.equal(TOOL_CALL_EVENTS.size, 4);
});

t.test("a reserved type outside the table is refused", async (t) => {
  for (const type of [
    "___",
    "____system",
    "___TextMessageStop",
    "___toolCallStart",
    "___TextMessageContent ",
  ])
    t.equal(codeOf({ type }), "bad_request", type);
});

t.test("the empty type is told before anything else that is wrong", async (t) => {
  const all = {
    clientMsgNo: "",
    channel: group("a@b"),
    fromUid: "c#d",
    data: "x".repeat(MAX_BYTES + 1),
  };
  t.equal(codeOf({ ...all, type: "" }), "event_type_empty");
  t.equal(codeOf({ ...all, type: "___X" }), "bad_request");
});

t.test("each field has its bounds", async (t) => {
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
  for (const [given, found] of cases)
    t.equal(codeOf(given), found, JSON.stringify(given).slice(0, 60));
});

t.test("data is counted in bytes of UTF-8", async (t) => {
  t.equal(codeOf({ data: "x".repeat(MAX_BYTES) }), "stream");
  t.equal(codeOf({ data: "x".repeat(MAX_BYTES + 1) }), "too_large");
  t.equal(codeOf({ data: "中".repeat(33) }), "stream");
  t.equal(codeOf({ data: "中".repeat(34) }), "too_large");
  t.equal(codeOf({ type: "custom", data: "中".repeat(34) }), "too_large");
});

t.test("a stream is named by a channel and a client_msg_no", async (t) => {
  t.doesNotThrow(() => assertStreamName(group("g"), "n1"));
  t.throws(() => assertStreamName(group("g@"), "n1"), { code: "bad_id" });
  t.throws(() => assertStreamName(group("g"), ""), { code: "bad_request" });
});
