// The topics of nodes on one Redis server: who hears what, in which order, what lingers, and what is made good when the connection is lost.

import { randomUUID } from "node:crypto";
import t, { type Test } from "tap";
import {
  channelKey,
  groupTopic,
  presenceTopic,
  userTopic,
} from "../../../src/broker/model.ts";
import type { ClusterEvent } from "../../../src/broker/ports.ts";
import { WIRE_VERSION } from "../../../src/redis/wire.ts";
import { redisSettings, startRedis } from "../../support/redis.ts";
import {
  group,
  NO_METRICS,
  type NodeOptions,
  person,
  range,
  startTopicNode,
  until,
} from "./topic-nodes.ts";

const redis = await startRedis(t);
const ofServer = redis.client();

/** Nodes of a cluster of the case's own. */
function world(t: Test) {
  const prefix = `t${randomUUID().slice(0, 8)}`;
  const settings = redisSettings(redis.url, { prefix, timeoutMs: 1000 });
  return {
    prefix,
    node: (options?: NodeOptions) => startTopicNode(t, settings, options),
    channels: async () =>
      (await ofServer.call(
        "PUBSUB",
        "SHARDCHANNELS",
        `${prefix}:*`,
      )) as string[],
    listeners: async (name: string) =>
      ((await ofServer.call("PUBSUB", "SHARDNUMSUB", name)) as unknown[])[1],
  };
}

t.test("a group's messages of many senders come in one order", async (t) => {
  const { node } = world(t);
  const [one, other, far] = [await node(), await node(), await node()];
  const key = "2:g";
  for (const { topics } of [one, far]) await topics.listen(groupTopic("g"));
  const sent = range(1, 100).map((at) =>
    (at % 2 ? one : other).send(group("g"), at % 2 ? "a" : "b"),
  );
  await Promise.all(sent);
  await far.topics.barrier();
  for (const { seqs } of [one, far]) t.same(seqs(key), range(1, 100));
  t.same(other.events, [], "who does not listen hears nothing");
});

t.test("an answered message is told behind a barrier", async (t) => {
  const { node } = world(t);
  const one = await node();
  await one.topics.listen(groupTopic("g"));
  await one.topics.listen(userTopic("a"));
  for (const at of range(1, 30)) {
    await one.send(group("g"), "a");
    await one.send(person("b"), "a");
    await one.topics.barrier();
    t.equal(one.seqs("2:g").at(-1), at);
    t.equal(one.seqs("1:a@b").at(-1), at);
  }
});

t.test("a read shows nothing that was not told before", async (t) => {
  const { node } = world(t);
  const [one, reader] = [await node(), await node()];
  await reader.topics.listen(groupTopic("g"));
  await reader.topics.listen(userTopic("b"));
  const all = { fromSeq: 1, toSeq: 999, limit: 999, reverse: false };
  const until = Promise.all(
    range(1, 60).map((at) =>
      one.send(at % 2 ? group("g") : person("b"), at % 3 ? "a" : "c"),
    ),
  );
  for (const key of ["2:g", "1:a@b", "1:b@c", "2:g", "1:a@b", "1:b@c"]) {
    const { messages } = await reader.store.readMessages(key, {
      ...all,
      maxBytes: 1 << 20,
    });
    const told = new Set(reader.told(key).map(({ messageId }) => messageId));
    t.ok(messages.every(({ messageId }) => told.has(messageId)));
  }
  await until;
});

t.test("both users of a conversation on a node hear it once", async (t) => {
  const { node } = world(t);
  const [one, other] = [await node(), await node()];
  for (const uid of ["a", "b"]) await one.topics.listen(userTopic(uid));
  for (const from of ["a", "b", "a"])
    await other.send(person(from === "a" ? "b" : "a"), from);
  await one.topics.barrier();
  t.same(one.seqs("1:a@b"), [1, 2, 3]);
});

t.test("what is not stored comes in its turn", async (t) => {
  const { node } = world(t);
  const one = await node();
  await one.topics.listen(groupTopic("g"));
  const passing = { header: { noPersist: true, redDot: false } };
  const sent = [{}, passing, {}, passing, passing, {}].map((over) =>
    one.send(group("g"), "a", over),
  );
  await Promise.all(sent);
  await one.topics.barrier();
  t.same(one.seqs("2:g"), [1, 0, 2, 0, 0, 3]);
});

t.test("a listener that began later hears what came later", async (t) => {
  const { node } = world(t);
  const one = await node();
  await one.send(group("g"), "a");
  await one.send(person("b"), "a");
  await one.topics.listen(groupTopic("g"));
  await one.topics.listen(userTopic("b"));
  await one.send(group("g"), "a");
  await one.send(person("b"), "a");
  await one.topics.barrier();
  t.same(one.seqs("2:g"), [2]);
  t.same(one.seqs("1:a@b"), [2]);
});

t.test("a stream's events come in turn with the messages", async (t) => {
  const { node } = world(t);
  const [one, other] = [await node(), await node()];
  await other.topics.listen(groupTopic("g"));
  const stream = streamOf("g", "s1");
  await one.store.streamEvent(stream("___TextMessageStart", "{}"));
  await one.store.streamEvent(stream("___TextMessageContent", "one "));
  await one.send(group("g"), "b");
  await one.store.streamEvent(stream("___TextMessageContent", "two"));
  await one.store.streamEvent(stream("___TextMessageEnd", ""));
  await other.topics.barrier();
  t.same(other.events.map(brief), [
    ["message", 1],
    ["event", 0, 1],
    ["event", 1, 2],
    ["message", 2],
    ["event", 2, 3],
    ["event", 3, 4],
  ]);
});

t.test("unlistened topics linger, and then are let go of", async (t) => {
  const { node, channels } = world(t);
  const one = await node({ lingerMs: 150 });
  const names = async () =>
    (await channels()).filter((name) => !name.includes("mark"));
  await one.topics.listen(groupTopic("g"));
  await one.topics.listen(groupTopic("g")); // listening twice is listening
  t.equal((await names()).length, 1);
  one.topics.unlisten(groupTopic("g"));
  t.ok(one.topics.arrivals.listensTo(groupTopic("g")));
  await one.topics.listen(groupTopic("g"));
  await new Promise((go) => setTimeout(go, 200)); // what shows here is that nothing happens
  t.equal((await names()).length, 1, "wanted again before the end");
  one.topics.unlisten(groupTopic("g"));
  await until(async () => (await names()).length === 0, "let go of");
  t.notOk(one.topics.arrivals.listensTo(groupTopic("g")));
  await one.send(group("g"), "a");
  t.same(one.seqs("2:g"), []);
});

t.test("over the bound the longest lingering goes at once", async (t) => {
  const { node, channels } = world(t);
  const one = await node({ limits: { maxLingering: 3 } });
  for (const at of range(1, 5)) await one.topics.listen(groupTopic(`g${at}`));
  for (const at of range(1, 5)) one.topics.unlisten(groupTopic(`g${at}`));
  const left = async () =>
    (await channels()).filter((name) => name.includes("2:g")).length;
  await until(async () => (await left()) === 3, "two are gone");
  t.ok(one.topics.arrivals.listensTo(groupTopic("g5")));
  t.notOk(one.topics.arrivals.listensTo(groupTopic("g2")));
});

t.test("one publication per message, to who has members", async (t) => {
  const { node, listeners } = world(t);
  const [one, other, none] = [await node(), await node(), await node()];
  for (const { topics } of [one, other]) await topics.listen(groupTopic("g"));
  await none.topics.listen(groupTopic("h"));
  const name = one.link.keys.topic(groupTopic("g"));
  t.equal(await listeners(name), 2);
  await one.send(group("g"), "a");
  await Promise.all([other.topics.barrier(), none.topics.barrier()]);
  t.same(
    [one, other, none].map(({ seqs }) => seqs("2:g")),
    [[1], [1], []],
  );
});

t.test("events out of turn reach each node once, in order", async (t) => {
  const { node } = world(t);
  const [one, other] = [await node(), await node()];
  for (const uid of ["a", "b"]) await other.topics.listen(userTopic(uid));
  await other.topics.listen(presenceTopic("a"));
  const copies = ["a", "b", "c"].map((uid, at) => ({ uid, inboxSeq: at + 1 }));
  await one.topics.listen(userTopic("c"));
  await one.send(person("b"), "a");
  await other.topics.barrier();
  const [first] = other.events;
  if (first?.kind !== "message") throw new Error("no message came");
  const { message } = first;
  const conversation: ClusterEvent = {
    ...{ kind: "end_session", uid: "a", sessionId: "s", reason: "kicked" },
  };
  const toBoth: ClusterEvent = {
    ...{ kind: "message", message, origin: "s", recipients: undefined },
  };
  const restricted: ClusterEvent = { ...toBoth, recipients: ["a", "c"] };
  for (const event of [
    conversation,
    toBoth,
    restricted,
    { kind: "presence", uid: "a" },
    { kind: "command", message, copies, origin: undefined },
  ] satisfies readonly ClusterEvent[])
    one.topics.publish(event);
  await one.topics.barrier();
  await other.topics.barrier();
  t.strictSame(other.events.slice(1), [
    conversation,
    toBoth,
    { ...toBoth, recipients: ["a"] },
    { kind: "presence", uid: "a" },
    ...copies.slice(0, 2).map((copy) => ({
      ...{ kind: "command", message, copies: [copy], origin: undefined },
    })),
  ]);
  t.same(
    one.events.map(({ kind }) => kind),
    ["message", "command"],
    "of those for c",
  );
});

t.test("a frame of the future is reported and left out", async (t) => {
  const { node } = world(t);
  const one = await node();
  await one.topics.listen(groupTopic("g"));
  const name = one.link.keys.topic(groupTopic("g"));
  for (const bytes of [
    [WIRE_VERSION + 1, 1, 0, 0],
    [WIRE_VERSION, 99],
    [WIRE_VERSION, 1],
    [],
  ])
    await ofServer.spublish(name, Buffer.from(bytes));
  await one.send(group("g"), "a");
  await one.topics.barrier();
  t.same(one.seqs("2:g"), [1]);
  t.ok(one.problems.length > 0);
});

t.test("levels are waited for where they are listened to", async (t) => {
  const { node } = world(t);
  const [one, other] = [await node(), await node()];
  const { level } = one.topics.arrivals;
  t.equal(level("2:g", 5), undefined, "nobody listens");
  t.equal(level("1:a@b", 5), undefined);
  await one.topics.listen(groupTopic("g"));
  t.equal(level("2:g", 0), undefined, "nothing to wait for");
  const waiting = level("2:g", 1);
  t.type(waiting, Promise);
  await other.send(group("g"), "a");
  await waiting;
  t.same(one.seqs("2:g"), [1]);
  t.equal(level("2:g", 1), undefined);
  await one.topics.listen(userTopic("a"));
  const since = Date.now();
  await level("1:a@z", 7); // nobody published so much: a lie, which must not hold anybody for long
  t.ok(Date.now() - since < 3000);
});

t.test("a lost connection loses no message", async (t) => {
  const { node } = world(t);
  let resubscribed = 0;
  const metrics = {
    ...NO_METRICS,
    resubscribed() {
      resubscribed += 1;
    },
  };
  const [one, sender] = [await node({ metrics }), await node()];
  for (const topic of [groupTopic("g"), userTopic("b"), presenceTopic("z")])
    await one.topics.listen(topic);
  await sender.send(person("b"), "a");
  for (const _ of range(1, 3)) {
    const before = resubscribed;
    const sending = range(1, 40).map((at) =>
      sender.send(at % 2 ? group("g") : person("b"), at % 4 ? "a" : "c"),
    );
    await ofServer.call("CLIENT", "KILL", "TYPE", "pubsub");
    await Promise.all(sending);
    for (const at of range(1, 20))
      await sender.send(at % 2 ? group("g") : person("b"), "a");
    await until(() => resubscribed > before, "it is back");
  }
  await one.topics.barrier();
  for (const key of ["2:g", "1:a@b", "1:b@c"]) {
    const head = await sender.store.headSeq(key);
    t.same(one.seqs(key), range(1, head), key);
  }
  const missed = one.events.flatMap((event) =>
    event.kind === "missed" ? [event.topic] : [],
  );
  t.same(new Set(missed), new Set([userTopic("b"), presenceTopic("z")]));
});

t.test("a lost connection loses nothing of a stream", async (t) => {
  const { node } = world(t);
  let isBack = false;
  const metrics = {
    ...NO_METRICS,
    resubscribed() {
      isBack = true;
    },
  };
  const [one, sender] = [await node({ metrics }), await node()];
  await one.topics.listen(groupTopic("g"));
  const first = streamOf("g", "s1");
  const next = streamOf("g", "s2");
  const { store } = sender;
  await store.streamEvent(first("___TextMessageStart", "{}"));
  await store.streamEvent(first("___TextMessageContent", "a"));
  await one.topics.barrier();
  await ofServer.call("CLIENT", "KILL", "TYPE", "pubsub");
  await store.streamEvent(first("___TextMessageContent", "b"));
  await store.streamEvent(first("___TextMessageContent", "c"));
  await store.streamEvent(first("___TextMessageEnd", ""));
  await store.streamEvent(next("___TextMessageStart", "{}"));
  await store.streamEvent(next("___TextMessageContent", "d"));
  await until(() => isBack, "it is back");
  await store.streamEvent(next("___TextMessageContent", "e"));
  await one.topics.barrier();
  for (const [no, text] of [
    ["s1", "abc"],
    ["s2", "de"],
  ] as const)
    t.same(textOf(one.events, no), { text, hasGap: false });
  t.same(one.seqs("2:g"), [1, 2]);
});

t.test("a barrier waits for a connection that comes back", async (t) => {
  const { node } = world(t);
  const one = await node();
  await one.topics.listen(userTopic("a"));
  await ofServer.call("CLIENT", "KILL", "TYPE", "pubsub");
  await one.send(person("b"), "a");
  await one.topics.barrier();
  t.same(one.seqs("1:a@b"), [1]);
});

function streamOf(groupId: string, clientMsgNo: string) {
  return (type: string, data: string) => ({
    ...{ key: channelKey(group(groupId), "a"), channel: group(groupId) },
    ...{ fromUid: "a", clientMsgNo, eventId: undefined, type, data },
    ...{ timestampMs: undefined, force: false },
  });
}

function brief(event: ClusterEvent): readonly unknown[] {
  if (event.kind === "message") return ["message", event.message.messageSeq];
  if (event.kind !== "event") return [event.kind];
  const { stream } = event.event;
  return ["event", stream?.index, stream?.nextIndex];
}

/** What a viewer of a stream has. */
function textOf(events: readonly ClusterEvent[], clientMsgNo: string) {
  let [text, next, hasGap] = ["", 0, false];
  for (const told of events) {
    if (told.kind !== "event" || told.event.clientMsgNo !== clientMsgNo)
      continue;
    const { stream, type, data } = told.event;
    if (stream?.index !== next) hasGap = true;
    next = stream?.nextIndex ?? 0;
    if (type === "___TextMessageContent") text += data;
  }
  return { text, hasGap };
}
