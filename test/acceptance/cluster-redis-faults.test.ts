// Messages, streams and commands on three nodes while one Redis server is restarted and the
// subscriber connections of the nodes are cut. JINDOU_FAULT_SECONDS sets the duration of each kind
// of fault, and JINDOU_TEST_SEED repeats the choice of faults.

import { setTimeout as pause } from "node:timers/promises";
import t from "tap";
import { Random } from "../support/random.ts";
import { startRedis } from "../support/redis.ts";
import { volume } from "../support/volume.ts";
import { ClusterWorld } from "./cluster-world.ts";

const SECONDS = volume(10, "JINDOU_FAULT_SECONDS");
const SEED = Number(process.env.JINDOU_TEST_SEED ?? Date.now() % 1_000_000);
const MAX_AWAY_MS = 600;
const MAX_BETWEEN_CUTS_MS = 150;

/**
 * Append-only file settings of Redis, each with the signals that may end Redis without losing an
 * acknowledged write. With `everysec` a crash may lose one second of writes, so only SIGTERM is
 * used.
 */
const RESTARTS = [
  { fsync: "always", signals: ["SIGKILL", "SIGTERM"] },
  { fsync: "everysec", signals: ["SIGTERM"] },
] as const;

t.test(
  "a restart of Redis with an append-only file neither loses nor duplicates a message, stream event or command",
  async (t) => {
    const { fsync, signals } = new Random(SEED).pick(RESTARTS);
    const redis = await startRedis(t, [...["--appendonly", "yes", "--appendfsync", fsync]]);
    const world = await ClusterWorld.open(t, { redisUrl: redis.url, seed: SEED });
    const restarts = await world.injectFaults(SECONDS, async () => {
      await redis.stop(world.random.pick(signals));
      await pause(world.random.below(MAX_AWAY_MS));
      await redis.restart();
      await pause(MAX_AWAY_MS);
    });
    t.comment(`Redis was restarted ${restarts} times with appendfsync ${fsync}`);
    await world.settle();
    await world.check(t);
  },
);

t.test(
  "no message, stream event or command is lost or duplicated when a subscriber connection breaks",
  async (t) => {
    const redis = await startRedis(t);
    const world = await ClusterWorld.open(t, { redisUrl: redis.url, seed: SEED });
    const client = redis.client();
    let cut = 0;
    await world.injectFaults(SECONDS, async () => {
      for (let times = world.random.below(4); times >= 0; times--) {
        cut += Number(await client.call("CLIENT", "KILL", "TYPE", "pubsub"));
        await pause(world.random.below(MAX_BETWEEN_CUTS_MS));
      }
    });
    t.ok(cut > 0, `${cut} subscriber connections were cut`);
    await world.settle();
    await world.check(t);
  },
);
