// How much processor time does an idle node need? All nodes are measured at the same time, because
// an idle node does not disturb the others.

import { setTimeout as pause } from "node:timers/promises";
import type { Bench, Benchmark, Row, Sample, Subject } from "./support/benchmark.ts";
import { type Redis, startRedis } from "./support/clusters.ts";
import { threadSeconds } from "./support/proc.ts";
import { type Server, startBroker, startRaw } from "./support/servers.ts";
import { row } from "./support/stats.ts";

const SECONDS = 60;
/** Time for the work after a start, such as the compilation of hot functions. */
const SETTLE_SECONDS = 30;
const STORES = ["embedded", "Redis"] as const;
type Store = (typeof STORES)[number];

export const idle: Benchmark = {
  name: "idle",
  question: "a node without clients, during a minute",

  async run(bench) {
    const redis = await startRedis(bench);
    const pairs = await Promise.all(STORES.map((store) => startPair(bench, store, redis)));
    const samples = pairs.map((): [Sample[], Sample[]] => [[], []]);
    await pause((bench.plan.isQuick ? 0 : SETTLE_SECONDS) * 1000);
    for (let round = 0; round < bench.plan.rounds; round++) {
      const usages = await Promise.all(pairs.map((pair) => measure(bench, pair)));
      for (const [at, [baseline, ours]] of usages.entries()) {
        samples[at]?.[0].push({ value: baseline });
        samples[at]?.[1].push({ value: ours });
      }
    }
    for (const server of pairs.flat()) await server.stop();
    return STORES.map((store, at): Row => {
      const title = `${store}: processor time of all threads`;
      const target = { kind: "value", atMost: 0.3 } as const;
      const question = { title, unit: "% of a core", target };
      return row(question, bench.subjects, samples[at] ?? [[], []]);
    });
  },
};

type Pair = readonly [Server, Server];

async function startPair(bench: Bench, store: Store, redis: Redis): Promise<Pair> {
  const [baseline, ours] = bench.subjects;
  return [await start(bench, baseline, store, redis), await start(bench, ours, store, redis)];
}

function start(bench: Bench, subject: Subject, store: Store, redis: Redis): Promise<Server> {
  if (subject.kind === "raw") return startRaw(bench.workbench, "topics", new Uint8Array());
  const prefix = `idle${bench.subjects.indexOf(subject)}`;
  const link = store === "Redis" ? { url: redis.url, prefix } : undefined;
  return startBroker(bench.workbench, subject, link);
}

/** Returns the processor time of each server, as a percentage of one core. */
async function measure({ plan }: Bench, servers: Pair): Promise<readonly [number, number]> {
  const startMs = performance.now();
  const before = servers.map(({ pid }) => threadSeconds(pid));
  await pause((plan.isQuick ? plan.seconds : SECONDS) * 1000);
  const seconds = (performance.now() - startMs) / 1000;
  const share = (at: 0 | 1) =>
    ((threadSeconds(servers[at].pid) - (before[at] ?? 0)) / seconds) * 100;
  return [share(0), share(1)];
}
