// Events of channels as use cases over the real store: what a producer hears, what is published in
// which order, what is kept.

import { STREAM_END, STREAM_START, SYSTEM_UID } from "../../src/broker/model.ts";
import type { EventInput } from "../../src/broker/streams.ts";
import { matchObject } from "../support/match-object.ts";
import { t } from "../support/suite.ts";
import { textMessage } from "./inputs.ts";
import { group, MAX_DATA_BYTES, person, rules } from "./node.ts";
import { GROUP, nodeOfProducer, published, RANGE } from "./producer.ts";
import { ModelReader } from "./stream-model.ts";

t.test("a stream is answered, published in order with its places, and kept", async (t) => {
  const node = await nodeOfProducer(t);
  t.same(await node.start(), { state: "active" });
  t.same(await node.say("one "), { state: "active" });
  t.same(await node.post("___ToolCallStart", "search"), { state: "active" });
  t.same(await node.say("two"), { state: "active" });
  t.same(await node.post(STREAM_END, "bye"), { state: "closed" });
  const kinds = node.events.map(({ kind }) => kind);
  t.same(
    kinds.slice(2),
    ["message", "event", "event", "event", "event", "event"],
    "behind the two memberships",
  );
  const [message] = node.events.flatMap((one) => (one.kind === "message" ? [one.message] : []));
  matchObject(t, message, {
    ...{ messageSeq: 1, clientMsgNo: "n1", fromUid: "alice", expireS: 0 },
    channel: group("g"),
    header: { redDot: true, noPersist: false },
    stream: { nextIndex: 0, text: "", state: "active", notes: [] },
  });
  t.equal(Buffer.from(message?.payload ?? []).toString(), '{"type":1,"content":""}');
  const reader = new ModelReader();
  for (const event of published(node)) {
    matchObject(t, event, {
      key: "2:g",
      channel: group("g"),
      fromUid: "alice",
      clientMsgNo: "n1",
      stream: { messageSeq: 1 },
    });
    t.equal(event.timestampMs, node.clock.nowMs);
    reader.take(event);
  }
  matchObject(t, reader, {
    text: "one two",
    index: 5,
    state: "closed",
    startData: "meta",
    endData: "bye",
  });
  matchObject(t, await node.streams.read(GROUP, "n1"), {
    ...{ state: "closed", text: "one two", nextIndex: 5, messageSeq: 1 },
    ...{ startData: "meta", endData: "bye", fromUid: "alice" },
    notes: [{ index: 2, textOffset: 4, type: "___ToolCallStart", data: "search" }],
  });
});

t.test("history shows the stream in its place, its text so far as a text message", async (t) => {
  const node = await nodeOfProducer(t);
  const channel = group("g");
  await node.messages.send(textMessage({ channel }));
  await node.start();
  await node.say("half");
  await node.messages.send(textMessage({ channel }));
  const page = async () => (await node.messages.history(GROUP, RANGE)).messages;
  const content = async () => JSON.parse(Buffer.from((await page())[1]?.payload ?? []).toString());
  t.same(await content(), { type: 1, content: "half" });
  matchObject(t, await page(), [
    { messageSeq: 1, stream: undefined },
    {
      messageSeq: 2,
      clientMsgNo: "n1",
      stream: { state: "active", text: "half", nextIndex: 2 },
    },
    { messageSeq: 3, stream: undefined },
  ]);
  await node.say(" done");
  await node.end();
  t.same(await content(), { type: 1, content: "half done" });
  matchObject(t, (await page())[1], { stream: { state: "closed", nextIndex: 4 } });
});

t.test("an absent sender is the system, in either kind of channel", async (t) => {
  const node = await nodeOfProducer(t);
  await node.start({ fromUid: "" });
  await node.start({ fromUid: "", channel: person("bob") });
  matchObject(t, published(node), [
    { fromUid: SYSTEM_UID, key: "2:g" },
    { fromUid: SYSTEM_UID, key: `1:${SYSTEM_UID}@bob` },
  ]);
  const view = { channel: person(SYSTEM_UID), uid: "bob" };
  matchObject(t, await node.streams.read(view, "n1"), { state: "active" });
});

t.test("each step the state table does not have is refused with its own code", async (t) => {
  const node = await nodeOfProducer(t);
  await node.refused(node.say("x"), "stream_not_found");
  await node.refused(node.end(), "stream_not_found");
  await node.start();
  await node.refused(node.start({ clientMsgNo: "n2" }), "stream_running");
  await node.refused(node.say("x", { clientMsgNo: "n2" }), "stream_not_found");
  await node.end();
  await node.refused(node.say("x"), "stream_closed");
  await node.refused(node.start(), "stream_closed");
  t.same(await node.end(), { state: "closed" }, "an end again is a retry");
  await node.refused(node.post(""), "event_type_empty");
  await node.refused(node.post("___Other"), "bad_request");
  t.equal(published(node).length, 2, "what was refused was not published");
});

t.test("a forced start ends the other stream first, and only a forced one", async (t) => {
  const node = await nodeOfProducer(t);
  await node.start();
  await node.say("kept");
  t.same(await node.start({ clientMsgNo: "n2", force: true }), {
    state: "active",
  });
  matchObject(t, published(node).slice(2), [
    {
      clientMsgNo: "n1",
      type: STREAM_END,
      data: "",
      stream: { index: 2, state: "cancelled" },
    },
    {
      clientMsgNo: "n2",
      type: STREAM_START,
      stream: { index: 0, state: "active" },
    },
  ]);
  matchObject(t, await node.streams.read(GROUP, "n1"), {
    state: "cancelled",
    text: "kept",
  });
  await node.refused(node.say("late"), "stream_closed");
  t.same(
    await node.start({ clientMsgNo: "n2", force: true }),
    { state: "active" },
    "a retry ends nothing",
  );
  matchObject(t, await node.streams.read(GROUP, "n2"), { state: "active" });
});

t.test("an event with the id of an earlier one is applied once", async (t) => {
  const node = await nodeOfProducer(t);
  for (let times = 0; times < 2; times++) {
    t.same(await node.start({ eventId: "e0" }), { state: "active" });
    t.same(await node.say("once ", { eventId: "e1" }), { state: "active" });
  }
  const say = () => node.say("and once", { eventId: "e2" });
  await Promise.all([say(), say(), say()]);
  for (let times = 0; times < 2; times++)
    t.same(await node.end({ eventId: "e3" }), { state: "closed" });
  t.same(await node.say("once ", { eventId: "e1" }), { state: "closed" });
  t.same(
    published(node).map(({ eventId }) => eventId),
    ["e0", "e1", "e2", "e3"],
  );
  matchObject(t, await node.streams.read(GROUP, "n1"), { text: "once and once" });
});

t.test("events without an id each count and get ids of their own", async (t) => {
  const node = await nodeOfProducer(t);
  await node.start();
  await node.say("a");
  await node.say("a");
  await node.post("status", "{}");
  await node.post("status", "{}");
  matchObject(t, await node.streams.read(GROUP, "n1"), { text: "aa" });
  const ids = published(node).map(({ eventId }) => eventId);
  t.equal(new Set(ids).size, ids.length);
  t.notOk(ids.includes(""));
});

t.test("the producer's own time is kept", async (t) => {
  const node = await nodeOfProducer(t);
  await node.start({ timestampMs: 1_700_000_000_123 });
  await node.post("status", "", { timestampMs: 5 });
  matchObject(t, published(node), [{ timestampMs: 1_700_000_000_123 }, { timestampMs: 5 }]);
});

t.test("custom events and tool calls outside a stream are told and not kept", async (t) => {
  const node = await nodeOfProducer(t);
  t.same(await node.post("order.paid", '{"id":1}'), { state: undefined });
  t.same(await node.post("___ToolCallArgs", "{}"), { state: undefined });
  await node.start();
  await node.end();
  t.same(await node.post("___ToolCallEnd", "ok"), { state: "closed" });
  const told = published(node).filter(({ stream }) => stream === undefined);
  matchObject(t, told, [
    { type: "order.paid", data: '{"id":1}', key: "2:g", clientMsgNo: "n1" },
    { type: "___ToolCallArgs" },
    { type: "___ToolCallEnd" },
  ]);
  matchObject(t, await node.streams.read(GROUP, "n1"), { notes: [], nextIndex: 2 });
  const { headSeq } = await node.messages.history(GROUP, RANGE);
  t.equal(headSeq, 1, "only the stream has a place");
});

t.test("a custom event leaves an active stream of its name as it is", async (t) => {
  const node = await nodeOfProducer(t);
  await node.start();
  t.same(await node.post("status", "thinking"), { state: undefined });
  matchObject(t, published(node)[1], { type: "status", stream: undefined });
  matchObject(t, await node.streams.read(GROUP, "n1"), { nextIndex: 1 });
});

t.test("who may not send may not post, whatever the type", async (t) => {
  const node = await nodeOfProducer(t);
  const { channels, refused, post } = node;
  const types = [STREAM_START, "___ToolCallStart", "status"];
  const all = async (code: string, given: Partial<EventInput> = {}) => {
    for (const type of types) await refused(post(type, "", given), code);
  };
  await all("not_subscriber", { fromUid: "eve" });
  await all("not_subscriber", { channel: group("none") });
  await channels.update(group("g"), { sendBan: true });
  await all("send_banned");
  await channels.update(group("g"), { ban: true });
  await all("channel_banned");
  t.same(published(node), []);
  await t.resolves(node.start({ fromUid: "" }), "the system is exempt");
  await channels.update(group("g"), { disband: true });
  await all("channel_disbanded");
  await refused(node.say("x", { fromUid: "" }), "channel_disbanded");
  await channels.create(rules(person("bob")), ["carol"]);
  await all("stranger_refused", { channel: person("bob") });
});

t.test("too much data in an event or a stream is refused, what was there stays", async (t) => {
  const node = await nodeOfProducer(t, { maxStreamBytes: 3000 });
  await node.refused(node.say("x".repeat(MAX_DATA_BYTES + 1)), "too_large");
  await node.start();
  const chunk = "x".repeat(MAX_DATA_BYTES);
  let chunks = 0;
  const fill = async () => {
    for (; chunks < 10; chunks++) await node.say(chunk);
  };
  await node.refused(fill(), "too_large");
  t.ok(chunks > 0 && chunks < 3, `${chunks} chunks`);
  matchObject(t, await node.streams.read(GROUP, "n1"), {
    state: "active",
    text: chunk.repeat(chunks),
  });
  t.same(await node.end(), { state: "closed" }, "it can still be ended");
});
