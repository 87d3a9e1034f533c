// Failed logins counted in Redis: one count for all nodes, windows that go by the clock.

import t, { type Test } from "tap";
import { createRedisThrottle } from "../../../src/cluster/redis/throttle.ts";
import { RedisLink } from "../../../src/redis/link.ts";
import { codeOf } from "../../contract/store-fixture.ts";
import { redisSettings, startRedis } from "../../support/redis.ts";

const MINUTE_MS = 60_000;

t.test("throttle", async (t) => {
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

  t.test("nodes count together, each failure once", async (t) => {
    const [one, other] = [await node(t), await node(t)];
    t.same(await one.throttle.failures("k"), { count: 0, retryAfterS: 0 });
    await Promise.all(
      Array.from({ length: 20 }, (_, at) =>
        (at % 2 ? one : other).throttle.addFailure("k", MINUTE_MS),
      ),
    );
    const next = await other.throttle.addFailure("k1", MINUTE_MS);
    t.same(next, { count: 1, retryAfterS: 60 });
    t.same(await one.throttle.addFailure("k1", MINUTE_MS), {
      ...{ count: 2, retryAfterS: 60 },
    });
    for (const { throttle } of [one, other])
      t.same(await throttle.failures("k"), { count: 20, retryAfterS: 60 });
    t.equal((await one.throttle.failures("k2")).count, 0);
  });

  t.test("the first failure begins the window; then it is over", async (t) => {
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

  t.test("clearing forgets", async (t) => {
    const { throttle } = await node(t);
    await throttle.addFailure("c", MINUTE_MS);
    await throttle.clear("c");
    await throttle.clear("c");
    t.same(await throttle.failures("c"), { count: 0, retryAfterS: 0 });
  });

  t.test("what is buffered is small and ends by itself", async (t) => {
    const { throttle } = await node(t);
    const client = server.client();
    await client.flushall();
    await throttle.addFailure("x".repeat(100_000), MINUTE_MS);
    const [key = ""] = await client.keys("*");
    t.ok(key.length < 100, key);
    const leftMs = await client.pttl(key);
    t.ok(leftMs > MINUTE_MS && leftMs <= 2 * MINUTE_MS, `${leftMs} ms`);
  });

  t.test("after close calls are unavailable", async (t) => {
    const { link, throttle } = await node(t);
    await link.close();
    t.equal(await codeOf(throttle.failures("k")), "unavailable");
    t.equal(await codeOf(throttle.addFailure("k", 1)), "unavailable");
  });
});
