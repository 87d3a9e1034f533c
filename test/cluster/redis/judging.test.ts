// Who may still see what a node delivers: removals come in turn with the group's messages, and what
// was missed is told only after it was judged, of as few groups as something happened in.

import t, { type Test } from "tap";
import { BrokerError } from "../../../src/broker/errors.ts";
import { groupTopic, userTopic } from "../../../src/broker/model.ts";
import { NO_RESYNC, type TopicsResync } from "../../../src/cluster/redis/topics/topics-ports.ts";
import type { RedisSettings } from "../../../src/redis/client.ts";
import { commandCalls, redisSettings, startRedis, startRedisCluster } from "../../support/redis.ts";
import {
  group,
  NO_METRICS,
  person,
  range,
  startTopicNode,
  type TopicNode,
  until,
} from "./topic-nodes.ts";

const PERMANENT = { membership: "permanent", reset: false } as const;

const redis = await startRedis(t);
const admin = redis.client();
let worlds = 0;

/** Of a cluster of the test's own. */
const settings = () => redisSettings(redis.url, { prefix: `w${worlds++}` });

const cut = () => admin.call("CLIENT", "KILL", "TYPE", "pubsub");

const groupInfo = (id: string) => ({
  ...group(id),
  ...{ ban: false, large: false, disband: false, sendBan: false },
  allowStranger: false,
});

/** Notes what is asked, and in which place among what was told. */
class Judge implements TopicsResync {
  readonly asked: string[] = [];
  silentMs: number | undefined;
  /** So many times it cannot tell. */
  failures = 0;
  readonly #node: () => TopicNode;

  constructor(node: () => TopicNode) {
    this.#node = node;
  }

  silentSinceMs(): number | undefined {
    return this.silentMs;
  }

  async judgeUsers(uids: readonly string[]): Promise<readonly string[]> {
    this.silentMs = undefined;
    this.#note(`users ${[...uids].sort()}`);
    return [];
  }

  readonly judgeGroup = async (id: string, lastSeq: number): Promise<void> => {
    this.#note(`${id} behind ${lastSeq}`);
  };

  #note(what: string): void {
    const told = this.#node().events.filter(({ kind }) => kind === "message");
    const isDown = this.failures > 0;
    this.failures -= 1;
    this.asked.push(`${what} at ${told.length}${isDown ? ": down" : ""}`);
    if (isDown) throw new BrokerError("unavailable");
  }
}

async function judged(
  t: Test,
  own: RedisSettings,
): Promise<{ readonly node: TopicNode; readonly judge: Judge }> {
  const judge: Judge = new Judge(() => node);
  const node: TopicNode = await startTopicNode(t, own, { resync: judge });
  return { node, judge };
}

const shown = ({ events }: TopicNode): readonly string[] =>
  events.flatMap((event) => {
    if (event.kind === "message") return `message ${event.message.messageSeq}`;
    return event.kind === "removal" ? `without ${event.uids}` : [];
  });

async function inTurn(t: Test, own: RedisSettings): Promise<void> {
  const { node: one, judge } = await judged(t, own);
  const { store, send } = await startTopicNode(t, own);
  await store.createChannel(groupInfo("g"), ["a", "b", "c", "d"]);
  await one.topics.listen(groupTopic("g"));
  await send(group("g"), "d");
  await store.removeSubscribers(group("g"), ["a", "b"], "permanent");
  await send(group("g"), "d");
  await store.addSubscribers(group("g"), ["d"], { ...PERMANENT, reset: true });
  await send(group("g"), "d");
  await one.topics.barrier();
  t.same(shown(one), ["message 1", "without a,b", "message 2", "message 3"]);
  t.same(new Set(judge.asked), new Set(["g behind 2 at 2"]), "a list replaced");
}

t.test("removals come in turn with the group's messages", async (t) => {
  await inTurn(t, settings());
});

t.test("so they do on a Redis Cluster", async (t) => {
  const servers = await startRedisCluster(t);
  await inTurn(t, redisSettings(servers.url, { cluster: true }));
});

t.test("a removal of nobody markDelivered no number", async (t) => {
  const { store } = await startTopicNode(t, settings());
  await store.createChannel(groupInfo("g"), ["a"]);
  const temporary = { membership: "temporary", reset: false } as const;
  await store.addSubscribers(group("g"), ["a"], temporary);
  await store.removeSubscribers(group("g"), ["a"], "temporary");
  await store.removeSubscribers(group("g"), ["x"], "permanent");
  t.equal(await store.publicationSeqOf("2:g"), 0, "a is a member still");
  await store.removeSubscribers(group("g"), ["a"], "permanent");
  t.equal(await store.publicationSeqOf("2:g"), 1);
});

t.test(
  "what was missed is told after users and groups were judged, however often that fails",
  async (t) => {
    const own = settings();
    const { node: one, judge } = await judged(t, own);
    const sender = await startTopicNode(t, own);
    for (const topic of [groupTopic("g"), userTopic("a")]) await one.topics.listen(topic);
    await sender.send(group("g"), "b");
    await one.topics.barrier();
    judge.failures = 3;
    await cut();
    for (const _ of range(1, 3)) await sender.send(group("g"), "b");
    await sender.send(person("a"), "b");
    await until(() => one.seqs("2:g").length === 4, "made good");
    await until(() => one.seqs("1:a@b").length === 1, "made good");
    const before = judge.asked.filter((one) => !one.endsWith("down"));
    t.equal(before[0], "users a at 1", "users first");
    t.equal(before[1]?.startsWith("g behind 1 at"), true);
    t.equal(judge.asked.length - before.length, 3, "asked until it is known");
    t.same(one.seqs("2:g"), range(1, 4));
  },
);

t.test("a node that was silent judges before it tells", async (t) => {
  const own = settings();
  const { node: one, judge } = await judged(t, own);
  const sender = await startTopicNode(t, own);
  for (const topic of [groupTopic("g"), userTopic("a")]) await one.topics.listen(topic);
  await sender.send(group("g"), "b");
  await one.topics.barrier();
  judge.silentMs = Date.now() - 5000;
  await sender.send(group("g"), "b");
  await until(() => one.seqs("2:g").length === 2, "it is told");
  t.same(judge.asked[0], "users a at 1");
  t.same(judge.asked[1], "g behind 1 at 1");
  await sender.send(group("g"), "b");
  await one.topics.barrier();
  const { length } = judge.asked;
  await sender.send(group("g"), "b");
  await one.topics.barrier();
  t.same(one.seqs("2:g"), range(1, 4));
  t.equal(judge.asked.length, length, "and then no more");
});

t.test("a group in which nothing happened costs one read of a number after a cut", async (t) => {
  const own = settings();
  const judge: Judge = new Judge(() => one);
  let restored = 0;
  const one: TopicNode = await startTopicNode(t, own, {
    resync: { ...NO_RESYNC, judgeGroup: judge.judgeGroup },
    metrics: {
      ...NO_METRICS,
      resubscribed(topics) {
        restored += topics;
      },
    },
  });
  const ids = range(1, 200).map((at) => `g${at}`);
  for (const id of ids) await one.topics.listen(groupTopic(id));
  const { store } = await startTopicNode(t, own);
  for (const id of ["g7", "other"]) await store.createChannel(groupInfo(id), ["a"]);
  const remove = (id: string) => store.removeSubscribers(group(id), ["a"], "permanent");
  await admin.call("CONFIG", "RESETSTAT");
  await remove("other");
  const ofRemoval = await commandCalls(admin, "hget");
  await admin.call("CONFIG", "RESETSTAT");
  await cut();
  await remove("g7");
  await until(() => restored === ids.length, "it is back");
  t.equal(await commandCalls(admin, "hget"), ids.length + ofRemoval);
  t.same(new Set(judge.asked), new Set(["g7 behind 0 at 0"]));
  t.ok((await commandCalls(admin, "evalsha")) < 20, "scripts for one group");
});
