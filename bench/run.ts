// The program of `npm run bench`, see USAGE below. Runs one benchmark or all of them, prints a
// table for each, and writes bench/results/<name>.json (with --quick: <name>-quick.json). Stops
// everything it has started, also after a signal or an error. A missed target never fails a run.

import { mkdirSync, writeFileSync } from "node:fs";
import { cpus, loadavg } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { attacks } from "./attacks.ts";
import { beside } from "./beside.ts";
import { cluster } from "./cluster.ts";
import { connections } from "./connections.ts";
import { connects } from "./connects.ts";
import { fanout } from "./fanout.ts";
import { formats } from "./formats.ts";
import { growth } from "./growth.ts";
import { http } from "./http.ts";
import { idle } from "./idle.ts";
import { reconnects } from "./reconnects.ts";
import { redisRestart } from "./redis-restart.ts";
import { socketSend } from "./socket-send.ts";
import { start } from "./start.ts";
import { storeAppend } from "./store-append.ts";
import { stream } from "./stream.ts";
import { type Benchmark, type Plan, type Row, reached, type Subject } from "./support/benchmark.ts";
import { buildCommit, buildHere, commitOf, ROOT } from "./support/builds.ts";
import { hotSpots } from "./support/profile.ts";
import { table } from "./support/table.ts";
import { Workbench } from "./support/workbench.ts";
import { userGroups } from "./user-groups.ts";

const BENCHMARKS: readonly Benchmark[] = [
  http,
  fanout,
  formats,
  socketSend,
  stream,
  connects,
  reconnects,
  connections,
  userGroups,
  beside,
  attacks,
  growth,
  idle,
  start,
  storeAppend,
  cluster,
  redisRestart,
];
const RESULTS = join(ROOT, "bench/results");

/** Load average above which a result is reported as noisy. */
const MAX_QUIET_LOAD = 0.5;

const USAGE = `Usage: npm run bench -- [name …] [options]

Names (default: all):
${BENCHMARKS.map(({ name, question }) => `  ${name.padEnd(14)} ${question}`).join("\n")}

Options:
  --rounds N        number of measurements of each value; more rounds make the medians more stable
  --seconds S       length of each measurement
  --sessions N      number of sessions in connections, reconnects and redis-restart, and at most
                    this number in connects (default: 10,000)
  --against <ref>   compare with the build of another commit instead of the raw server
  --portable        measure the portable transport, compared with uWebSockets.js
  --profile         also print where our JavaScript thread spends its time
  --quick           only check that everything works; the results are meaningless
  --help            show this text

Needs Linux and a C compiler (cc). attacks, beside, cluster, connections, connects, growth, idle,
reconnects, redis-restart, start and user-groups also need redis-server.
docs/benchmarks.md describes what is measured and how.
`;

const FULL: Plan = {
  ...{ isQuick: false, rounds: 3, warmupS: 0.5, seconds: 2 },
  sessions: 10_000,
};
const QUICK: Plan = {
  ...{ isQuick: true, rounds: 1, warmupS: 0.05, seconds: 0.1 },
  sessions: 200,
};

interface CommandLine {
  readonly chosen: readonly Benchmark[];
  readonly plan: Plan;
  /** Git reference of the build to compare with. Empty to compare with the raw server. */
  readonly against: string;
  /** True if our build runs on the portable transport and is compared with itself on the other. */
  readonly isPortable: boolean;
  /** True if a report of where our build spends its time is printed, too. */
  readonly isProfiled: boolean;
}

const workbench = new Workbench();
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"] as const)
  process.once(signal, () => process.exit(1));
process.once("exit", () => workbench.close());
try {
  const commandLine = parseCommandLine(process.argv.slice(2));
  if (commandLine === "help") print(USAGE);
  else await runAll(commandLine);
  process.exit(0);
} catch (error) {
  process.stderr.write(
    `bench: ${error instanceof Error ? error.message : error}\nSee npm run bench -- --help.\n`,
  );
  process.exit(1);
}

async function runAll(commandLine: CommandLine): Promise<void> {
  const directory = buildHere();
  if (commandLine.isPortable) {
    const baseline = {
      kind: "broker",
      name: "jindou on uws",
      directory,
      transport: "uws",
    } as const;
    return runEach(commandLine, baseline, directory);
  }
  if (commandLine.against === "")
    return runEach(commandLine, { kind: "raw", name: "raw uWebSockets.js" }, directory);
  const commit = await commitOf(commandLine.against);
  const build = await buildCommit(commit, workbench);
  const name = `jindou ${commit}`;
  try {
    await runEach(commandLine, { kind: "broker", name, directory: build.directory }, directory);
  } finally {
    await build.remove();
  }
}

async function runEach(
  { chosen, plan, isPortable, isProfiled }: CommandLine,
  baseline: Subject,
  directory: string,
): Promise<void> {
  for (const benchmark of chosen) {
    const loadBefore = loadavg()[0] ?? 0;
    const profile = isProfiled ? { profileFolder: workbench.folder("profile") } : {};
    const ours: Subject = {
      kind: "broker",
      name: isPortable ? "jindou on the portable transport" : "jindou",
      directory,
      ...(isPortable ? { transport: "portable" as const } : {}),
      ...profile,
    };
    workbench.pin(benchmark.isPinned ?? false);
    const measuredRows = await benchmark.run({
      subjects: [baseline, ours],
      plan,
      workbench,
    });
    const rows = baseline.kind === "raw" ? measuredRows : measuredRows.map(withoutTarget);
    print(table(benchmark, rows));
    if (loadBefore > MAX_QUIET_LOAD)
      print(`noisy: the machine's load average was ${loadBefore.toFixed(1)} before the start\n`);
    if (profile.profileFolder !== undefined) print(hotSpots(profile.profileFolder));
    writeResult(isPortable ? `${benchmark.name}-portable` : benchmark.name, benchmark.question, {
      rows,
      plan,
      loadBefore,
    });
  }
}

function print(text: string): void {
  process.stdout.write(text);
}

/** Removes the target of a row. Targets only apply to comparisons with the raw server. */
function withoutTarget({ target: _, ...row }: Row): Row {
  return row;
}

function writeResult(
  name: string,
  question: string,
  { rows, plan, loadBefore }: { rows: readonly Row[]; plan: Plan; loadBefore: number },
): void {
  mkdirSync(RESULTS, { recursive: true });
  const machine = {
    cpu: cpus()[0]?.model,
    cores: cpus().length,
    node: process.version,
    loadBefore,
  };
  const judgedRows = rows.map((row) => ({ ...row, reached: reached(row) }));
  const result = {
    name,
    question,
    at: new Date().toISOString(),
    machine,
    plan,
    rows: judgedRows,
  };
  writeFileSync(
    join(RESULTS, `${name}${plan.isQuick ? "-quick" : ""}.json`),
    `${JSON.stringify(result, undefined, 2)}\n`,
  );
}

function parseCommandLine(args: readonly string[]): CommandLine | "help" {
  const { values, positionals } = parseArgs({
    args: [...args],
    allowPositionals: true,
    options: {
      quick: { type: "boolean", default: false },
      against: { type: "string", default: "" },
      portable: { type: "boolean", default: false },
      profile: { type: "boolean", default: false },
      rounds: { type: "string" },
      seconds: { type: "string" },
      sessions: { type: "string" },
      help: { type: "boolean", short: "h", default: false },
    },
  });
  if (values.help) return "help";
  const defaults = values.quick ? QUICK : FULL;
  const plan = {
    ...defaults,
    rounds: positive(values.rounds, defaults.rounds),
    seconds: positive(values.seconds, defaults.seconds),
    sessions: positive(values.sessions, defaults.sessions),
  };
  const chosen = positionals.length === 0 ? BENCHMARKS : positionals.map(benchmarkOf);
  return {
    chosen,
    plan,
    against: values.against,
    isPortable: values.portable,
    isProfiled: values.profile,
  };
}

function benchmarkOf(name: string): Benchmark {
  const benchmark = BENCHMARKS.find((benchmark) => benchmark.name === name);
  if (benchmark === undefined)
    throw new Error(
      `There is no benchmark ${name}. The names are ${BENCHMARKS.map((known) => known.name).join(", ")}.`,
    );
  return benchmark;
}

function positive(text: string | undefined, defaultValue: number): number {
  if (text === undefined) return defaultValue;
  const value = Number(text);
  if (!(value > 0)) throw new Error(`${text} is not a number greater than 0.`);
  return value;
}
