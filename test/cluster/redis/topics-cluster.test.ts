// The topics of nodes on a Redis Cluster: order where two nodes tell a user's topic, slots that
// move, a primary that dies.

import { randomUUID } from "node:crypto";
import t, { type Test } from "tap";
import { groupTopic, userTopic } from "../../../src/broker/model.ts";
import { SLOTS, slotOf } from "../../../src/redis/slots.ts";
import { failOverTo, redisSettings, startRedisCluster } from "../../support/redis.ts";
import {
  group,
  insist,
  person,
  range,
  startTopicNode,
  type TopicNode,
  until,
} from "./topic-nodes.ts";

const servers = await startRedisCluster(t, { replicas: true });
const [first] = servers.primaries;
const redis = first?.client();

/** Nodes of a cluster of the case's own. */
function world(t: Test) {
  const prefix = `t${randomUUID().slice(0, 8)}`;
  const settings = redisSettings(servers.url, { prefix, timeoutMs: 1000 });
  return { node: () => startTopicNode(t, settings) };
}

/** The number of the first name that a primary serves: `at` counts them. */
function servedBy(at: number, nameOf: (n: number) => string): number {
  const share = Math.ceil(SLOTS / 3);
  let n = 0;
  while (Math.floor(slotOf(nameOf(n)) / share) !== at) n++;
  return n;
}

/** A group whose topic is there. */
const groupAt = ({ link }: TopicNode, at: number): string =>
  `g${servedBy(at, (n) => link.keys.topic(groupTopic(`g${n}`)))}`;

/** The same of a user. */
const userAt = ({ link }: TopicNode, at: number): string =>
  `u${servedBy(at, (n) => link.keys.topic(userTopic(`u${n}`)))}`;

t.test("slots are those of Redis", async (t) => {
  for (const name of ["a", "{u:é}x", "x{}y", "jd:{c12}:topic:2:g", "{", "}{ab}"])
    t.equal(slotOf(name), await redis?.cluster("KEYSLOT", name), name);
});

t.test("what two nodes deliver comes in order on every node", async (t) => {
  const { node } = world(t);
  const nodes = [await node(), await node(), await node()] as const;
  for (const { topics } of nodes)
    for (const topic of [userTopic("a"), userTopic("b"), groupTopic("g")])
      await topics.listen(topic);
  const [one, other] = nodes;
  await Promise.all(
    range(1, 150).map(async (at) => {
      const sender = at % 2 ? one : other;
      const from = at % 3 ? "a" : "b";
      const to = at % 5 ? person(from === "a" ? "b" : "a") : group("g");
      await sender.send(to, from);
    }),
  );
  for (const { topics, seqs } of nodes) {
    await topics.barrier();
    t.same(seqs("1:a@b"), range(1, 120));
    t.same(seqs("2:g"), range(1, 30));
  }
});

t.test("a primary hands over to its replica", async (t) => {
  const { node } = world(t);
  const [one, sender] = [await node(), await node()];
  const [g, u] = [groupAt(one, 1), userAt(one, 1)];
  await one.topics.listen(groupTopic(g));
  await one.topics.listen(userTopic(u));
  await sender.send(group(g), "a");
  await sender.send(person(u), "a");
  const sending = range(1, 30).map((at) => insist(sender, at % 2 ? group(g) : person(u), "a"));
  const [, replica] = servers.replicas;
  if (replica === undefined) throw new Error("no replica");
  await failOverTo(replica);
  await Promise.all(sending);
  for (const at of range(1, 10)) await insist(sender, at % 2 ? group(g) : person(u), "a");
  await assertWhole(t, one, [`2:${g}`, `1:a@${u}`]);
});

t.test("a primary dies", async (t) => {
  const { node } = world(t);
  const [one, sender] = [await node(), await node()];
  const [g, u] = [groupAt(one, 2), userAt(one, 2)];
  const calm = groupAt(one, 0);
  for (const topic of [groupTopic(g), groupTopic(calm), userTopic(u)])
    await one.topics.listen(topic);
  for (const to of [group(g), person(u), group(calm)]) await sender.send(to, "a");
  await servers.primaries[2]?.stop("SIGKILL");
  await insist(sender, group(calm), "a");
  await until(() => one.seqs(`2:${calm}`).length === 2, "others go on");
  await insist(sender, group(g), "a");
  await insist(sender, person(u), "a");
  await assertWhole(t, one, [`2:${g}`, `1:a@${u}`, `2:${calm}`]);
  await t.resolves(one.topics.listen(groupTopic(groupAt(one, 2))));
});

/** Every message of the channel came, once, in order. */
async function assertWhole(t: Test, node: TopicNode, keys: readonly string[]): Promise<void> {
  const level = () =>
    node.topics.barrier().then(
      () => true,
      () => false,
    );
  await until(level, "live", 12_000);
  for (const key of keys) {
    const head = await node.store.headSeq(key);
    t.same(node.seqs(key), range(1, head), key);
  }
}
