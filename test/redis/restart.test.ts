// The connection after a restart of Redis, which has forgotten all scripts.

import { setTimeout as pause } from "node:timers/promises";
import t from "tap";
import { RedisLink } from "../../src/redis/link.ts";
import { codeOf } from "../contract/store-fixture.ts";
import { redisSettings, startRedis } from "../support/redis.ts";

t.test("the first write after a restart of Redis succeeds", async (t) => {
  const redis = await startRedis(t);
  const link = new RedisLink(redisSettings(redis.url), {
    ...{ name: "test", maxClockAgeMs: 60_000, onError() {} },
  });
  t.teardown(() => link.close());
  await link.start();
  t.equal(await codeOf(link.write("set", "key", "1")), undefined, "the script is loaded");
  const lost = new Promise<void>((resolve) => link.onChange((isUp) => isUp || resolve()));
  await redis.stop();
  await lost;
  await redis.restart();
  while (!link.isUp) await pause(10);
  t.equal(await codeOf(link.write("set", "key", "2")), undefined, "the script is loaded again");
});
