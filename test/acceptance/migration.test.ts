// Moves the data of an embedded node into Redis while the moving node is killed three times.
// Afterwards all data is in Redis, and /migrate/result was correct at all times.
// JINDOU_MIGRATE_MESSAGES sets the number of messages.

import { setTimeout as pause } from "node:timers/promises";
import t, { type Test } from "tap";
import { WebSocket } from "ws";
import { redisStore } from "../migrate/mover.ts";
import { openStore, testFolder } from "../store/embedded/folder.ts";
import { type Broker, launchBroker } from "../support/broker.ts";
import { redisSettings, startRedis } from "../support/redis.ts";
import { volume } from "../support/volume.ts";
import { checksums, fillLarge, type Size } from "./migration-data.ts";

const SIZE: Size = {
  messages: volume(100_000, "JINDOU_MIGRATE_MESSAGES"),
  channels: volume(1000),
  users: volume(5000),
};
/**
 * Steps of the migration in which the node is killed, and the fraction of messages that is moved by
 * then.
 */
const KILLS = [
  ["message", 0.1],
  ["message", 0.5],
  ["verify", 0],
] as const;
const STEPS = ["", "user", "channel", "message", "verify"];
const RUNNING = { status: "running", last_err: null };
const POLL_MS = 10;
const RECONNECT_LATER = 4102;

t.test(
  `the move of ${SIZE.messages} messages to Redis completes even if the node is killed three times`,
  { timeout: 900_000 },
  async (t) => {
    const from = testFolder(t);
    const source = await openStore(t, from);
    await timed(t, "filling", () => fillLarge(source, SIZE));
    const before = await timed(t, "reading the folder", () => checksums(source, SIZE));
    await source.close();

    const redis = await startRedis(t);
    const settings = {
      ...{ JINDOU_REDIS_URL: redis.url, JINDOU_MIGRATE_FROM: from },
    };
    const redisClient = redis.client();
    const progress = async () => {
      const [step = "", rows] = await redisClient.hmget(
        ...(["jd:{all}:migration", "step", "rows"] as const),
      );
      return { step: step ?? "", rows: Number(rows) };
    };
    for (const [index, [step, share]] of KILLS.entries()) {
      const startMs = performance.now();
      const launched = await launchBroker(t, settings);
      const node = await launched.ready();
      let result = await resultOf(node);
      if (index === 0) await assertUnavailable(t, node);
      for (;;) {
        const position = await progress();
        if (position.step === step && position.rows >= share * SIZE.messages) break;
        result = await resultOf(node);
        if (result.status !== "running") break;
        await pause(POLL_MS);
      }
      result = await resultOf(node);
      t.match(result, { ...RUNNING, try_count: index + 1 });
      t.ok(
        STEPS.indexOf(result.step) >= STEPS.indexOf(step),
        `the reported step is ${result.step}`,
      ); // the move continues in the meantime
      const { rows } = await progress();
      t.comment(
        `the node was killed in step ${step} at row ${rows}, ${seconds(startMs)} s after its start`,
      );
      await launched.kill();
    }

    const last = await launchBroker(t, settings);
    const node = await last.ready();
    const steps = await timed(t, "the remaining move", () => untilDone(t, node));
    t.ok(steps.size > 0, "the last start continues the move");
    t.same(await resultOf(node), {
      ...{ status: "completed", step: "verify" },
      ...{ last_err: null, try_count: KILLS.length + 1 },
    });
    while ((await node.call("/readyz")).status !== 200) await pause(POLL_MS);
    t.equal((await node.call("/user/onlinestatus", ["a"])).status, 200);
    await last.stop("SIGTERM");

    const store = await redisStore(t, redisSettings(redis.url, { timeoutMs: 60_000 }), Date.now);
    const after = await timed(t, "reading Redis", () => checksums(store, SIZE));
    const differing = [...before].filter(([name, sum]) => after.get(name) !== sum);
    t.same(differing.slice(0, 3), [], "both stores contain the same data");
    t.equal(after.size, before.size);

    const lastStart = await launchBroker(t, settings);
    const restarted = await lastStart.ready();
    t.match(await resultOf(restarted), { status: "migrated", last_err: null });
  },
);

/** Asserts which calls a node answers before its data has been moved. */
async function assertUnavailable(t: Test, node: Broker): Promise<void> {
  t.equal((await node.call("/healthz")).status, 200);
  t.equal((await node.call("/metrics")).status, 200);
  t.equal((await node.call("/readyz")).status, 503);
  const refused = await node.call("/user/onlinestatus", ["a"]);
  t.equal(refused.status, 503);
  t.ok(Number(refused.headers.get("retry-after")) > 0);
  const socket = new WebSocket(`ws://127.0.0.1:${node.clientPort}`);
  const code = await new Promise((resolve) => socket.once("close", resolve));
  t.equal(code, RECONNECT_LATER);
}

/** Waits until the move is done. Returns the steps that were reported. */
async function untilDone(t: Test, node: Broker): Promise<ReadonlySet<string>> {
  const steps = new Set<string>();
  for (;;) {
    const result = await resultOf(node);
    if (result.status !== "running") return steps;
    steps.add(result.step);
    if (!STEPS.includes(result.step) || result.last_err !== null)
      t.fail(`the result is wrong: ${JSON.stringify(result)}`);
    await pause(POLL_MS);
  }
}

interface Result {
  readonly status: string;
  readonly step: string;
  readonly last_err: string | null;
  readonly try_count: number;
}

async function resultOf(node: Broker): Promise<Result> {
  return (await node.call("/migrate/result")).body;
}

async function timed<T>(t: Test, activity: string, run: () => Promise<T>): Promise<T> {
  const startMs = performance.now();
  const value = await run();
  t.comment(`${activity}: ${seconds(startMs)} s`);
  return value;
}

function seconds(sinceMs: number): string {
  return ((performance.now() - sinceMs) / 1000).toFixed(1);
}
