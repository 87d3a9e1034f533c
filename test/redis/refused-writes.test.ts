// A node whose Redis can be reached but rejects writes. The operator sees Redis' reason.

import { setTimeout as pause } from "node:timers/promises";
import t from "tap";
import { spawnBroker } from "../support/broker.ts";
import { startRedis } from "../support/redis.ts";

const REFUSALS = [
  {
    name: "maxmemory",
    refusing: "1mb",
    accepting: "0",
    reason: "Redis has used all the memory that its maxmemory allows, so it rejects writes (OOM",
  },
  {
    name: "min-replicas-to-write",
    refusing: "1",
    accepting: "0",
    reason:
      "Redis has fewer replicas than its min-replicas-to-write requires, so it rejects writes (NOREPLICAS",
  },
];

t.test(
  "the log and /readyz of a node contain the reason why Redis refuses its writes",
  async (t) => {
    const redis = await startRedis(t);
    const client = redis.client();
    const broker = await spawnBroker(t, {
      JINDOU_REDIS_URL: redis.url,
      JINDOU_LOG_LEVEL: "info",
      JINDOU_CLUSTER_DEAD_AFTER_MS: "500",
    });
    let ended = 0;
    for (const { name, refusing, accepting, reason } of REFUSALS) {
      await client.call("CONFIG", "SET", name, refusing);
      let error = "";
      while (!error.includes("rejected the heartbeats")) {
        await pause(50);
        error = String((await broker.call("/readyz")).body.error);
      }
      t.ok(error.includes(`ms: ${reason}`), error);
      t.notMatch(error, "script:");
      await client.call("CONFIG", "SET", name, accepting);
      while ((await broker.call("/readyz")).status !== 200) await pause(50);
      ended += 1;
      while (broker.output().split("Redis can be used again").length <= ended) await pause(50);
    }
    const lines = broker.output().split("\n");
    for (const { reason } of REFUSALS)
      t.ok(lines.some((line) => line.includes(`"reason":"${reason}`)));
  },
);
