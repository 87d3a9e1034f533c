// Messages, streams and commands on three nodes and a Redis Cluster whose primaries are killed.
// With `redis.minReplicas` = 1 no acknowledged message may be missing. With 0, asynchronous
// replication may lose messages, and the test prints how many it lost. JINDOU_FAULT_SECONDS sets
// the duration, and JINDOU_TEST_SEED repeats a run.

import t, { type Test } from "tap";
import { startRedisCluster } from "../support/redis.ts";
import { volume } from "../support/volume.ts";
import { Failovers } from "./cluster-failover.ts";
import { type Losses, lossesOf } from "./cluster-losses.ts";
import { ClusterWorld } from "./cluster-world.ts";

const SECONDS = volume(10, "JINDOU_FAULT_SECONDS");
const SEED = Number(process.env.JINDOU_TEST_SEED ?? Date.now() % 1_000_000);

async function failOver(
  t: Test,
  minReplicas: number,
): Promise<{ readonly world: ClusterWorld; readonly losses: Losses }> {
  const servers = await startRedisCluster(t, { replicas: true });
  const world = await ClusterWorld.open(t, {
    ...{ redisUrl: servers.url, seed: SEED + minReplicas, keepsConnections: true },
    settings: { JINDOU_REDIS_MIN_REPLICAS: String(minReplicas) },
    hasOnlyMessages: minReplicas === 0,
  });
  const failovers = new Failovers(servers, world.random);
  const seconds = minReplicas === 0 ? SECONDS / 2 : SECONDS;
  await world.injectFaults(seconds, () => failovers.failOver());
  t.comment(
    `replicas took over after ${failovers.tookMs.join(", ")} ms, ${failovers.laggingReplicas} of them lagged`,
  );
  await world.settle();
  const histories = await world.histories();
  await Promise.all(world.readers.map((reader) => reader.shownAll(histories)));
  const shown = world.readers.flatMap((reader) => reader.shown());
  const losses = lossesOf({ acks: world.acks, histories, shown });
  const { acks } = world;
  t.comment(
    `${losses.lost.length} of ${acks.length} acknowledged messages are lost, ${losses.retracted} messages that were shown are not in history`,
  );
  return { world, losses };
}

t.test("a fail-over loses no acknowledged message if redis.minReplicas is 1", async (t) => {
  const { world, losses } = await failOver(t, 1);
  t.same(losses.lost.slice(0, 10), []);
  t.same(losses.errors.slice(0, 10), []);
  await world.checkRest(t);
});

t.test(
  "a fail-over with asynchronous replication neither duplicates nor reorders messages",
  async (t) => {
    const { losses } = await failOver(t, 0);
    t.same(losses.errors.slice(0, 10), []);
  },
);
