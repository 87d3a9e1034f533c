// How much processor time does a connect cost the server? All clients of one group connect at once:
// first to a server that has just started, and again after V8 has compiled the code. The processor
// time is that of all threads of the server, including the work after the last CONNACK. Every
// measurement starts a new server.

import { TOKEN } from "./support/backend.ts";
import type { Bench, Benchmark, Row, Sample, Subject } from "./support/benchmark.ts";
import { type Redis, startRedis } from "./support/clusters.ts";
import { waitUntilIdle } from "./support/cost.ts";
import { connectFrame, NATIVE_UPGRADE } from "./support/frames.ts";
import { compileLoad, LoadClient } from "./support/load.ts";
import { createMembers, MEMBER } from "./support/members.ts";
import { threadSeconds } from "./support/proc.ts";
import { callsOf } from "./support/redis-watch.ts";
import { alternate } from "./support/rounds.ts";
import { type Server, startBroker, startRaw } from "./support/servers.ts";
import { row } from "./support/stats.ts";

const CLIENTS = 4000;
/** Number of times that all clients connect before the code counts as compiled. */
const WARMUPS = 3;
/**
 * Maximum number of Redis calls for each connect: two scripts, and a share of the node's
 * heartbeats, which are also counted.
 */
const MAX_CALLS = 2.1;
const STORES = ["embedded", "Redis"] as const;
const GROUP = "all";

/** Processor times and calls for each connect. */
interface Costs {
  readonly freshUs: number;
  readonly warmUs: number;
  readonly redisUs: number;
  readonly redisCalls: number;
}

interface World {
  readonly server: Server;
  readonly redis: Redis | undefined;
  readonly load: LoadClient;
  readonly count: number;
}

export const connects: Benchmark = {
  name: "connects",
  question: "clients of one group that connect at once, up to 4,000",
  isPinned: true,

  async run(bench) {
    const load = new LoadClient(bench.workbench, await compileLoad());
    const rows: Row[] = [];
    for (const store of STORES) {
      const redis = store === "Redis" ? await startRedis(bench) : undefined;
      const [baseline, ours] = await alternate(bench, (subject) =>
        measure(bench, { load, subject, redis }),
      );
      const [{ kind }, broker] = bench.subjects;
      // The raw server does not use Redis.
      const isOnlyOurs = (key: keyof Costs) => kind === "raw" && key.startsWith("redis");
      const rowOf = (title: string, unit: string, key: keyof Costs, atMost?: number): Row =>
        row(
          {
            title: `${store}: ${title}`,
            unit,
            ...(atMost !== undefined && { target: { kind: "value", atMost } }),
          },
          isOnlyOurs(key) ? [broker, broker] : bench.subjects,
          [samplesOf(isOnlyOurs(key) ? ours : baseline, key), samplesOf(ours, key)],
        );
      const isRedis = store === "Redis";
      rows.push(
        rowOf("a connect after the start, the node", "µs", "freshUs", isRedis ? 300 : 250),
        rowOf("a connect when code is compiled, the node", "µs", "warmUs", isRedis ? 300 : 150),
      );
      if (isRedis)
        rows.push(
          rowOf("a connect, Redis", "µs", "redisUs"),
          rowOf("calls of Redis for a connect", "calls", "redisCalls", MAX_CALLS),
        );
    }
    return rows;
  },
};

function samplesOf(costs: readonly Costs[], key: keyof Costs): readonly Sample[] {
  return costs.map((cost) => ({ value: cost[key] }));
}

async function measure(
  bench: Bench,
  { load, subject, redis }: { load: LoadClient; subject: Subject; redis: Redis | undefined },
): Promise<Costs> {
  const count = Math.min(bench.plan.sessions, CLIENTS);
  const server = await start(bench, subject, redis);
  if (subject.kind === "broker") await createMembers(server, GROUP, count);
  const world: World = { server, redis: subject.kind === "raw" ? undefined : redis, load, count };
  const { us: freshUs } = await costOfConnects(world);
  for (let round = 0; round < WARMUPS; round++) await costOfConnects(world);
  const { us: warmUs, redisUs, redisCalls } = await costOfConnects(world);
  await server.stop();
  return { freshUs, warmUs, redisUs, redisCalls };
}

let starts = 0;

function start(bench: Bench, subject: Subject, redis: Redis | undefined): Promise<Server> {
  if (subject.kind === "raw") return startRaw(bench.workbench, "topics", new Uint8Array([0]));
  starts += 1;
  const prefix = `connects${starts}`;
  return startBroker(bench.workbench, subject, redis && { url: redis.url, prefix });
}

/**
 * Connects all clients, waits until the server has finished, and disconnects them. Returns the
 * mean costs of a connect.
 */
async function costOfConnects({ server, redis, load, count }: World) {
  await waitUntilIdle(server);
  const redisPid = redis?.processes[0]?.pid;
  const secondsOf = () => [
    threadSeconds(server.pid),
    redisPid === undefined ? 0 : threadSeconds(redisPid),
  ];
  const callsBefore = redis === undefined ? 0 : await callsOf(redis.url);
  const [nodeBefore = 0, redisBefore = 0] = secondsOf();
  const held = await load.hold({
    port: server.clientPort,
    connections: count,
    opening: { upgrade: NATIVE_UPGRADE, open: connectFrame(MEMBER, TOKEN) },
  });
  await waitUntilIdle(server);
  const [node = 0, redisAfter = 0] = secondsOf();
  const redisCalls = redis === undefined ? 0 : (await callsOf(redis.url)) - callsBefore;
  await held.release();
  const us = ((node - nodeBefore) * 1e6) / count;
  return {
    us,
    redisUs: ((redisAfter - redisBefore) * 1e6) / count,
    redisCalls: redisCalls / count,
  };
}
