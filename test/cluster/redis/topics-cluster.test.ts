// The topics of nodes on a Redis Cluster: the order of messages that two nodes publish, a manual
// fail-over, and the death of a primary.

import { randomUUID } from "node:crypto";
import t, { type Test } from "tap";
import { groupTopic, userTopic } from "../../../src/broker/model.ts";
import { SLOTS, slotOf } from "../../../src/redis/slots.ts";
import { failOverTo, redisSettings, startRedisCluster } from "../../support/redis.ts";
import {
  group,
  person,
  range,
  sendUntilDone,
  startTopicNode,
  type TopicNode,
  until,
} from "./topic-nodes.ts";

const servers = await startRedisCluster(t, { replicas: true });
const [first] = servers.primaries;
const redis = first?.client();

/** Returns a function that starts nodes of a new cluster. */
function newCluster(t: Test, timeoutMs = 1000) {
  const prefix = `t${randomUUID().slice(0, 8)}`;
  const settings = redisSettings(servers.url, { prefix, timeoutMs });
  return { node: () => startTopicNode(t, settings) };
}

/** Returns the lowest number `n` for which the primary with index `at` serves the name. */
function firstServedBy(at: number, nameOf: (n: number) => string): number {
  const share = Math.ceil(SLOTS / 3);
  let n = 0;
  while (Math.floor(slotOf(nameOf(n)) / share) !== at) n++;
  return n;
}

/** Returns a group whose topic the primary with index `at` serves. */
const groupAt = ({ link }: TopicNode, at: number): string =>
  `g${firstServedBy(at, (n) => link.keys.topic(groupTopic(`g${n}`)))}`;

/** Returns a user whose topic the primary with index `at` serves. */
const userAt = ({ link }: TopicNode, at: number): string =>
  `u${firstServedBy(at, (n) => link.keys.topic(userTopic(`u${n}`)))}`;

t.test("a node computes the same hash slot for a name as Redis", async (t) => {
  for (const name of ["a", "{u:é}x", "x{}y", "jd:{c12}:topic:2:g", "{", "}{ab}"])
    t.equal(slotOf(name), await redis?.cluster("KEYSLOT", name), name);
});

t.test("messages that two nodes publish are delivered in order on every node", async (t) => {
  const { node } = newCluster(t, 60_000); // no call fails, however busy the machine is
  const nodes = [await node(), await node(), await node()] as const;
  for (const { topics } of nodes)
    for (const topic of [userTopic("a"), userTopic("b"), groupTopic("g")])
      await topics.listen(topic);
  const [first, second] = nodes;
  await Promise.all(
    range(1, 150).map(async (at) => {
      const sender = at % 2 ? first : second;
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

t.test("all messages are delivered in order during a manual fail-over", async (t) => {
  const { node } = newCluster(t);
  const [receiver, sender] = [await node(), await node()];
  const [g, u] = [groupAt(receiver, 1), userAt(receiver, 1)];
  await receiver.topics.listen(groupTopic(g));
  await receiver.topics.listen(userTopic(u));
  await sender.send(group(g), "a");
  await sender.send(person(u), "a");
  const sending = range(1, 30).map((at) =>
    sendUntilDone(sender, at % 2 ? group(g) : person(u), "a"),
  );
  const [, replica] = servers.replicas;
  if (replica === undefined) throw new Error("the Redis Cluster has no replica");
  await failOverTo(replica);
  await Promise.all(sending);
  for (const at of range(1, 10)) await sendUntilDone(sender, at % 2 ? group(g) : person(u), "a");
  await assertAllDelivered(t, receiver, [`2:${g}`, `1:a@${u}`]);
});

t.test("all messages are delivered in order after the death of a primary", async (t) => {
  const { node } = newCluster(t);
  const [receiver, sender] = [await node(), await node()];
  const [g, u] = [groupAt(receiver, 2), userAt(receiver, 2)];
  const unaffected = groupAt(receiver, 0);
  for (const topic of [groupTopic(g), groupTopic(unaffected), userTopic(u)])
    await receiver.topics.listen(topic);
  for (const to of [group(g), person(u), group(unaffected)]) await sender.send(to, "a");
  await servers.primaries[2]?.stop("SIGKILL");
  await sendUntilDone(sender, group(unaffected), "a");
  await until(
    () => receiver.seqs(`2:${unaffected}`).length === 2,
    "groups on other primaries continue",
  );
  await sendUntilDone(sender, group(g), "a");
  await sendUntilDone(sender, person(u), "a");
  await assertAllDelivered(t, receiver, [`2:${g}`, `1:a@${u}`, `2:${unaffected}`]);
  await t.resolves(receiver.topics.listen(groupTopic(groupAt(receiver, 2))));
});

/** Asserts that every message of the channels was delivered once and in order. */
async function assertAllDelivered(
  t: Test,
  node: TopicNode,
  keys: readonly string[],
): Promise<void> {
  const succeeds = () =>
    node.topics.barrier().then(
      () => true,
      () => false,
    );
  await until(succeeds, "the node has caught up", 12_000);
  for (const key of keys) {
    const head = await node.store.headSeq(key);
    t.same(node.seqs(key), range(1, head), key);
  }
}
