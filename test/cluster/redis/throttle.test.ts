// The throttle on Redis: all nodes share the counts of failed logins, and their clocks determine
// when a time window ends.

import t, { type Test } from "tap";
import { createRedisThrottle } from "../../../src/cluster/redis/throttle.ts";
import { RedisLink } from "../../../src/redis/link.ts";
import { codeOf } from "../../contract/store-fixture.ts";
import { redisSettings, startRedis } from "../../support/redis.ts";

const MINUTE_MS = 60_000;

t.test("a throttle on Redis counts the failed logins of all nodes together", async (t) => {
  const server = await startRedis(t);
  let nowMs = Date.UTC(2026, 0, 1);

  async function node(t: Test) {
    const link = new RedisLink(redisSettings(server.url), {
      ...{ name: "test", onError: () => {} },
    });
    await link.start();
    t.teardown(() => link.close());
    return { link, throttle: createRedisThrottle(link, () => nowMs) };
  }

  t.test("all nodes share the failure count of a key and count each failure once", async (t) => {
    const [a, b] = [await node(t), await node(t)];
    t.same(await a.throttle.failures("k"), { count: 0, retryAfterS: 0 });
    await Promise.all(
      Array.from({ length: 20 }, (_, at) => (at % 2 ? a : b).throttle.addFailure("k", MINUTE_MS)),
    );
    const next = await b.throttle.addFailure("k1", MINUTE_MS);
    t.same(next, { count: 1, retryAfterS: 60 });
    t.same(await a.throttle.addFailure("k1", MINUTE_MS), {
      ...{ count: 2, retryAfterS: 60 },
    });
    for (const { throttle } of [a, b])
      t.same(await throttle.failures("k"), { count: 20, retryAfterS: 60 });
    t.equal((await a.throttle.failures("k2")).count, 0);
  });

  t.test("the first failure of a key starts a window, after which the count is 0", async (t) => {
    const { throttle } = await node(t);
    await throttle.addFailure("w", MINUTE_MS);
    nowMs += 59_001;
    await throttle.addFailure("w", MINUTE_MS);
    t.same(await throttle.failures("w"), { count: 2, retryAfterS: 1 });
    nowMs += 999;
    t.same(await throttle.failures("w"), { count: 0, retryAfterS: 0 });
    await throttle.addFailure("w", MINUTE_MS);
    t.same(await throttle.failures("w"), { count: 1, retryAfterS: 60 });
  });

  t.test("clearing a key sets its failure count to 0", async (t) => {
    const { throttle } = await node(t);
    await throttle.addFailure("c", MINUTE_MS);
    await throttle.clear("c");
    await throttle.clear("c");
    t.same(await throttle.failures("c"), { count: 0, retryAfterS: 0 });
  });

  t.test("the Redis key of a failure count is short and expires by itself", async (t) => {
    const { throttle } = await node(t);
    const client = server.client();
    await client.flushall();
    await throttle.addFailure("x".repeat(100_000), MINUTE_MS);
    const [key = ""] = await client.keys("*");
    t.ok(key.length < 100, key);
    const remainingMs = await client.pttl(key);
    t.ok(
      remainingMs > MINUTE_MS && remainingMs <= 2 * MINUTE_MS,
      `the key expires after ${remainingMs} ms`,
    );
  });

  t.test(
    "calls to the throttle are rejected with `unavailable` after its link to Redis was closed",
    async (t) => {
      const { link, throttle } = await node(t);
      await link.close();
      t.equal(await codeOf(throttle.failures("k")), "unavailable");
      t.equal(await codeOf(throttle.addFailure("k", 1)), "unavailable");
    },
  );
});
