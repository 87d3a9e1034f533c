// The topics of nodes on one Redis server, in addition to the delivery contract: the number of
// publications and subscriptions, the delayed unsubscribe, and frames of a newer version.

import { randomUUID } from "node:crypto";
import t, { type Test } from "tap";
import { type ChannelRef, channelKey, groupTopic, userTopic } from "../../../src/broker/model.ts";
import type { ClusterEvent } from "../../../src/broker/ports.ts";
import { batchOf, unorderedFrame, WIRE_VERSION } from "../../../src/redis/wire.ts";
import { redisSettings, startRedis } from "../../support/redis.ts";
import { connectSubscriber } from "../../support/topic-subscriber.ts";
import { group, type NodeOptions, person, range, startTopicNode, until } from "./topic-nodes.ts";

const redis = await startRedis(t);
const admin = redis.client();

/** Returns functions that start nodes of a new cluster and list its subscriptions in Redis. */
function newCluster(t: Test) {
  const prefix = `t${randomUUID().slice(0, 8)}`;
  const settings = redisSettings(redis.url, { prefix, timeoutMs: 10_000 });
  return {
    prefix,
    node: (options?: NodeOptions) => startTopicNode(t, settings, options),
    channels: async () => (await admin.call("PUBSUB", "SHARDCHANNELS", `${prefix}:*`)) as string[],
    listeners: async (name: string) =>
      ((await admin.call("PUBSUB", "SHARDNUMSUB", name)) as unknown[])[1],
  };
}

t.test("a node unsubscribes from a topic only after a delay", async (t) => {
  const { node, channels } = newCluster(t);
  const receiver = await node({ unsubscribeDelayMs: 150 });
  const names = async () => (await channels()).filter((name) => !name.includes("mark"));
  await receiver.topics.listen(groupTopic("g"));
  await receiver.topics.listen(groupTopic("g")); // a second call has no further effect
  t.equal((await names()).length, 1);
  receiver.topics.unlisten(groupTopic("g"));
  t.equal((await names()).length, 1);
  await receiver.topics.listen(groupTopic("g"));
  await new Promise((go) => setTimeout(go, 200)); // longer than the delay
  t.equal((await names()).length, 1, "a topic that is needed again stays subscribed");
  receiver.topics.unlisten(groupTopic("g"));
  await until(async () => (await names()).length === 0, "the topic is unsubscribed");
  await receiver.send(group("g"), "a");
  t.same(receiver.seqs("2:g"), []);
});

t.test(
  "delayed unsubscriptions over the maximum number are executed at once, oldest first",
  async (t) => {
    const { node, channels } = newCluster(t);
    const receiver = await node({ limits: { maxDelayedUnsubscribes: 3 } });
    for (const at of range(1, 5)) await receiver.topics.listen(groupTopic(`g${at}`));
    for (const at of range(1, 5)) receiver.topics.unlisten(groupTopic(`g${at}`));
    const subscribed = async () => (await channels()).filter((name) => name.includes("2:g"));
    await until(async () => (await subscribed()).length === 3, "two topics are unsubscribed");
    t.same((await subscribed()).map((name) => name.slice(-2)).sort(), ["g3", "g4", "g5"]);
  },
);

t.test(
  "a group message is delivered once on each node that subscribed to the group, and on no other node",
  async (t) => {
    const { node, listeners } = newCluster(t);
    const [receiver, member, unrelated] = [await node(), await node(), await node()];
    for (const { topics } of [receiver, member]) await topics.listen(groupTopic("g"));
    await unrelated.topics.listen(groupTopic("h"));
    const name = receiver.link.keys.topic(groupTopic("g"));
    t.equal(await listeners(name), 2);
    await receiver.send(group("g"), "a");
    await Promise.all([member.topics.barrier(), unrelated.topics.barrier()]);
    t.same(
      [receiver, member, unrelated].map(({ seqs }) => seqs("2:g")),
      [[1], [1], []],
    );
  },
);

t.test("malformed frames and frames of a newer version are reported and dropped", async (t) => {
  const { node } = newCluster(t);
  const receiver = await node();
  await receiver.topics.listen(groupTopic("g"));
  const name = receiver.link.keys.topic(groupTopic("g"));
  for (const bytes of [[WIRE_VERSION + 1, 1, 0, 0], [WIRE_VERSION, 99], [WIRE_VERSION, 1], []])
    await admin.spublish(name, Buffer.from(bytes));
  await receiver.send(group("g"), "a");
  await receiver.topics.barrier();
  t.same(receiver.seqs("2:g"), [1]);
  t.ok(receiver.errors.length > 0);
});

t.test(
  "events that a node publishes in one turn of the event loop reach a topic once, in order and in one publication",
  async (t) => {
    const { node } = newCluster(t);
    const [sender, receiver] = [await node(), await node()];
    await receiver.topics.listen(userTopic("a"), userTopic("b"));
    const publications: string[] = [];
    const observer = await connectSubscriber(t, redis.url, (topic) => publications.push(topic));
    for (const uid of ["a", "b"]) await observer.ssubscribe(sender.link.keys.topic(userTopic(uid)));
    const types = range(1, 20).map((number) => `e${number}`);
    for (const type of types) sender.topics.publish(eventOf("a", person("b"), type));
    sender.topics.publish(eventOf("b", person("a"), "last"));
    await sender.topics.barrier();
    await receiver.topics.barrier();
    const received = () =>
      receiver.events.flatMap((event) => (event.kind === "event" ? event.event.type : []));
    await until(async () => received().length > types.length, "all events have arrived");
    t.same(received(), [...types, "last"], "an event that arrived on two topics is delivered once");
    await until(async () => publications.length >= 2, "both publications have arrived");
    t.equal(publications.length, 2, "each user's topic has one publication");
    const large = eventOf("a", person("b"), "large", "x".repeat(40_000));
    for (let count = 0; count < 4; count++) sender.topics.publish(large);
    await sender.topics.barrier();
    await until(async () => publications.length >= 6, "the publications of large events arrive");
    t.equal(publications.length, 6, "a publication above 64 KiB is split");
  },
);

t.test(
  "a truncated batch of events is reported, and its complete events are delivered",
  async (t) => {
    const { node } = newCluster(t);
    const receiver = await node();
    await receiver.topics.listen(groupTopic("g"));
    const frames = ["e1", "e2"].map((type) => unorderedFrame(type, eventOf("a", group("g"), type)));
    const batch = batchOf(frames);
    const name = receiver.link.keys.topic(groupTopic("g"));
    for (const bytes of [
      batch.subarray(0, batch.length - 1),
      batch.subarray(0, 2),
      batchOf([batch]),
    ])
      await admin.spublish(name, bytes);
    await receiver.topics.barrier();
    t.same(
      receiver.events.flatMap((event) => (event.kind === "event" ? event.event.type : [])),
      ["e1"],
    );
    t.ok(receiver.errors.length > 0);
  },
);

/** Returns an event of a client. */
function eventOf(fromUid: string, channel: ChannelRef, type: string, data = ""): ClusterEvent {
  const key = channelKey(channel, fromUid);
  return {
    kind: "event",
    event: {
      ...{ key, channel, fromUid, clientMsgNo: "", eventId: type, type, data },
      ...{ timestampMs: 1, stream: undefined },
    },
    origin: "s1",
  };
}
