// The topics of nodes while Redis restarts, or a connection falls silent without an end: nothing
// that was answered is missed, and calls that cannot be done are refused.

import t, { type Test } from "tap";
import { groupTopic, userTopic } from "../../../src/broker/model.ts";
import { redisSettings, startRedis } from "../../support/redis.ts";
import { startRedisProxy } from "../../support/redis-proxy.ts";
import { measureStalls } from "../../support/stalls.ts";
import {
  group,
  insist,
  isDone,
  NO_METRICS,
  person,
  range,
  startTopicNode,
  type TopicNode,
  until,
} from "./topic-nodes.ts";

/** What one that listened all the time was told: every message of the channel, once, in order. */
async function assertWhole(t: Test, node: TopicNode, keys: readonly string[]): Promise<void> {
  await until(() => isDone(node.topics.barrier()), "live");
  for (const key of keys) {
    const head = await node.store.headSeq(key);
    t.same(node.seqs(key), range(1, head), key);
  }
}

for (const how of ["SIGTERM", "SIGKILL"] as const)
  t.test(`Redis ends by ${how} and comes back`, async (t) => {
    const redis = await startRedis(t, [...["--appendonly", "yes", "--appendfsync", "always"]]);
    const settings = redisSettings(redis.url, { timeoutMs: 1000 });
    const [one, sender] = [await startTopicNode(t, settings), await startTopicNode(t, settings)];
    await one.topics.listen(groupTopic("g"));
    await one.topics.listen(userTopic("b"));
    for (const _ of range(1, 5)) {
      await sender.send(group("g"), "a");
      await sender.send(person("b"), "a");
    }
    const sending = range(1, 20).map((at) =>
      insist(sender, at % 2 ? group("g") : person("b"), "a"),
    );
    await redis.stop(how);
    await until(() => !one.link.isUp, "it is away");
    await t.rejects(one.topics.listen(groupTopic("new")), {
      code: "unavailable",
    });
    await t.rejects(one.topics.barrier(), { code: "unavailable" });
    await t.rejects(one.topics.ping(), { code: "unavailable" });
    await redis.restart();
    await Promise.all(sending);
    await until(
      () =>
        one.topics.listen(groupTopic("g")).then(
          () => true,
          () => false,
        ),
      "listened to again",
    );
    await one.topics.ping();
    await insist(sender, group("g"), "a");
    await assertWhole(t, one, ["2:g", "1:a@b"]);
    await t.resolves(one.topics.listen(groupTopic("new")));
  });

t.test("a connection that falls silent is given up", async (t) => {
  const redis = await startRedis(t);
  const proxy = await startRedisProxy(t, redis.port);
  const through = redisSettings(`redis://127.0.0.1:${proxy.port}`);
  const one = await startTopicNode(t, through);
  const sender = await startTopicNode(t, redisSettings(redis.url));
  await one.topics.listen(groupTopic("g"));
  await one.topics.listen(userTopic("b"));
  await sender.send(group("g"), "a");
  proxy.silenceSubscribers();
  for (const _ of range(1, 10)) {
    await sender.send(group("g"), "a");
    await sender.send(person("b"), "a");
  }
  const stalls = measureStalls(t);
  const since = Date.now();
  await until(() => one.seqs("2:g").length === 11, "made good");
  await until(() => one.seqs("1:a@b").length === 10, "made good");
  const tookMs = Date.now() - since;
  t.ok(tookMs < 4500 + 10 * stalls.totalMs(), `soon: ${tookMs} ms`);
  await assertWhole(t, one, ["2:g", "1:a@b"]);
});

t.test("a node that stood still keeps its connection", async (t) => {
  const redis = await startRedis(t);
  const proxy = await startRedisProxy(t, redis.port);
  const through = redisSettings(`redis://127.0.0.1:${proxy.port}`);
  let losses = 0;
  const one = await startTopicNode(t, through, {
    metrics: {
      ...NO_METRICS,
      resubscribed() {
        losses += 1;
      },
    },
  });
  await one.topics.listen(groupTopic("g"));
  proxy.holdSubscribers(true);
  const barrier = one.topics.barrier();
  await proxy.nextPublication(); // from then on it waits to be heard
  await one.link.ping();
  standStill(2300);
  proxy.holdSubscribers(false);
  await barrier;
  await one.send(group("g"), "a");
  await one.topics.barrier();
  t.equal(losses, 0);
  t.notOk(one.problems.some((problem) => problem.includes("renewed")));
});

t.test("a subscription that is done too late is undone", async (t) => {
  const redis = await startRedis(t);
  const settings = redisSettings(redis.url, { timeoutMs: 400 });
  const one = await startTopicNode(t, settings);
  await one.topics.listen(groupTopic("g"));
  const admin = redis.client();
  const names = async () =>
    ((await admin.call("PUBSUB", "SHARDCHANNELS", "*2:*")) as string[]).length;
  t.equal(await names(), 1);
  redis.signal("SIGSTOP");
  await t.rejects(one.topics.listen(groupTopic("late")), {
    code: "unavailable",
  });
  redis.signal("SIGCONT");
  await until(() => one.topics.ping().then(isTrue, isFalse), "it is back");
  await until(() => one.topics.barrier().then(isTrue, isFalse), "all came");
  await until(async () => (await names()) === 1, "undone");
});

const isTrue = () => true;
const isFalse = () => false;

/** As a process that got no processor. */
function standStill(ms: number): void {
  const end = performance.now() + ms;
  while (performance.now() < end);
}
