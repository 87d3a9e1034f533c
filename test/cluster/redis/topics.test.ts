// The topics of nodes on one Redis server, beside the delivery contract: what costs a publication
// or a subscription, what lingers, what readers wait for.

import { randomUUID } from "node:crypto";
import t, { type Test } from "tap";
import { groupTopic } from "../../../src/broker/model.ts";
import { WIRE_VERSION } from "../../../src/redis/wire.ts";
import { redisSettings, startRedis } from "../../support/redis.ts";
import { group, type NodeOptions, range, startTopicNode, until } from "./topic-nodes.ts";

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
      (await ofServer.call("PUBSUB", "SHARDCHANNELS", `${prefix}:*`)) as string[],
    listeners: async (name: string) =>
      ((await ofServer.call("PUBSUB", "SHARDNUMSUB", name)) as unknown[])[1],
  };
}

t.test("unlistened topics linger, and then are let go of", async (t) => {
  const { node, channels } = world(t);
  const one = await node({ unsubscribeDelayMs: 150 });
  const names = async () => (await channels()).filter((name) => !name.includes("mark"));
  await one.topics.listen(groupTopic("g"));
  await one.topics.listen(groupTopic("g")); // listening twice is listening
  t.equal((await names()).length, 1);
  one.topics.unlisten(groupTopic("g"));
  t.equal((await names()).length, 1);
  await one.topics.listen(groupTopic("g"));
  await new Promise((go) => setTimeout(go, 200)); // what shows here is that nothing happens
  t.equal((await names()).length, 1, "wanted again before the end");
  one.topics.unlisten(groupTopic("g"));
  await until(async () => (await names()).length === 0, "let go of");
  await one.send(group("g"), "a");
  t.same(one.seqs("2:g"), []);
});

t.test("over the bound the longest lingering goes at once", async (t) => {
  const { node, channels } = world(t);
  const one = await node({ limits: { maxDelayedUnsubscribes: 3 } });
  for (const at of range(1, 5)) await one.topics.listen(groupTopic(`g${at}`));
  for (const at of range(1, 5)) one.topics.unlisten(groupTopic(`g${at}`));
  const left = async () => (await channels()).filter((name) => name.includes("2:g"));
  await until(async () => (await left()).length === 3, "two are gone");
  t.same((await left()).map((name) => name.slice(-2)).sort(), ["g3", "g4", "g5"]);
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

t.test("a frame of the future is reported and left out", async (t) => {
  const { node } = world(t);
  const one = await node();
  await one.topics.listen(groupTopic("g"));
  const name = one.link.keys.topic(groupTopic("g"));
  for (const bytes of [[WIRE_VERSION + 1, 1, 0, 0], [WIRE_VERSION, 99], [WIRE_VERSION, 1], []])
    await ofServer.spublish(name, Buffer.from(bytes));
  await one.send(group("g"), "a");
  await one.topics.barrier();
  t.same(one.seqs("2:g"), [1]);
  t.ok(one.problems.length > 0);
});
