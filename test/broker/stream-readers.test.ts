// Cancelling, reading and following streams, and the end of silent streams, with the real store.

import { STREAM_END } from "../../src/broker/model.ts";
import { createStreams } from "../../src/broker/streams.ts";
import { matchObject } from "../support/match-object.ts";
import { t } from "../support/suite.ts";
import { textMessage } from "./inputs.ts";
import { group, person, STREAM_IDLE_MS } from "./node.ts";
import { GROUP, nodeOfProducer, published, RANGE, until } from "./producer.ts";
import { ModelReader } from "./stream-model.ts";

t.test(
  "events posted after a viewer cancelled the stream are not added to it, and posting them returns the state `cancelled`",
  async (t) => {
    const node = await nodeOfProducer(t);
    const { streams } = node;
    await node.start();
    await node.append("text");
    t.equal(await streams.cancel("bob", group("g"), "n1"), "cancelled");
    matchObject(t, published(node).at(-1), {
      type: STREAM_END,
      data: "",
      stream: { index: 2, state: "cancelled" },
    });
    const cancelled = { state: "cancelled" };
    t.same(await node.append("more"), cancelled);
    t.same(await node.post("___ToolCallStart", "x"), cancelled);
    t.same(await node.end(), cancelled);
    t.equal(
      await streams.cancel("bob", group("g"), "n1"),
      "cancelled",
      "cancelling again has no effect",
    );
    t.equal(published(node).length, 3);
    matchObject(t, await streams.read(GROUP, "n1"), {
      text: "text",
      notes: [],
      endData: "",
    });
    await t.resolves(node.start({ clientMsgNo: "n2" }));
  },
);

t.test("cancelling a closed stream leaves it closed", async (t) => {
  const node = await nodeOfProducer(t);
  await node.start();
  await node.end();
  t.equal(await node.streams.cancel("bob", group("g"), "n1"), "closed");
  matchObject(t, await node.streams.read(GROUP, "n1"), { state: "closed" });
});

t.test(
  "a stream can be cancelled only if it exists and the user may send to its channel",
  async (t) => {
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
  },
);

t.test("both users of a personal channel can read and cancel the same stream", async (t) => {
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
  t.same(await node.append("x", { channel: person("bob") }), {
    state: "cancelled",
  });
});

t.test("reading a stream that does not exist is refused", async (t) => {
  const node = await nodeOfProducer(t);
  await node.refused(node.streams.read(GROUP, "n1"), "stream_unknown");
  const bad = { channel: group("a@b"), uid: undefined };
  await node.refused(node.streams.read(bad, "n1"), "bad_id");
  await node.messages.send(textMessage({ channel: group("g"), clientMsgNo: "n1" }));
  await node.refused(node.streams.read(GROUP, "n1"), "stream_unknown");
});

t.test(
  "a stream cannot use the client_msg_no of a message, and a message cannot use that of a stream",
  async (t) => {
    const node = await nodeOfProducer(t);
    const message = textMessage({ channel: group("g"), clientMsgNo: "n1" });
    await node.messages.send(message);
    await node.refused(node.start(), "client_msg_no_reused");
    await node.start({ clientMsgNo: "n2" });
    const send = node.messages.send({ ...message, clientMsgNo: "n2" });
    await node.refused(send, "client_msg_no_reused");
    t.equal((await node.messages.history(GROUP, RANGE)).headSeq, 2);
  },
);

t.test(
  "a stream that receives no events for the idle timeout is interrupted and keeps its text, and a new stream can start",
  async (t) => {
    const node = await nodeOfProducer(t);
    await node.start();
    await node.append("so far");
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
    await node.refused(node.append("late"), "stream_closed");
    t.same(await node.start({ clientMsgNo: "n2" }), { state: "active" });
  },
);

t.test("a failed attempt to end silent streams is reported and repeated", async (t) => {
  const node = await nodeOfProducer(t);
  const errors: unknown[] = [];
  let calls = 0;
  const streams = createStreams({
    friendsOnly: false,
    isSystem: () => false,
    store: {
      ...node.store,
      async interruptStreams() {
        calls += 1;
        throw new Error("no store");
      },
    },
    ...{ publisher: node.cluster, clock: Date.now, nodeId: "n1" },
    onError: (error) => errors.push(error),
    limits: { idleTimeoutMs: 4, maxDataBytes: 10 },
    content: { maxPayloadBytes: 65_536, contentValidation: "json" },
  });
  streams.start();
  await until(() => errors.length >= 2);
  await streams.close();
  await streams.close();
  const callsBefore = calls;
  await new Promise((resolve) => setTimeout(resolve, 10));
  t.equal(calls, callsBefore, "the store is not called after `close`");
  matchObject(t, errors[0], { message: "no store" });
});

t.test("a follower gets the earlier events of a stream, then new events live", async (t) => {
  const node = await nodeOfProducer(t);
  await node.start();
  await node.append("before ");
  const reader = new ModelReader();
  const end = new Promise<void>((ended) => {
    void node.followers.follow(
      { view: GROUP, clientMsgNo: "n1", fromIndex: 0 },
      {
        push(event) {
          reader.apply(event);
          return true;
        },
        ended,
      },
    );
  });
  await Promise.all(["a", "b", "c"].map((word) => node.append(word)));
  await node.end();
  await end;
  matchObject(t, reader, { text: "before abc", state: "closed", index: 6 });
  t.same(node.errors, []);
});
