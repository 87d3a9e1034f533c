// Running nodes whose Redis loses all data.

import { setTimeout as pause } from "node:timers/promises";
import t from "tap";
import { spawnBroker } from "../support/broker.ts";
import { startRedis } from "../support/redis.ts";

t.test(
  "each running node logs and counts the loss of data when its Redis is emptied",
  async (t) => {
    const redis = await startRedis(t);
    const settings = { JINDOU_REDIS_URL: redis.url, JINDOU_LOG_LEVEL: "info" };
    const nodes = await Promise.all([spawnBroker(t, settings), spawnBroker(t, settings)]);
    const losses = [
      () => redis.client().call("FLUSHALL"),
      () => redis.restart(), // without persistence
    ];
    for (const [at, lose] of losses.entries()) {
      await lose();
      for (const node of nodes) {
        const metric = `jindou_redis_data_lost_total ${at + 1}\n`;
        while (!String((await node.call("/metrics")).body).includes(metric)) await pause(50);
        while ((await node.call("/readyz")).status !== 200) await pause(50);
        const lines = node.output().split("\n");
        const reported = lines.filter((line) => line.includes('"msg":"Redis lost its data"'));
        t.equal(reported.length, at + 1);
        t.match(reported[at], /"level":"error".*was emptied while this node was running/);
      }
    }
  },
);
