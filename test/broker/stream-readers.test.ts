// Who stops, reads and follows streams, and how silent ones end, over the real store.

import { STREAM_END } from "../../src/broker/model.ts";
import { createStreams } from "../../src/broker/streams.ts";
import { matchObject } from "../support/match-object.ts";
import { t } from "../support/suite.ts";
import { streamEvent, textMessage } from "./inputs.ts";
import { group, person, STREAM_IDLE_MS } from "./node.ts";
import { GROUP, nodeOfProducer, published, RANGE, until } from "./producer.ts";
import { ModelReader } from "./stream-model.ts";

t.test("a viewer stops a stream; its producer learns it and adds nothing", async (t) => {
  const node = await nodeOfProducer(t);
  const { streams } = node;
  await node.start();
  await node.say("text");
  t.equal(await streams.cancel("bob", group("g"), "n1"), "cancelled");
  matchObject(t, published(node).at(-1), {
    type: STREAM_END,
    data: "",
    stream: { index: 2, state: "cancelled" },
  });
  const stopped = { state: "cancelled" };
  t.same(await node.say("more"), stopped);
  t.same(await node.post("___ToolCallStart", "x"), stopped);
  t.same(await node.end(), stopped);
  t.equal(await streams.cancel("bob", group("g"), "n1"), "cancelled", "again");
  t.equal(published(node).length, 3);
  matchObject(t, await streams.read(GROUP, "n1"), {
    text: "text",
    notes: [],
    endData: "",
  });
  await t.resolves(node.start({ clientMsgNo: "n2" }));
});

t.test("a stream that is over stays as it ended", async (t) => {
  const node = await nodeOfProducer(t);
  await node.start();
  await node.end();
  t.equal(await node.streams.cancel("bob", group("g"), "n1"), "closed");
  matchObject(t, await node.streams.read(GROUP, "n1"), { state: "closed" });
});

t.test("who may not send may not stop, and only what is there can be stopped", async (t) => {
  const node = await nodeOfProducer(t);
  const { streams, refused, channels } = node;
  await refused(streams.cancel("bob", group("g"), "n1"), "stream_unknown");
  await refused(streams.cancel("bob", group("g@"), "n1"), "bad_id");
  await refused(streams.cancel("bob", group("g"), ""), "bad_request");
  await node.start();
  await refused(streams.cancel("eve", group("g"), "n1"), "not_subscriber");
  await channels.update(group("g"), { ban: true });
  await refused(streams.cancel("bob", group("g"), "n1"), "channel_banned");
  matchObject(t, await streams.read(GROUP, "n1"), { state: "active" });
});

t.test("both users of a personal channel are at the same stream", async (t) => {
  const node = await nodeOfProducer(t);
  const { streams } = node;
  await node.start({ channel: person("bob") });
  for (const view of [
    { channel: person("bob"), uid: "alice" },
    { channel: person("alice"), uid: "bob" },
  ])
    matchObject(t, await streams.read(view, "n1"), {
      key: "1:alice@bob",
      channel: person("bob"),
    });
  await node.refused(
    streams.read({ channel: person("alice"), uid: "carol" }, "n1"),
    "stream_unknown",
  );
  await node.refused(streams.read({ channel: person("bob"), uid: undefined }, "n1"), "bad_id");
  t.equal(await streams.cancel("bob", person("alice"), "n1"), "cancelled");
  t.same(await node.say("x", { channel: person("bob") }), {
    state: "cancelled",
  });
});

t.test("reading what is not there is refused", async (t) => {
  const node = await nodeOfProducer(t);
  await node.refused(node.streams.read(GROUP, "n1"), "stream_unknown");
  const bad = { channel: group("a@b"), uid: undefined };
  await node.refused(node.streams.read(bad, "n1"), "bad_id");
  await node.messages.send(textMessage({ channel: group("g"), clientMsgNo: "n1" }));
  await node.refused(node.streams.read(GROUP, "n1"), "stream_unknown");
});

t.test("a stream cannot take the name of a message, nor a message that of a stream", async (t) => {
  const node = await nodeOfProducer(t);
  const message = textMessage({ channel: group("g"), clientMsgNo: "n1" });
  const { messageId } = await node.messages.send(message);
  await node.refused(node.start(), "bad_request");
  await node.start({ clientMsgNo: "n2" });
  const sent = await node.messages.send({ ...message, clientMsgNo: "n2" });
  t.equal(sent.messageSeq, 2, "answered as a retry of the stream's message");
  t.ok(sent.messageId > messageId);
  t.equal((await node.messages.history(GROUP, RANGE)).headSeq, 2);
});

t.test(
  "a stream whose producer falls silent is interrupted, its text stays, a new one may start",
  async (t) => {
    const node = await nodeOfProducer(t);
    await node.start();
    await node.say("so far");
    node.streams.start();
    node.streams.start();
    node.clock.nowMs += STREAM_IDLE_MS + 1;
    await until(() => published(node).length > 2);
    matchObject(t, published(node)[2], {
      type: STREAM_END,
      data: "",
      stream: { index: 2, state: "interrupted" },
    });
    matchObject(t, await node.streams.read(GROUP, "n1"), {
      state: "interrupted",
      text: "so far",
    });
    await node.refused(node.say("late"), "stream_closed");
    t.same(await node.start({ clientMsgNo: "n2" }), { state: "active" });
  },
);

t.test("what keeps silent streams from being ended is reported, and tried again", async (t) => {
  const node = await nodeOfProducer(t);
  const problems: unknown[] = [];
  let looks = 0;
  const streams = createStreams({
    friendsOnly: false,
    isSystem: () => false,
    store: {
      ...node.store,
      async interruptStreams() {
        looks += 1;
        throw new Error("no store");
      },
    },
    ...{ publisher: node.cluster, clock: Date.now, nodeId: "n1" },
    onError: (error) => problems.push(error),
    limits: { idleTimeoutMs: 4, maxDataBytes: 10 },
  });
  streams.start();
  await until(() => problems.length >= 2);
  await streams.close();
  await streams.close();
  const seen = looks;
  await new Promise((resolve) => setTimeout(resolve, 10));
  t.equal(looks, seen, "closed");
  matchObject(t, problems[0], { message: "no store" });
});

t.test("events of one stream keep their order, however long each decision takes", async (t) => {
  const node = await nodeOfProducer(t);
  const gates: (() => void)[] = [];
  const streams = createStreams({
    friendsOnly: false,
    isSystem: () => false,
    store: {
      ...node.store,
      async groupFacts(channelId, uid) {
        const facts = await node.store.groupFacts(channelId, uid);
        await new Promise<void>((open) => gates.push(open));
        return facts;
      },
    },
    ...{ publisher: node.cluster, clock: Date.now, nodeId: "n1" },
    onError: (error) => t.fail(String(error)),
    limits: { idleTimeoutMs: 1000, maxDataBytes: 10 },
  });
  await node.start();
  const words = ["a", "b", "c", "d", "e"];
  const posting = words.map((data) => streams.post(streamEvent({ data })));
  await until(() => gates.length === words.length);
  for (const at of [4, 2, 1, 3, 0]) {
    gates[at]?.();
    await new Promise((turn) => setImmediate(turn));
  }
  await Promise.all(posting);
  matchObject(t, await node.streams.read(GROUP, "n1"), { text: "abcde" });
});

t.test("a follower of the node reads a stream as it is published", async (t) => {
  const node = await nodeOfProducer(t);
  await node.start();
  await node.say("before ");
  const reader = new ModelReader();
  const over = new Promise<void>((ended) => {
    void node.followers.follow(
      { view: GROUP, clientMsgNo: "n1", fromIndex: 0 },
      {
        push(event) {
          reader.take(event);
          return true;
        },
        ended,
      },
    );
  });
  await Promise.all(["a", "b", "c"].map((word) => node.say(word)));
  await node.end();
  await over;
  matchObject(t, reader, { text: "before abc", state: "closed", index: 6 });
  t.same(node.problems, []);
});
