// The topics of nodes while Redis restarts or a connection carries no data: no acknowledged message
// is missed, and calls that cannot be completed are rejected.

import t, { type Test } from "tap";
import { groupTopic, userTopic } from "../../../src/broker/model.ts";
import { redisSettings, startRedis } from "../../support/redis.ts";
import { startRedisProxy } from "../../support/redis-proxy.ts";
import { measureStalls } from "../../support/stalls.ts";
import {
  group,
  NO_METRICS,
  person,
  range,
  sendUntilDone,
  startTopicNode,
  succeeds,
  type TopicNode,
  until,
} from "./topic-nodes.ts";

/** Asserts that every message of the channels was delivered once and in order. */
async function assertAllDelivered(
  t: Test,
  node: TopicNode,
  keys: readonly string[],
): Promise<void> {
  await until(() => succeeds(node.topics.barrier()), "the node has caught up");
  for (const key of keys) {
    const head = await node.store.headSeq(key);
    t.same(node.seqs(key), range(1, head), key);
  }
}

for (const signal of ["SIGTERM", "SIGKILL"] as const)
  t.test(`no message is missed when Redis is stopped with ${signal} and restarted`, async (t) => {
    const redis = await startRedis(t, [...["--appendonly", "yes", "--appendfsync", "always"]]);
    const settings = redisSettings(redis.url, { timeoutMs: 1000 });
    const [receiver, sender] = [
      await startTopicNode(t, settings),
      await startTopicNode(t, settings),
    ];
    await receiver.topics.listen(groupTopic("g"));
    await receiver.topics.listen(userTopic("b"));
    for (const _ of range(1, 5)) {
      await sender.send(group("g"), "a");
      await sender.send(person("b"), "a");
    }
    const sending = range(1, 20).map((at) =>
      sendUntilDone(sender, at % 2 ? group("g") : person("b"), "a"),
    );
    await redis.stop(signal);
    await until(() => !receiver.link.isUp, "the node is disconnected");
    await t.rejects(receiver.topics.listen(groupTopic("new")), {
      code: "unavailable",
    });
    await t.rejects(receiver.topics.barrier(), { code: "unavailable" });
    const isSubscribed = () =>
      receiver.topics.ping().then(
        () => true,
        () => false,
      );
    await until(async () => !(await isSubscribed()), "the subscriptions are lost as well");
    await t.rejects(receiver.topics.ping(), { code: "unavailable" });
    await redis.restart();
    await Promise.all(sending);
    await until(
      () =>
        receiver.topics.listen(groupTopic("g")).then(
          () => true,
          () => false,
        ),
      "the topic is restored",
    );
    await receiver.topics.ping();
    await sendUntilDone(sender, group("g"), "a");
    await assertAllDelivered(t, receiver, ["2:g", "1:a@b"]);
    await t.resolves(receiver.topics.listen(groupTopic("new")));
  });

t.test("a subscriber connection that no longer delivers data is replaced", async (t) => {
  const redis = await startRedis(t);
  const proxy = await startRedisProxy(t, redis.port);
  const through = redisSettings(`redis://127.0.0.1:${proxy.port}`);
  const receiver = await startTopicNode(t, through);
  const sender = await startTopicNode(t, redisSettings(redis.url));
  await receiver.topics.listen(groupTopic("g"));
  await receiver.topics.listen(userTopic("b"));
  await sender.send(group("g"), "a");
  proxy.silenceSubscribers();
  for (const _ of range(1, 10)) {
    await sender.send(group("g"), "a");
    await sender.send(person("b"), "a");
  }
  const stalls = measureStalls(t);
  const since = Date.now();
  await until(() => receiver.seqs("2:g").length === 11, "the group's messages are delivered");
  await until(() => receiver.seqs("1:a@b").length === 10, "the personal messages are delivered");
  const tookMs = Date.now() - since;
  t.ok(tookMs < 4500 + 10 * stalls.totalMs(), `the messages are delivered after ${tookMs} ms`);
  await assertAllDelivered(t, receiver, ["2:g", "1:a@b"]);
});

t.test("a node whose process was frozen keeps its subscriber connection", async (t) => {
  const redis = await startRedis(t);
  const proxy = await startRedisProxy(t, redis.port);
  const through = redisSettings(`redis://127.0.0.1:${proxy.port}`);
  let losses = 0;
  const receiver = await startTopicNode(t, through, {
    metrics: {
      ...NO_METRICS,
      resubscribed() {
        losses += 1;
      },
    },
  });
  await receiver.topics.listen(groupTopic("g"));
  proxy.holdSubscribers(true);
  const barrier = receiver.topics.barrier();
  await proxy.nextPublication(); // the barrier's publication is sent, and its delivery is held
  await receiver.link.ping();
  blockEventLoop(2300);
  proxy.holdSubscribers(false);
  await barrier;
  await receiver.send(group("g"), "a");
  await receiver.topics.barrier();
  t.equal(losses, 0);
  t.notOk(receiver.errors.some((problem) => problem.includes("replacing it")));
});

t.test("a subscription that completes after its timeout is removed", async (t) => {
  const redis = await startRedis(t);
  const settings = redisSettings(redis.url, { timeoutMs: 400 });
  const receiver = await startTopicNode(t, settings);
  await receiver.topics.listen(groupTopic("g"));
  const admin = redis.client();
  const names = async () =>
    ((await admin.call("PUBSUB", "SHARDCHANNELS", "*2:*")) as string[]).length;
  t.equal(await names(), 1);
  redis.signal("SIGSTOP");
  await t.rejects(receiver.topics.listen(groupTopic("late")), {
    code: "unavailable",
  });
  redis.signal("SIGCONT");
  await until(() => receiver.topics.ping().then(isTrue, isFalse), "the node is connected again");
  await until(
    () => receiver.topics.barrier().then(isTrue, isFalse),
    "all publications have arrived",
  );
  await until(async () => (await names()) === 1, "the late subscription is removed");
});

const isTrue = () => true;
const isFalse = () => false;

/** Blocks the event loop, like a process that is not scheduled. */
function blockEventLoop(ms: number): void {
  const end = performance.now() + ms;
  while (performance.now() < end);
}
