// A random sequence of faults of every kind under a load of every kind: messages, streams,
// commands, memberships, tokens and logins. Afterwards nothing that was acknowledged is lost,
// duplicated, reordered or undone, and every user can log in. JINDOU_TEST_FAULTS sets the number of
// faults, and JINDOU_TEST_SEED repeats their choice.

import { setTimeout as pause } from "node:timers/promises";
import t, { type Test } from "tap";
import { spawnBroker } from "../support/broker.ts";
import { Random } from "../support/random.ts";
import { startRedis } from "../support/redis.ts";
import { mountSmallDisk } from "../support/small-disk.ts";
import { startStallingProxy } from "../support/stalling-proxy.ts";
import { volume } from "../support/volume.ts";
import { type ClusterNodes, DEAD_AFTER_MS } from "./cluster-nodes.ts";
import { ClusterWorld } from "./cluster-world.ts";
import { STATIC_TOKEN } from "./crash-names.ts";
import { FaultControl } from "./fault-control.ts";

const FAULTS = volume(40, "JINDOU_TEST_FAULTS");
const SEED = Number(process.env.JINDOU_TEST_SEED ?? Date.now() % 1_000_000);
/**
 * Time after which a call without a reply can no longer run. It is longer than the nodes'
 * `redis.timeoutMs`, after which Redis rejects a node's command as too late.
 */
const SETTLED_MS = 2500;
const MAX_HANG_MS = 2500;
const MAX_STALL_MS = 4000;
const MAX_FULL_MS = 1500;
const MAX_AWAY_MS = 600;
const MAX_BETWEEN_MS = 1000;
const DISK_MIB = 64;
const MAX_STEPPED_MS = 400;
/**
 * Offsets of a clock from the real time, in either direction. Twice the largest offset is less than
 * `store.dedupeWindowS`, after which the embedded store no longer recognises a retry.
 */
const STEPS_MS = [30, 900, 5000, 120_000, 3_600_000, 36_000_000];
/** The node whose connections to Redis go through the proxy. */
const PARTITIONED = 0;

t.setTimeout(300_000 + FAULTS * 60_000);

type Faults = Readonly<Record<string, () => Promise<void>>>;

/**
 * Injects the faults in a random order. Each kind is used once before any kind is used again, so
 * that even a short run covers all kinds.
 */
async function inject(t: Test, random: Random, faults: Faults): Promise<void> {
  const counts = new Map<string, number>();
  let deck: string[] = [];
  for (let count = 0; count < FAULTS; count++) {
    if (deck.length === 0) deck = Object.keys(faults);
    const [name = ""] = deck.splice(random.below(deck.length), 1);
    await faults[name]?.();
    counts.set(name, (counts.get(name) ?? 0) + 1);
    await pause(random.below(MAX_BETWEEN_MS));
  }
  t.comment(`faults: ${JSON.stringify(Object.fromEntries(counts))}`);
}

/**
 * Sets the clock of a node ahead of the real time and then behind it, or the other way round. Each
 * offset stays until the next step.
 */
async function setClock(nodes: ClusterNodes, at: number, random: Random): Promise<void> {
  const sign = random.flip() ? 1 : -1;
  await nodes.setClock(at, sign * random.pick(STEPS_MS));
  await pause(random.below(MAX_STEPPED_MS));
  await nodes.setClock(at, -sign * random.pick(STEPS_MS));
}

/** Runs the faults under load, and checks everything except the tokens. */
async function runUnderFaults(
  t: Test,
  { world, settledMs }: { readonly world: ClusterWorld; readonly settledMs: number },
  faults: Faults,
): Promise<FaultControl> {
  const random = new Random(SEED + 4);
  const control = new FaultControl(world.nodes, { random, settledMs });
  t.teardown(() => control.close());
  await control.start();
  await inject(t, world.random, faults);
  await control.stop();
  await world.settle();
  await world.check(t);
  await control.check();
  t.comment(`changes: ${JSON.stringify(control.counts)}`);
  return control;
}

t.test(
  "three nodes neither lose nor undo an acknowledged change during random faults of nodes, clocks and Redis",
  async (t) => {
    const redis = await startRedis(t, ["--appendonly", "yes", "--appendfsync", "always"]);
    const proxy = await startStallingProxy(t, redis.port);
    const firstRedisUrl = `redis://127.0.0.1:${proxy.port}`;
    const world = await ClusterWorld.open(t, {
      ...{ redisUrl: redis.url, seed: SEED, nodes: { firstRedisUrl, hasOwnClocks: true } },
    });
    const { nodes, random } = world;
    const control = await runUnderFaults(
      t,
      { world, settledMs: SETTLED_MS },
      {
        async "a node is killed"() {
          const at = random.below(nodes.count);
          await nodes.kill(at);
          await pause(random.below(2 * DEAD_AFTER_MS));
          await nodes.start(at);
        },
        async "a node is frozen"() {
          const at = random.below(nodes.count);
          nodes.signal(at, "SIGSTOP");
          await pause(random.below(3 * DEAD_AFTER_MS));
          nodes.signal(at, "SIGCONT");
        },
        async "a node is restarted"() {
          const at = random.below(nodes.count);
          t.equal(await nodes.terminate(at), 0, "the node ends without an error");
          await nodes.start(at);
        },
        "the clock of a node is set": () => setClock(nodes, random.below(nodes.count), random),
        async "Redis hangs"() {
          redis.signal("SIGSTOP");
          await pause(random.below(MAX_HANG_MS));
          redis.signal("SIGCONT");
        },
        async "Redis is restarted"() {
          await redis.stop(random.pick(["SIGKILL", "SIGTERM"]));
          await pause(random.below(MAX_AWAY_MS));
          await redis.restart();
        },
        async "a node is partitioned"() {
          proxy.stall();
          await pause(random.below(MAX_STALL_MS));
          proxy.resume();
        },
        async "a node is killed while another one is partitioned"() {
          proxy.stall();
          const at = PARTITIONED + 1 + random.below(nodes.count - 1);
          await nodes.kill(at);
          await pause(random.below(2 * DEAD_AFTER_MS));
          proxy.resume();
          await nodes.start(at);
        },
      },
    );
    const guarded = await spawnBroker(t, {
      ...{ JINDOU_REDIS_URL: redis.url, JINDOU_AUTH_CLIENTS: "token" },
      ...{ JINDOU_API_TOKEN: STATIC_TOKEN, JINDOU_CLUSTER_ACCEPT_NEW_TIMINGS: "true" },
    });
    await control.checkTokens(guarded.clientPort);
    t.same(control.problems, [], "no acknowledged membership, token or login was undone");
  },
);

t.test(
  "one node neither loses nor undoes an acknowledged change during random faults of the node, its clock and its disk",
  async (t) => {
    const disk = await mountSmallDisk(t, DISK_MIB);
    const world = await ClusterWorld.open(t, {
      ...{ redisUrl: "", seed: SEED },
      nodes: {
        ...{ count: 1, dataPath: `${disk.path}/data`, launch: { prefix: disk.prefix } },
        hasOwnClocks: true,
      },
    });
    const { nodes, random } = world;
    /** Starts the node. The disk is freed if the start needs space. */
    const start = async (settings = {}) => {
      await nodes.start(0, settings).catch(async (error: unknown) => {
        if (!/disk|space/i.test(`${error}`)) throw error;
        disk.free();
        await nodes.start(0, settings);
      });
    };
    const restart = async () => {
      t.equal(await nodes.terminate(0), 0, "the node ends without an error");
      await start();
    };
    const control = await runUnderFaults(
      t,
      { world, settledMs: 0 },
      {
        async "the node is killed"() {
          await nodes.kill(0);
          await start();
        },
        "the node is restarted": restart,
        "the clock is set": () => setClock(nodes, 0, random),
        async "the node is killed and starts with another time"() {
          await setClock(nodes, 0, random);
          await nodes.kill(0);
          await start();
        },
        async "the node is frozen"() {
          nodes.signal(0, "SIGSTOP");
          await pause(random.below(3 * DEAD_AFTER_MS));
          nodes.signal(0, "SIGCONT");
        },
        async "the disk is full"() {
          disk.fill();
          await pause(random.below(MAX_FULL_MS));
          disk.free();
        },
        async "the node is killed while the disk is full"() {
          disk.fill();
          await pause(random.below(MAX_FULL_MS));
          await nodes.kill(0);
          await start();
          disk.free();
        },
        async "the node is restarted while the disk is full"() {
          disk.fill();
          await pause(random.below(MAX_FULL_MS));
          await restart();
          disk.free();
        },
      },
    );
    t.equal(await nodes.terminate(0), 0, "the node ends without an error");
    await world.close();
    await start({ JINDOU_AUTH_CLIENTS: "token" });
    await control.checkTokens(nodes.clientPortOf(0));
    t.same(control.problems, [], "no acknowledged membership, token or login was undone");
  },
);
