// How much memory and processor time do idle sessions need, and how fast can they connect? Opens
// 4,000 authenticated sessions and then the remaining ones of the plan (10,000 in total by
// default). Each user is a member of two of 20 groups. The raw server has the same number of
// sockets, with two topics each. Memory is the resident set of the server process, read when the
// set no longer changes. Every measurement starts a new server, because a process does not return
// all freed memory to the system.

import { setTimeout as pause } from "node:timers/promises";
import { Backend, TOKEN } from "./support/backend.ts";
import type { Bench, Benchmark, Row, Sample, Subject, Target } from "./support/benchmark.ts";
import { type Redis, startRedis } from "./support/clusters.ts";
import {
  CONNECTION_NUMBER,
  connectFrame,
  connectionNumber,
  NATIVE_UPGRADE,
} from "./support/frames.ts";
import { compileLoad, LoadClient, type Opening } from "./support/load.ts";
import { residentBytes, threadSeconds } from "./support/proc.ts";
import { alternate } from "./support/rounds.ts";
import { type Server, startBroker, startRaw } from "./support/servers.ts";
import { row } from "./support/stats.ts";

const USER = `user${CONNECTION_NUMBER}`;
const GROUPS_OF_A_KIND = 10;
/** Number of sessions after which the memory per session is measured for the first time. */
const FEW_SESSIONS = 4000;
const REST_STEP_MS = 500;
/** Relative change in memory per step below which the process counts as idle. */
const REST_CHANGE = 0.002;
const REST_STEPS_MAX = 12;
const IDLE_SECONDS = 10;
/**
 * Polling interval of src/console/overview.tsx, and the shorter interval that is used for the
 * measurement. At the console's interval, the cost of the polls is smaller than the noise of the
 * measured processor time.
 */
const CONSOLE_POLL_S = 5;
const MEASURED_POLL_S = 1;
/** Calls of a poll of src/console/overview.tsx. */
const CONSOLE_CALLS = [
  "/metrics",
  "/cluster/nodes",
  "/admin/errors",
  "/connz?state=closed&limit=8",
] as const;
const CONSOLE_POLLS = 10;
const STORES = ["embedded", "Redis"] as const;

interface Contender {
  readonly server: Server;
  readonly opening: Opening;
}

interface Costs {
  /** Memory per session with `FEW_SESSIONS` sessions. */
  readonly fewBytes: Sample;
  readonly bytes: Sample;
  readonly rate: Sample;
  readonly idlePercent: Sample;
  /**
   * Additional share of a core while one console page shows the overview. 0 for the raw server,
   * which has no console.
   */
  readonly consolePercent: Sample;
}

export const connections: Benchmark = {
  name: "connections",
  question: "idle sessions in two groups each, 10,000 by default",
  isPinned: true,

  async run(bench) {
    const load = new LoadClient(bench.workbench, await compileLoad());
    const rows: Row[] = [];
    for (const store of STORES) {
      const redis = store === "Redis" ? await startRedis(bench) : undefined;
      const [baseline, ours] = await alternate(bench, (subject) =>
        measure(bench, { load, subject, redis }),
      );
      const rowOf = (title: string, unit: string, key: keyof Costs, target?: Target): Row =>
        row({ title: `${store}: ${title}`, unit, ...(target && { target }) }, bench.subjects, [
          baseline.map((costs) => costs[key]),
          ours.map((costs) => costs[key]),
        ]);
      const all = bench.plan.sessions;
      const few = Math.min(FEW_SESSIONS, all);
      const memory: Target = { kind: "value", atMost: 5000 };
      rows.push(
        rowOf(`memory of each of ${few} sessions`, "bytes", "fewBytes", memory),
        rowOf(`memory of each of ${all} sessions`, "bytes", "bytes", memory),
        rowOf("connect rate", "sessions/s", "rate"),
        rowOf(`processor time of ${all} idle sessions`, "% of a core", "idlePercent", {
          kind: "value",
          atMost: 1,
        }),
        rowOf(`an open console beside ${all} sessions`, "% of a core", "consolePercent", {
          kind: "value",
          atMost: 1,
        }),
      );
    }
    return rows;
  },
};

async function measure(
  bench: Bench,
  { load, subject, redis }: { load: LoadClient; subject: Subject; redis: Redis | undefined },
): Promise<Costs> {
  const { sessions: count, isQuick, seconds } = bench.plan;
  const { server, opening } = await start(bench, subject, redis);
  const port = server.clientPort;
  const hold = (connections: number, first = 0) => load.hold({ port, connections, first, opening });
  const warmup = await hold(Math.ceil(count / 10));
  await warmup.release();
  const before = await restingBytes(server.pid);
  const few = Math.min(FEW_SESSIONS, Math.ceil(count / 2));
  const fewConnections = await hold(few);
  const withFew = await restingBytes(server.pid);
  const otherConnections = await hold(count - few, few);
  const after = await restingBytes(server.pid);
  const idlePercent = await busyShare(server, isQuick ? seconds : IDLE_SECONDS);
  const consolePercent =
    subject.kind === "raw"
      ? 0
      : await consoleShare(server, { polls: isQuick ? 1 : CONSOLE_POLLS, idlePercent });
  await fewConnections.release();
  await otherConnections.release();
  await server.stop();
  const connectSeconds = fewConnections.connectSeconds + otherConnections.connectSeconds;
  return {
    fewBytes: { value: (withFew - before) / few },
    bytes: { value: (after - before) / count },
    rate: { value: count / connectSeconds },
    idlePercent: { value: idlePercent },
    consolePercent: { value: consolePercent },
  };
}

let starts = 0;

async function start(
  { workbench, plan }: Bench,
  subject: Subject,
  redis: Redis | undefined,
): Promise<Contender> {
  if (subject.kind === "raw") {
    const server = await startRaw(workbench, "topics", new Uint8Array());
    return { server, opening: { upgrade: NATIVE_UPGRADE } };
  }
  starts += 1;
  const prefix = `connections${starts}`;
  const server = await startBroker(workbench, subject, redis && { url: redis.url, prefix });
  const uids = Array.from({ length: plan.sessions }, (_, at) =>
    USER.replace(CONNECTION_NUMBER, connectionNumber(at)),
  );
  const backend = new Backend(server.apiPort);
  await backend.registerUsers(uids);
  for (let group = 0; group < GROUPS_OF_A_KIND; group++) {
    await backend.createGroup(
      `a${group}`,
      uids.filter((_, at) => at % 10 === group),
    );
    await backend.createGroup(
      `b${group}`,
      uids.filter((_, at) => Math.floor(at / 10) % 10 === group),
    );
  }
  backend.close();
  return {
    server,
    opening: { upgrade: NATIVE_UPGRADE, open: connectFrame(USER, TOKEN) },
  };
}

/** Waits until the resident set hardly changes, for at most six seconds, and returns its size. */
async function restingBytes(pid: number): Promise<number> {
  let last = residentBytes(pid);
  for (let step = 0; step < REST_STEPS_MAX; step++) {
    await pause(REST_STEP_MS);
    const now = residentBytes(pid);
    const isAtRest = Math.abs(now - last) <= now * REST_CHANGE;
    last = now;
    if (isAtRest) break;
  }
  return last;
}

/** Returns the processor time of all the server's threads, as a percentage of one core. */
async function busyShare({ pid }: Server, seconds: number): Promise<number> {
  const [startMs, before] = [performance.now(), threadSeconds(pid)];
  await pause(seconds * 1000);
  return ((threadSeconds(pid) - before) / ((performance.now() - startMs) / 1000)) * 100;
}

/**
 * Returns the percentage of one core that the server uses for one open overview page of the
 * console. The percentage of an idle server is subtracted.
 */
async function consoleShare(
  server: Server,
  { polls, idlePercent }: { readonly polls: number; readonly idlePercent: number },
): Promise<number> {
  const calls = async () => {
    for (let poll = 0; poll < polls; poll++) {
      const next = pause(MEASURED_POLL_S * 1000);
      for (const path of CONSOLE_CALLS)
        await (await fetch(`http://127.0.0.1:${server.apiPort}${path}`)).arrayBuffer();
      await next;
    }
  };
  const [share] = await Promise.all([busyShare(server, polls * MEASURED_POLL_S), calls()]);
  return Math.max(0, share - idlePercent) * (MEASURED_POLL_S / CONSOLE_POLL_S);
}
