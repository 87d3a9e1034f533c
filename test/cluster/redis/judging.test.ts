// Access checks of the topics: removals are delivered in order with the group's messages, and
// missed messages are delivered only after users and groups were checked. Only groups in which
// something was published are checked.

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

/** Returns the settings of a new cluster. */
const settings = () => redisSettings(redis.url, { prefix: `w${worlds++}` });

const cutSubscriptions = () => admin.call("CLIENT", "KILL", "TYPE", "pubsub");

const groupInfo = (id: string) => ({
  ...group(id),
  ...{ ban: false, large: false, disband: false, sendBan: false },
  ...{ allowStranger: false, clientEvents: true },
});

/** Records every check, with the number of messages that were delivered before it. */
class RecordingResync implements TopicsResync {
  readonly calls: string[] = [];
  silentMs: number | undefined;
  /** Number of upcoming checks that fail. */
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
    this.#note(`${id} after ${lastSeq}`);
  };

  #note(call: string): void {
    const delivered = this.#node().events.filter(({ kind }) => kind === "message");
    const isDown = this.failures > 0;
    this.failures -= 1;
    this.calls.push(`${call} at ${delivered.length}${isDown ? ": down" : ""}`);
    if (isDown) throw new BrokerError("unavailable");
  }
}

async function startNode(
  t: Test,
  clusterSettings: RedisSettings,
): Promise<{ readonly node: TopicNode; readonly resync: RecordingResync }> {
  const resync: RecordingResync = new RecordingResync(() => node);
  const node: TopicNode = await startTopicNode(t, clusterSettings, { resync });
  return { node, resync };
}

const delivered = ({ events }: TopicNode): readonly string[] =>
  events.flatMap((event) => {
    if (event.kind === "message") return `message ${event.message.messageSeq}`;
    return event.kind === "removal" ? `without ${event.uids}` : [];
  });

async function assertRemovalsInOrder(t: Test, clusterSettings: RedisSettings): Promise<void> {
  const { node: receiver, resync } = await startNode(t, clusterSettings);
  const { store, send } = await startTopicNode(t, clusterSettings);
  await store.createChannel(groupInfo("g"), ["a", "b", "c", "d"]);
  await receiver.topics.listen(groupTopic("g"));
  await send(group("g"), "d");
  await store.removeSubscribers(group("g"), ["a", "b"], "permanent");
  await send(group("g"), "d");
  await store.addSubscribers(group("g"), ["d"], { ...PERMANENT, reset: true });
  await send(group("g"), "d");
  await receiver.topics.barrier();
  t.same(delivered(receiver), ["message 1", "without a,b", "message 2", "message 3"]);
  t.same(new Set(resync.calls), new Set(["g after 2 at 2"]), "a replaced member list is checked");
}

t.test("removals of members are delivered in order with the group's messages", async (t) => {
  await assertRemovalsInOrder(t, settings());
});

t.test(
  "removals of members are delivered in order with the group's messages on a Redis Cluster",
  async (t) => {
    const servers = await startRedisCluster(t);
    await assertRemovalsInOrder(t, redisSettings(servers.url, { cluster: true }));
  },
);

t.test(
  "a removal of subscribers is assigned a publication number only if a user stops being a member",
  async (t) => {
    const { store } = await startTopicNode(t, settings());
    await store.createChannel(groupInfo("g"), ["a"]);
    const temporary = { membership: "temporary", reset: false } as const;
    await store.addSubscribers(group("g"), ["a"], temporary);
    await store.removeSubscribers(group("g"), ["a"], "temporary");
    await store.removeSubscribers(group("g"), ["x"], "permanent");
    t.equal(await store.publicationSeqOf("2:g"), 0, "the user a is still a member");
    await store.removeSubscribers(group("g"), ["a"], "permanent");
    t.equal(await store.publicationSeqOf("2:g"), 1);
  },
);

t.test(
  "missed messages are delivered only after the node has checked users' sessions and groups' members, even if the first checks fail",
  async (t) => {
    const clusterSettings = settings();
    const { node: receiver, resync } = await startNode(t, clusterSettings);
    const sender = await startTopicNode(t, clusterSettings);
    for (const topic of [groupTopic("g"), userTopic("a")]) await receiver.topics.listen(topic);
    await sender.send(group("g"), "b");
    await receiver.topics.barrier();
    resync.failures = 3;
    await cutSubscriptions();
    for (const _ of range(1, 3)) await sender.send(group("g"), "b");
    await sender.send(person("a"), "b");
    await until(() => receiver.seqs("2:g").length === 4, "the group's messages are delivered");
    await until(() => receiver.seqs("1:a@b").length === 1, "the personal message is delivered");
    const succeeded = resync.calls.filter((call) => !call.endsWith("down"));
    t.equal(succeeded[0], "users a at 1", "users are checked before groups");
    t.equal(succeeded[1]?.startsWith("g after 1 at"), true);
    t.equal(resync.calls.length - succeeded.length, 3, "a check is repeated until it succeeds");
    t.same(receiver.seqs("2:g"), range(1, 4));
  },
);

t.test(
  "a node without recent heartbeats checks users' sessions and groups' members before it delivers messages",
  async (t) => {
    const clusterSettings = settings();
    const { node: receiver, resync } = await startNode(t, clusterSettings);
    const sender = await startTopicNode(t, clusterSettings);
    for (const topic of [groupTopic("g"), userTopic("a")]) await receiver.topics.listen(topic);
    await sender.send(group("g"), "b");
    await receiver.topics.barrier();
    resync.silentMs = Date.now() - 5000;
    await sender.send(group("g"), "b");
    await until(() => receiver.seqs("2:g").length === 2, "the message is delivered");
    t.same(resync.calls[0], "users a at 1");
    t.same(resync.calls[1], "g after 1 at 1");
    await sender.send(group("g"), "b");
    await receiver.topics.barrier();
    const { length } = resync.calls;
    await sender.send(group("g"), "b");
    await receiver.topics.barrier();
    t.same(receiver.seqs("2:g"), range(1, 4));
    t.equal(resync.calls.length, length, "later messages are delivered without a check");
  },
);

t.test(
  "after a lost connection, a group in which nothing was published costs only one HGET",
  async (t) => {
    const clusterSettings = settings();
    const resync: RecordingResync = new RecordingResync(() => receiver);
    let restored = 0;
    const receiver: TopicNode = await startTopicNode(t, clusterSettings, {
      resync: { ...NO_RESYNC, judgeGroup: resync.judgeGroup },
      metrics: {
        ...NO_METRICS,
        resubscribed(topics) {
          restored += topics;
        },
      },
    });
    const ids = range(1, 200).map((at) => `g${at}`);
    for (const id of ids) await receiver.topics.listen(groupTopic(id));
    const { store } = await startTopicNode(t, clusterSettings);
    for (const id of ["g7", "other"]) await store.createChannel(groupInfo(id), ["a"]);
    const remove = (id: string) => store.removeSubscribers(group(id), ["a"], "permanent");
    await admin.call("CONFIG", "RESETSTAT");
    await remove("other");
    const readsOfRemoval = await commandCalls(admin, "hget");
    await admin.call("CONFIG", "RESETSTAT");
    await cutSubscriptions();
    await remove("g7");
    await until(() => restored === ids.length, "all topics are subscribed again");
    t.equal(await commandCalls(admin, "hget"), ids.length + readsOfRemoval);
    t.same(new Set(resync.calls), new Set(["g7 after 0 at 0"]));
    t.ok((await commandCalls(admin, "evalsha")) < 20, "scripts run only for one group");
  },
);
