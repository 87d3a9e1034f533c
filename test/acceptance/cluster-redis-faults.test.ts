// Issue 4, line 2, Redis' part: messages, streams and commands over three nodes while one Redis
// server is restarted and the nodes' subscriber connections are cut. JINDOU_FAULT_SECONDS sets how
// long each kind of fault goes on, JINDOU_TEST_SEED repeats the choice of faults.

import { setTimeout as pause } from "node:timers/promises";
import t from "tap";
import { Random } from "../support/random.ts";
import { startRedis } from "../support/redis.ts";
import { volume } from "../support/volume.ts";
import { ClusterWorld } from "./cluster-world.ts";

const SECONDS = volume(10, "JINDOU_FAULT_SECONDS");
const SEED = Number(process.env.JINDOU_TEST_SEED ?? Date.now() % 1_000_000);
const MOST_AWAY_MS = 600;
const MOST_BETWEEN_CUTS_MS = 150;

/**
 * What its append-only file promises, and the ends it may come to by that promise: a crash may cost
 * a second of `everysec`.
 */
const RESTARTS = [
  { fsync: "always", ends: ["SIGKILL", "SIGTERM"] },
  { fsync: "everysec", ends: ["SIGTERM"] },
] as const;

t.test("restarts of Redis lose and double nothing", async (t) => {
  const { fsync, ends } = new Random(SEED).pick(RESTARTS);
  const redis = await startRedis(t, [...["--appendonly", "yes", "--appendfsync", fsync]]);
  const world = await ClusterWorld.open(t, { redisUrl: redis.url, seed: SEED });
  const restarts = await world.suffer(SECONDS, async () => {
    await redis.stop(world.random.pick(ends));
    await pause(world.random.below(MOST_AWAY_MS));
    await redis.restart();
    await pause(MOST_AWAY_MS);
  });
  t.comment(`${restarts} times, appendfsync ${fsync}`);
  await world.settle();
  await world.judge(t);
});

t.test("cut subscriber connections lose and double nothing", async (t) => {
  const redis = await startRedis(t);
  const world = await ClusterWorld.open(t, { redisUrl: redis.url, seed: SEED });
  const client = redis.client();
  let cut = 0;
  await world.suffer(SECONDS, async () => {
    for (let times = world.random.below(4); times >= 0; times--) {
      cut += Number(await client.call("CLIENT", "KILL", "TYPE", "pubsub"));
      await pause(world.random.below(MOST_BETWEEN_CUTS_MS));
    }
  });
  t.ok(cut > 0, `${cut} connections were cut`);
  await world.settle();
  await world.judge(t);
});
