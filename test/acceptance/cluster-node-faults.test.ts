// Messages, streams and commands on three nodes while nodes are killed and frozen.
// JINDOU_FAULT_SECONDS sets the duration of each kind of fault (raise tap's --timeout with it), and
// JINDOU_TEST_SEED repeats the choice of faults.

import { setTimeout as pause } from "node:timers/promises";
import t from "tap";
import { startRedis } from "../support/redis.ts";
import { volume } from "../support/volume.ts";
import { DEAD_AFTER_MS } from "./cluster-nodes.ts";
import { ClusterWorld } from "./cluster-world.ts";

const SECONDS = volume(10, "JINDOU_FAULT_SECONDS");
const SEED = Number(process.env.JINDOU_TEST_SEED ?? Date.now() % 1_000_000);

t.test(
  "kills and restarts of nodes neither lose nor duplicate a message, stream event or command",
  async (t) => {
    const { url } = await startRedis(t);
    const world = await ClusterWorld.open(t, { redisUrl: url, seed: SEED });
    const { nodes, random } = world;
    const kills = await world.injectFaults(SECONDS, async () => {
      const first = random.below(nodes.count);
      const second = (first + 1) % nodes.count;
      const dead = random.below(4) === 0 ? [first, second] : [first];
      await Promise.all(dead.map((at) => nodes.kill(at)));
      await pause(random.below(2) * random.below(2 * DEAD_AFTER_MS));
      await Promise.all(dead.map((at) => nodes.start(at)));
    });
    t.comment(`nodes were killed ${kills} times`);
    await world.settle();
    await world.check(t);
  },
);

t.test(
  "a node that freezes until it counts as dead and later resumes neither loses nor duplicates a message, stream event or command",
  async (t) => {
    const { url } = await startRedis(t);
    const world = await ClusterWorld.open(t, { redisUrl: url, seed: SEED });
    const { nodes, random } = world;
    const stops = await world.injectFaults(SECONDS, async () => {
      const at = random.below(nodes.count);
      nodes.signal(at, "SIGSTOP");
      await pause(2 * DEAD_AFTER_MS);
      nodes.signal(at, "SIGCONT");
    });
    t.comment(`a node was frozen ${stops} times`);
    await world.settle();
    await world.check(t);
  },
);
