// How much processor time does a start need? Measures a node with an empty store until it is ready,
// and the command `jindou --version` until it has ended.

import type { Bench, Benchmark, Question, Row, Sample, Subject } from "./support/benchmark.ts";
import { ROOT } from "./support/builds.ts";
import { type Redis, startRedis } from "./support/clusters.ts";
import { cpuSeconds, endedChildrenSeconds } from "./support/proc.ts";
import { alternate } from "./support/rounds.ts";
import { startBroker } from "./support/servers.ts";
import { row } from "./support/stats.ts";

/**
 * Number of starts in one sample. A single start would be too short, because Linux counts processor
 * time in steps of 10 ms.
 */
const STARTS = 5;
const MAX_START_MS = 600;
const MAX_VERSION_MS = 60;

/** Source of the raw server that is the baseline of a node. */
const RAW_SERVER = `import { App, us_socket_local_port } from "uWebSockets.js";
App().get("/*", (response) => response.end("ok")).listen("127.0.0.1", 0, (socket) => console.log(us_socket_local_port(socket)));`;

export const start: Benchmark = {
  name: "start",
  question: "a start of a node until it is ready, and jindou --version",

  async run(bench) {
    const redis = await startRedis(bench);
    const measured: Record<string, (subject: Subject) => Promise<number>> = {
      "embedded store: processor time until ready": (subject) => startMs(bench, subject),
      "Redis: processor time until ready": (subject) => startMs(bench, subject, redis),
      "jindou --version: processor time": (subject) => versionMs(bench, subject),
    };
    const rows: Row[] = [];
    for (const [title, measure] of Object.entries(measured)) {
      const atMost = title.includes("--version") ? MAX_VERSION_MS : MAX_START_MS;
      const question: Question = { title, unit: "ms", target: { kind: "value", atMost } };
      const samples = await alternate(bench, (subject) => meanOf(() => measure(subject)));
      rows.push(row(question, bench.subjects, samples));
    }
    return rows;
  },
};

async function meanOf(measure: () => Promise<number>): Promise<Sample> {
  let sum = 0;
  for (let start = 0; start < STARTS; start++) sum += await measure();
  return { value: sum / STARTS };
}

async function startMs({ workbench }: Bench, subject: Subject, redis?: Redis): Promise<number> {
  if (subject.kind === "raw") {
    const child = workbench.spawn({
      name: "The raw server",
      command: process.execPath,
      args: ["--input-type=module", "--eval", RAW_SERVER],
      cwd: ROOT,
    });
    await child.line();
    const ms = cpuSeconds(child.pid) * 1000;
    await child.stop();
    return ms;
  }
  const link = redis && { url: redis.url, prefix: "start" };
  const server = await startBroker(workbench, subject, link);
  const ms = cpuSeconds(server.pid) * 1000;
  await server.stop();
  return ms;
}

/** Measures `jindou --version`, or Node.js without a program as the baseline. */
async function versionMs({ workbench }: Bench, subject: Subject): Promise<number> {
  const before = endedChildrenSeconds();
  const child = workbench.spawn({
    name: "jindou --version",
    command: process.execPath,
    args: subject.kind === "raw" ? ["--eval", ""] : ["dist/main.js", "--version"],
    cwd: subject.kind === "raw" ? ROOT : subject.directory,
  });
  await child.output();
  return (endedChildrenSeconds() - before) * 1000;
}
