// Issue 4, line 2, fail-overs: messages, streams and commands over three nodes on a Redis Cluster
// whose primaries are killed. With redis.minReplicas = 1 nothing acknowledged is missing; without,
// what asynchronous replication cost is told. JINDOU_FAULT_SECONDS, JINDOU_TEST_SEED as in the
// others.

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
    ...{ redisUrl: servers.url, seed: SEED + minReplicas, isSteady: true },
    settings: { JINDOU_REDIS_MIN_REPLICAS: String(minReplicas) },
    hasOnlyMessages: minReplicas === 0,
  });
  const failovers = new Failovers(servers, world.random);
  const seconds = minReplicas === 0 ? SECONDS / 2 : SECONDS;
  await world.suffer(seconds, () => failovers.once());
  t.comment(
    `replicas took over after ${failovers.tookMs.join(", ")} ms, ${failovers.cutOff} of them behind`,
  );
  await world.settle();
  const histories = await world.histories();
  await Promise.all(world.readers.map((reader) => reader.shownAll(histories)));
  const shown = world.readers.flatMap((reader) => reader.shown());
  const losses = lossesOf({ acks: world.acks, histories, shown });
  const { acks } = world;
  t.comment(
    `${losses.lost.length} of ${acks.length} acknowledged are lost, ${losses.takenBack} times a message was shown that is not in history`,
  );
  return { world, losses };
}

t.test("with redis.minReplicas = 1 fail-overs lose nothing that was acknowledged", async (t) => {
  const { world, losses } = await failOver(t, 1);
  t.same(losses.lost.slice(0, 10), []);
  t.same(losses.wrong.slice(0, 10), []);
  await world.judgeRest(t);
});

t.test("with asynchronous replication fail-overs double and disorder nothing", async (t) => {
  const { losses } = await failOver(t, 0);
  t.same(losses.wrong.slice(0, 10), []);
});
