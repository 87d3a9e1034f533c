// Announcements must not be lost silently. All events of an announcement arrive, or the caller
// receives an error.

import t, { type Test } from "tap";
import { userTopic } from "../../../src/broker/model.ts";
import type { ClusterEvent } from "../../../src/broker/ports.ts";
import { redisSettings, startRedis } from "../../support/redis.ts";
import { startTopicNode } from "./topic-nodes.ts";

const MAX_IN_FLIGHT = 600;

async function nodes(t: Test, maxInFlight: number) {
  const redis = await startRedis(t);
  const settings = redisSettings(redis.url, { maxInFlight, timeoutMs: 5000 });
  const [publisher, subscriber] = [
    await startTopicNode(t, settings),
    await startTopicNode(t, settings),
  ];
  return { redis, teller: publisher, hearer: subscriber };
}

const addition = (uid: string, channelId: string): ClusterEvent => ({
  ...{ kind: "addition", uid, channelId },
});

t.test("all events of three concurrent announcements of 2,000 events each arrive", async (t) => {
  const { teller: publisher, hearer: subscriber } = await nodes(t, MAX_IN_FLIGHT);
  const uids = Array.from({ length: 20 }, (_, at) => `u${at}`);
  for (const uid of uids) await subscriber.topics.listen(userTopic(uid));
  const calls = ["g1", "g2", "g3"].map((id) =>
    Array.from({ length: 100 }, () => uids)
      .flat()
      .map((uid) => addition(uid, id)),
  );
  let peak = 0;
  const watch = setInterval(() => {
    peak = Math.max(peak, publisher.link.inFlight);
  }, 1);
  await Promise.all(calls.map((events) => publisher.topics.announce(events)));
  clearInterval(watch);
  await subscriber.topics.barrier();
  t.equal(subscriber.events.length, calls.flat().length);
  t.same(publisher.errors, []);
  t.ok(peak <= 500 + 10, `at most 510 calls are in flight, not ${peak}`);
});

t.test("a short announcement of events does not wait for a long announcement", async (t) => {
  const { teller: publisher } = await nodes(t, MAX_IN_FLIGHT);
  const events = Array.from({ length: 3000 }, () => addition("u", "g"));
  let isDone = false;
  const long = publisher.topics.announce(events).then(() => {
    isDone = true;
  });
  await publisher.topics.announce([addition("v", "g")]);
  t.notOk(isDone);
  await long;
});

t.test(
  "an announcement of more than 50 events is rejected while 100,000 events are waiting",
  async (t) => {
    const { redis, teller: publisher } = await nodes(t, MAX_IN_FLIGHT);
    const event = addition("u", "g");
    const announce = (length: number) =>
      publisher.topics.announce(Array.from({ length }, () => event));
    redis.signal("SIGSTOP");
    const waiting = t.rejects(announce(101_000), { code: "unavailable" });
    await t.rejects(announce(51), { code: "overloaded" });
    await redis.stop("SIGKILL");
    await waiting;
  },
);

t.test("an announcement of events is rejected while Redis is down", async (t) => {
  const { redis, teller: publisher, hearer: subscriber } = await nodes(t, MAX_IN_FLIGHT);
  await subscriber.topics.listen(userTopic("u"));
  const events = Array.from({ length: 2000 }, () => addition("u", "g"));
  await redis.stop();
  await t.rejects(publisher.topics.announce(events), { code: "unavailable" });
  t.same(subscriber.events, []);
});
