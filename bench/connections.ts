// How much memory does an idle session need, and how fast can sessions connect? Opens 10,000
// authenticated sessions, each a member of two of 20 groups. The raw server holds as many sockets
// with two topics each. Memory is the resident set of the server process when it no longer changes.
// Every measurement starts a new server, because a process does not return all freed memory to the
// system.

import { setTimeout as pause } from "node:timers/promises";
import { Backend, TOKEN } from "./support/backend.ts";
import type { Bench, Benchmark, Sample, Subject } from "./support/benchmark.ts";
import {
  CONNECTION_NUMBER,
  connectFrame,
  connectionNumber,
  NATIVE_UPGRADE,
} from "./support/frames.ts";
import { compileLoad, LoadClient, type Opening } from "./support/load.ts";
import { residentBytes } from "./support/proc.ts";
import { alternate } from "./support/rounds.ts";
import { type Server, startBroker, startRaw } from "./support/servers.ts";
import { row } from "./support/stats.ts";

const USER = `user${CONNECTION_NUMBER}`;
const GROUPS_OF_A_KIND = 10;
const REST_STEP_MS = 500;
/** Relative change in memory per step below which the process counts as at rest. */
const REST_CHANGE = 0.002;
const REST_STEPS_MAX = 12;

interface Contender {
  readonly server: Server;
  readonly opening: Opening;
}

interface Costs {
  readonly bytes: Sample;
  readonly rate: Sample;
}

export const connections: Benchmark = {
  name: "connections",
  question: "idle sessions in two groups each, 10,000 by default",
  isPinned: true,

  async run(bench) {
    const count = bench.plan.sessions;
    const load = new LoadClient(bench.workbench, await compileLoad());
    const [baseline, ours] = await alternate(bench, (subject) =>
      measure(bench, { load, subject, count }),
    );
    const samplesOf = (key: keyof Costs) =>
      [baseline.map((costs) => costs[key]), ours.map((costs) => costs[key])] as const;
    return [
      row(
        {
          title: "resident memory per session",
          unit: "bytes",
          target: { kind: "value", atMost: 4096 },
        },
        bench.subjects,
        samplesOf("bytes"),
      ),
      row({ title: "connect rate", unit: "sessions/s" }, bench.subjects, samplesOf("rate")),
    ];
  },
};

async function measure(
  bench: Bench,
  { load, subject, count }: { load: LoadClient; subject: Subject; count: number },
): Promise<Costs> {
  const { server, opening } = await start(bench, subject, count);
  const port = server.clientPort;
  const warmup = await load.hold({
    port,
    connections: Math.ceil(count / 10),
    opening,
  });
  await warmup.release();
  const before = await restingBytes(server.pid);
  const heldConnections = await load.hold({ port, connections: count, opening });
  const after = await restingBytes(server.pid);
  await heldConnections.release();
  await server.stop();
  return {
    bytes: { value: (after - before) / count },
    rate: { value: count / heldConnections.connectSeconds },
  };
}

async function start({ workbench }: Bench, subject: Subject, count: number): Promise<Contender> {
  if (subject.kind === "raw") {
    const server = await startRaw(workbench, "topics", new Uint8Array());
    return { server, opening: { upgrade: NATIVE_UPGRADE } };
  }
  const server = await startBroker(workbench, subject);
  const uids = Array.from({ length: count }, (_, at) =>
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

/** Waits at most six seconds until the resident set hardly changes, and returns its size. */
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
