// Posting events with the real store: the results for the producer, the published events and their
// order, and what is stored.

import { STREAM_END, STREAM_START, SYSTEM_UID } from "../../src/broker/model.ts";
import type { EventInput } from "../../src/broker/streams.ts";
import { matchObject } from "../support/match-object.ts";
import { t } from "../support/suite.ts";
import { textMessage } from "./inputs.ts";
import { group, MAX_DATA_BYTES, person, rules } from "./node.ts";
import { GROUP, nodeOfProducer, published, RANGE } from "./producer.ts";
import { ModelReader } from "./stream-model.ts";

t.test(
  "the events of a stream are stored, and published in order with their positions",
  async (t) => {
    const node = await nodeOfProducer(t);
    t.same(await node.start(), { state: "active" });
    t.same(await node.append("one "), { state: "active" });
    t.same(await node.post("___ToolCallStart", "search"), { state: "active" });
    t.same(await node.append("two"), { state: "active" });
    t.same(await node.post(STREAM_END, "bye"), { state: "closed" });
    // Each event of the stream is also a change of its log.
    const kinds = node.events.map(({ kind }) => kind).filter((kind) => kind !== "log");
    t.same(
      kinds.slice(2),
      ["message", "event", "event", "event", "event", "event"],
      "the message and the events follow the two additions",
    );
    const [message] = node.events.flatMap((event) =>
      event.kind === "message" ? [event.message] : [],
    );
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
      reader.apply(event);
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
  },
);

t.test("history contains the message of a stream with its text so far", async (t) => {
  const node = await nodeOfProducer(t);
  const channel = group("g");
  await node.messages.send(textMessage({ channel }));
  await node.start();
  await node.append("half");
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
  await node.append(" done");
  await node.end();
  t.same(await content(), { type: 1, content: "half done" });
  matchObject(t, (await page())[1], { stream: { state: "closed", nextIndex: 4 } });
});

t.test(
  "a stream started without a sender is sent by the system, in a group and in a personal channel",
  async (t) => {
    const node = await nodeOfProducer(t);
    await node.start({ fromUid: "" });
    await node.start({ fromUid: "", channel: person("bob") });
    matchObject(t, published(node), [
      { fromUid: SYSTEM_UID, key: "2:g" },
      { fromUid: SYSTEM_UID, key: `1:${SYSTEM_UID}@bob` },
    ]);
    const view = { channel: person(SYSTEM_UID), uid: "bob" };
    matchObject(t, await node.streams.read(view, "n1"), { state: "active" });
  },
);

t.test(
  "an event that the state of the stream does not allow is refused with an error code for that state",
  async (t) => {
    const node = await nodeOfProducer(t);
    await node.refused(node.append("x"), "stream_not_found");
    await node.refused(node.end(), "stream_not_found");
    await node.start();
    await node.refused(node.start({ clientMsgNo: "n2" }), "stream_running");
    await node.refused(node.append("x", { clientMsgNo: "n2" }), "stream_not_found");
    await node.end();
    await node.refused(node.append("x"), "stream_closed");
    await node.refused(node.start(), "stream_closed");
    t.same(await node.end(), { state: "closed" }, "a second end is a retry");
    await node.refused(node.post(""), "event_type_empty");
    await node.refused(node.post("___Other"), "bad_request");
    t.equal(published(node).length, 2, "refused events are not published");
  },
);

t.test(
  "a start event with `force` cancels the active stream first, and a retry of the start event ends no stream",
  async (t) => {
    const node = await nodeOfProducer(t);
    await node.start();
    await node.append("kept");
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
    await node.refused(node.append("late"), "stream_closed");
    t.same(
      await node.start({ clientMsgNo: "n2", force: true }),
      { state: "active" },
      "a retry does not end the stream",
    );
    matchObject(t, await node.streams.read(GROUP, "n2"), { state: "active" });
  },
);

t.test("stream events with the same id are applied only once", async (t) => {
  const node = await nodeOfProducer(t);
  for (let times = 0; times < 2; times++) {
    t.same(await node.start({ eventId: "e0" }), { state: "active" });
    t.same(await node.append("once ", { eventId: "e1" }), { state: "active" });
  }
  const append = () => node.append("and once", { eventId: "e2" });
  await Promise.all([append(), append(), append()]);
  for (let times = 0; times < 2; times++)
    t.same(await node.end({ eventId: "e3" }), { state: "closed" });
  t.same(await node.append("once ", { eventId: "e1" }), { state: "closed" });
  t.same(
    published(node).map(({ eventId }) => eventId),
    ["e0", "e1", "e2", "e3"],
  );
  matchObject(t, await node.streams.read(GROUP, "n1"), { text: "once and once" });
});

t.test("stream events without an id are all applied and get different ids", async (t) => {
  const node = await nodeOfProducer(t);
  await node.start();
  await node.append("a");
  await node.append("a");
  await node.post("status", "{}");
  await node.post("status", "{}");
  matchObject(t, await node.streams.read(GROUP, "n1"), { text: "aa" });
  const ids = published(node).map(({ eventId }) => eventId);
  t.equal(new Set(ids).size, ids.length);
  t.notOk(ids.includes(""));
});

t.test("stream events keep the timestamp that their producer sets", async (t) => {
  const node = await nodeOfProducer(t);
  await node.start({ timestampMs: 1_700_000_000_123 });
  await node.post("status", "", { timestampMs: 5 });
  matchObject(t, published(node), [{ timestampMs: 1_700_000_000_123 }, { timestampMs: 5 }]);
});

t.test("custom events and tool calls outside a stream are pushed and not stored", async (t) => {
  const node = await nodeOfProducer(t);
  t.same(await node.post("order.paid", '{"id":1}'), { state: undefined });
  t.same(await node.post("___ToolCallArgs", "{}"), { state: undefined });
  await node.start();
  await node.end();
  t.same(await node.post("___ToolCallEnd", "ok"), { state: "closed" });
  const unstored = published(node).filter(({ stream }) => stream === undefined);
  matchObject(t, unstored, [
    { type: "order.paid", data: '{"id":1}', key: "2:g", clientMsgNo: "n1" },
    { type: "___ToolCallArgs" },
    { type: "___ToolCallEnd" },
  ]);
  matchObject(t, await node.streams.read(GROUP, "n1"), { notes: [], nextIndex: 2 });
  const { headSeq } = await node.messages.history(GROUP, RANGE);
  t.equal(headSeq, 1, "only the stream has a seq");
});

t.test("a custom event is stored only while its stream is active", async (t) => {
  const node = await nodeOfProducer(t);
  await node.start();
  const status = { type: "status", data: "thinking" };
  t.same(await node.post("status", "thinking"), { state: "active" });
  matchObject(t, published(node)[1], { ...status, stream: { index: 1, nextIndex: 2 } });
  const other = { clientMsgNo: "n2" };
  t.same(await node.post("status", "thinking", other), { state: undefined });
  await node.streams.cancel("alice", group("g"), "n1");
  t.same(await node.post("status", "late"), { state: "cancelled" });
  const unstored = published(node).filter(({ stream }) => stream === undefined);
  matchObject(t, unstored, [
    { ...status, clientMsgNo: "n2" },
    { type: "status", data: "late", clientMsgNo: "n1" },
  ]);
  matchObject(t, await node.streams.read(GROUP, "n1"), {
    notes: [{ index: 1, textOffset: 0, ...status }],
    nextIndex: 3,
  });
});

t.test("a user who may not send may not post events of any type", async (t) => {
  const node = await nodeOfProducer(t);
  const { channels, refused, post } = node;
  const types = [STREAM_START, "___ToolCallStart", "status"];
  const allRefused = async (code: string, changes: Partial<EventInput> = {}) => {
    for (const type of types) await refused(post(type, "", changes), code);
  };
  await allRefused("not_subscriber", { fromUid: "eve" });
  await allRefused("not_subscriber", { channel: group("none") });
  await channels.update(group("g"), { sendBan: true });
  await allRefused("send_banned");
  await channels.update(group("g"), { ban: true });
  await allRefused("channel_banned");
  t.same(published(node), []);
  await t.resolves(node.start({ fromUid: "" }), "the system is exempt");
  await channels.update(group("g"), { disband: true });
  await allRefused("channel_disbanded");
  await refused(node.append("x", { fromUid: "" }), "channel_disbanded");
  await channels.create(rules(person("bob")), ["carol"]);
  await allRefused("stranger_refused", { channel: person("bob") });
});

t.test(
  "events beyond the size limit of an event or a stream are refused, and the stream stays unchanged",
  async (t) => {
    const node = await nodeOfProducer(t, { maxStreamBytes: 3000 });
    await node.refused(node.append("x".repeat(MAX_DATA_BYTES + 1)), "too_large");
    await node.start();
    const chunk = "x".repeat(MAX_DATA_BYTES);
    let chunks = 0;
    const fill = async () => {
      for (; chunks < 10; chunks++) await node.append(chunk);
    };
    await node.refused(fill(), "too_large");
    t.ok(chunks > 0 && chunks < 3, `the stream has room for ${chunks} events`);
    matchObject(t, await node.streams.read(GROUP, "n1"), {
      state: "active",
      text: chunk.repeat(chunks),
    });
    t.same(await node.end(), { state: "closed" }, "a full stream can still be ended");
  },
);
