// Word that must not be lost in silence: however many are announced at once all of it comes, or who
// announces hears that it does not.

import t, { type Test } from "tap";
import { userTopic } from "../../../src/broker/model.ts";
import type { ClusterEvent } from "../../../src/broker/ports.ts";
import { redisSettings, startRedis } from "../../support/redis.ts";
import { startTopicNode } from "./topic-nodes.ts";

const MAX_IN_FLIGHT = 600;

async function nodes(t: Test, maxInFlight: number) {
  const redis = await startRedis(t);
  const settings = redisSettings(redis.url, { maxInFlight, timeoutMs: 5000 });
  const [teller, hearer] = [await startTopicNode(t, settings), await startTopicNode(t, settings)];
  return { redis, teller, hearer };
}

const addition = (uid: string, channelId: string): ClusterEvent => ({
  ...{ kind: "addition", uid, channelId },
});

t.test("all of many announcements at once come, in turns", async (t) => {
  const { teller, hearer } = await nodes(t, MAX_IN_FLIGHT);
  const uids = Array.from({ length: 20 }, (_, at) => `u${at}`);
  for (const uid of uids) await hearer.topics.listen(userTopic(uid));
  const calls = ["g1", "g2", "g3"].map((id) =>
    Array.from({ length: 100 }, () => uids)
      .flat()
      .map((uid) => addition(uid, id)),
  );
  let most = 0;
  const watch = setInterval(() => {
    most = Math.max(most, teller.link.inFlight);
  }, 1);
  await Promise.all(calls.map((events) => teller.topics.announce(events)));
  clearInterval(watch);
  await hearer.topics.barrier();
  t.equal(hearer.events.length, calls.flat().length);
  t.same(teller.problems, []);
  t.ok(most <= 500 + 10, `${most} under way`);
});

t.test("a short announcement waits for no long one", async (t) => {
  const { teller } = await nodes(t, MAX_IN_FLIGHT);
  const many = Array.from({ length: 3000 }, () => addition("u", "g"));
  let isOver = false;
  const long = teller.topics.announce(many).then(() => {
    isOver = true;
  });
  await teller.topics.announce([addition("v", "g")]);
  t.notOk(isOver);
  await long;
});

t.test("long announcements do not wait without end", async (t) => {
  const { redis, teller } = await nodes(t, MAX_IN_FLIGHT);
  const event = addition("u", "g");
  const announce = (length: number) => teller.topics.announce(Array.from({ length }, () => event));
  redis.signal("SIGSTOP");
  const waiting = t.rejects(announce(101_000), { code: "unavailable" });
  await t.rejects(announce(51), { code: "overloaded" });
  await redis.stop("SIGKILL");
  await waiting;
});

t.test("who announces while Redis is away hears of it", async (t) => {
  const { redis, teller, hearer } = await nodes(t, MAX_IN_FLIGHT);
  await hearer.topics.listen(userTopic("u"));
  const events = Array.from({ length: 2000 }, () => addition("u", "g"));
  await redis.stop();
  await t.rejects(teller.topics.announce(events), { code: "unavailable" });
  t.same(hearer.events, []);
});
