// The program of `npm run bench`; see USAGE below. Runs the overview, or single benchmarks by name.
// Prints the table of each benchmark and writes its result to bench/results/<name>.json (with
// --quick: <name>-quick.json). Stops everything it has started, even after a signal or an error. A
// run does not fail because of a missed target.

import { loadavg } from "node:os";
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
import { imports } from "./imports.ts";
import { logs } from "./logs.ts";
import { comparison } from "./overview/compare.ts";
import { type OverviewOptions, runOverview } from "./overview/overview.ts";
import { publish } from "./overview/publish.ts";
import { readResult } from "./overview/results.ts";
import { SCENARIOS } from "./overview/works.ts";
import type { Format } from "./peers/jindou.ts";
import { reconnects } from "./reconnects.ts";
import { redisRestart } from "./redis-restart.ts";
import { socketSend } from "./socket-send.ts";
import { start } from "./start.ts";
import { storeAppend } from "./store-append.ts";
import { stream } from "./stream.ts";
import type { Benchmark, Plan, Row, Subject } from "./support/benchmark.ts";
import { buildCommit, buildHere, commitOf, ROOT } from "./support/builds.ts";
import { hotSpots } from "./support/profile.ts";
import { writeResult } from "./support/results.ts";
import { table } from "./support/table.ts";
import { Workbench } from "./support/workbench.ts";
import { tcp } from "./tcp.ts";
import { tokens } from "./tokens.ts";
import { userGroups } from "./user-groups.ts";
import { webhooks } from "./webhooks.ts";

const BENCHMARKS: readonly Benchmark[] = [
  http,
  fanout,
  formats,
  tcp,
  socketSend,
  stream,
  logs,
  connects,
  tokens,
  reconnects,
  connections,
  userGroups,
  beside,
  attacks,
  growth,
  idle,
  start,
  storeAppend,
  imports,
  webhooks,
  cluster,
  redisRestart,
];
const RESULTS = join(ROOT, "bench/results");
const FORMATS: readonly Format[] = ["native", "jsonrpc"];

/** Load average above which a result is reported as noisy. */
const MAX_QUIET_LOAD = 0.5;

const USAGE = `Usage: npm run bench                             the overview: less than five minutes
       npm run bench -- [options]                the overview with other workloads or peers
       npm run bench -- <name …|all> [options]   single benchmarks
       npm run bench -- --compare <a> <b>        the differences between two overviews

Overview: Jindou, raw uWebSockets.js and the peers that this machine has. Prints a table, and writes
bench/results/<time>/ with results.json, results.csv, picture.svg, report.md and report.html.
  --scenario a,b    workloads: ${SCENARIOS.join(", ")} (default: all)
  --peers a,b       peers (default: all that this machine has)
  --members a,b     sizes of the groups (default: 10,100,1000)
  --size B          bytes of a message (default: 200)
  --in-flight N     messages in flight in a fan-out (default: 16): a closed loop, in which a slow
                    server receives fewer messages
  --rate R          messages per second, regardless of the server: an open loop, in which latencies
                    count from the scheduled time
  --connections N   connections in the scenarios \`post\` and \`send\` (default: 64)
  --clients N       clients of the scenarios connect, resume and late (default: 2000)
  --format F        wire format of Jindou's clients: native or jsonrpc
  --nodes N         Jindou nodes on one Redis, instead of one with the embedded store. Clients and
                    calls are spread over the nodes; processor time does not include that of Redis
  --url H:P         API of a Jindou that runs elsewhere, instead of this build. Its limits apply:
                    set client.maxFramesPerSecond and client.maxStoredBytesPerSecond to 0 there
  --client-url H:P  its address for clients
  --api-token T     token for its API
  --rounds N, --seconds S   number and length of the measurements (default: 3 of 0.8 s)
  --json            print the result as JSON
  --compare a b     print the differences between two result folders or files, with their noise
  --publish a …     put results (a folder of the overview, or files of single benchmarks) into
                    docs/benchmarks/ and into the tables of the pages

Single benchmarks (all: more than 25 minutes):
${BENCHMARKS.map(({ name, question }) => `  ${name.padEnd(14)} ${question}`).join("\n")}
  --rounds N        number of measurements of each value; more rounds make the medians more stable
  --seconds S       length of each measurement
  --sessions N      number of sessions in the benchmarks connections, reconnects and redis-restart,
                    and of idle readers in logs; maximum number of sessions in connects and tcp
                    (default: 10,000)
  --against <ref>   compare with the build of another commit instead of the raw server
  --portable        measure the portable transport, compared with uWebSockets.js
  --profile         also print where our JavaScript thread spends its time
  --quick           only check that everything works; the results are meaningless

  --help            show this text

Needs Linux and a C compiler (cc). attacks, beside, cluster, connections, connects, growth, idle,
imports, logs, reconnects, redis-restart, start and user-groups also need redis-server.
docs/benchmarks.md describes what is measured and how, bench/README.md how to add to it.
`;

const FULL: Plan = {
  ...{ isQuick: false, rounds: 3, warmupS: 3, seconds: 2 },
  sessions: 10_000,
};
const QUICK: Plan = {
  ...{ isQuick: true, rounds: 1, warmupS: 0.05, seconds: 0.1 },
  sessions: 200,
};
/** Defaults of the overview. Four peers take about three minutes. */
const OVERVIEW = { rounds: 3, seconds: 0.8, warmupS: 0.3, uncountedS: 0.7 };
const QUICK_OVERVIEW = { ...QUICK, uncountedS: 0.05 };

type Request =
  | { readonly kind: "help" }
  | { readonly kind: "compare"; readonly before: string; readonly after: string }
  | { readonly kind: "publish"; readonly results: readonly string[] }
  | { readonly kind: "overview"; readonly options: OverviewOptions }
  | { readonly kind: "benchmarks"; readonly commandLine: CommandLine };

interface CommandLine {
  readonly chosen: readonly Benchmark[];
  readonly plan: Plan;
  /** Git reference of the build to compare with. Empty to compare with the raw server. */
  readonly against: string;
  /**
   * True if our build on the portable transport is compared with the same build on uWebSockets.js.
   */
  readonly isPortable: boolean;
  /** True if a report on where our build spends its time is also printed. */
  readonly isProfiled: boolean;
  /** Command line, which is stored in the result. */
  readonly command: string;
}

const workbench = new Workbench();
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"] as const)
  process.once(signal, () => process.exit(1));
process.once("exit", () => workbench.close());
try {
  const request = parseCommandLine(process.argv.slice(2));
  switch (request.kind) {
    case "help":
      print(USAGE);
      break;
    case "compare":
      print(comparison(readResult(request.before), readResult(request.after)));
      break;
    case "publish":
      publish(request.results);
      break;
    case "overview":
      await runOverview(request.options, workbench);
      break;
    case "benchmarks":
      await runAll(request.commandLine);
  }
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
  { chosen, plan, isPortable, isProfiled, command }: CommandLine,
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
    const name = isPortable ? `${benchmark.name}-portable` : benchmark.name;
    const { question } = benchmark;
    writeResult(RESULTS, { name, question, command, plan, rows }, loadBefore);
  }
}

function print(text: string): void {
  process.stdout.write(text);
}

/** Removes the target of a row. Targets only apply to comparisons with the raw server. */
function withoutTarget({ target: _, ...row }: Row): Row {
  return row;
}

function parseCommandLine(args: readonly string[]): Request {
  const { values, positionals } = parseArgs({
    args: [...args],
    allowPositionals: true,
    options: {
      scenario: { type: "string" },
      peers: { type: "string" },
      members: { type: "string" },
      size: { type: "string" },
      "in-flight": { type: "string" },
      rate: { type: "string" },
      connections: { type: "string" },
      clients: { type: "string" },
      format: { type: "string" },
      nodes: { type: "string" },
      url: { type: "string" },
      "client-url": { type: "string" },
      "api-token": { type: "string" },
      json: { type: "boolean", default: false },
      compare: { type: "boolean", default: false },
      publish: { type: "string" },
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
  if (values.help) return { kind: "help" };
  if (values.publish !== undefined)
    return { kind: "publish", results: [values.publish, ...positionals] };
  if (values.compare) {
    const [before, after, ...others] = positionals;
    if (before === undefined || after === undefined || others.length > 0)
      throw new Error("--compare needs two result folders or files.");
    return { kind: "compare", before, after };
  }
  const isOfBenchmarks = values.against !== "" || values.portable || values.profile;
  if (positionals.length === 0 && !isOfBenchmarks) {
    const lengths = values.quick ? QUICK_OVERVIEW : OVERVIEW;
    return {
      kind: "overview",
      options: {
        scenarios: namesIn(values.scenario, SCENARIOS),
        peers: listOf(values.peers),
        members: listOf(values.members, "10,100,1000").map((text) => positive(text, 0)),
        payloadBytes: positive(values.size, 200),
        inFlight: positive(values["in-flight"], 16),
        rate: values.rate === undefined ? undefined : positive(values.rate, 0),
        connections: positive(values.connections, 64),
        clients: positive(values.clients, 2000),
        format: namesIn(values.format ?? "native", FORMATS)[0] ?? "native",
        server: serverAt(values.url, values["client-url"], values["api-token"]),
        nodes: values.nodes === undefined ? 0 : positive(values.nodes, 0),
        isJson: values.json,
        rounds: positive(values.rounds, lengths.rounds),
        seconds: positive(values.seconds, lengths.seconds),
        warmupS: lengths.warmupS,
        uncountedS: lengths.uncountedS,
        command: commandText(args),
      },
    };
  }
  const defaults = values.quick ? QUICK : FULL;
  const plan = {
    ...defaults,
    rounds: positive(values.rounds, defaults.rounds),
    seconds: positive(values.seconds, defaults.seconds),
    sessions: positive(values.sessions, defaults.sessions),
  };
  const isAll = positionals.length === 0 || positionals.includes("all");
  return {
    kind: "benchmarks",
    commandLine: {
      chosen: isAll ? BENCHMARKS : positionals.map(benchmarkOf),
      plan,
      against: values.against,
      isPortable: values.portable,
      isProfiled: values.profile,
      command: commandText(args),
    },
  };
}

/** Returns the command line for the report, without the token. */
function commandText(args: readonly string[]): string {
  const shown = args.map((arg, at) =>
    args[at - 1] === "--api-token" ? "…" : arg.replace(/^--api-token=.*/, "--api-token=…"),
  );
  return ["npm run bench", ...(args.length > 0 ? ["--", ...shown] : [])].join(" ");
}

/** Splits a comma-separated list and omits empty entries. */
function listOf(text: string | undefined, defaultText = ""): readonly string[] {
  return (text ?? defaultText).split(",").filter((name) => name !== "");
}

/** Returns the names in a list, or all names if the list is absent. Throws if a name is unknown. */
function namesIn<Name extends string>(
  text: string | undefined,
  names: readonly Name[],
): readonly Name[] {
  const chosen = listOf(text, names.join(","));
  for (const name of chosen)
    if (!names.some((known) => known === name))
      throw new Error(`${name} is not one of ${names.join(", ")}.`);
  return names.filter((name) => chosen.includes(name));
}

/** Returns the server at the addresses, or `undefined` if both addresses are absent. */
function serverAt(
  api: string | undefined,
  client: string | undefined,
  apiToken: string | undefined,
): OverviewOptions["server"] {
  if (api === undefined && client === undefined) return undefined;
  const [host, apiPort] = addressIn(api);
  const [clientHost, clientPort] = addressIn(client);
  if (host !== clientHost) throw new Error("--url and --client-url must have the same host.");
  return {
    ...{ pid: 0, host, apiPort, clientPort },
    ...(apiToken !== undefined && { apiToken }),
    stop: async () => undefined,
  };
}

function addressIn(text = ""): readonly [host: string, port: number] {
  const [, host, port] = /^(?:http:\/\/|ws:\/\/)?(\d+\.\d+\.\d+\.\d+):(\d+)\/?$/.exec(text) ?? [];
  if (host === undefined)
    throw new Error(
      "--url and --client-url need an IPv4 address and a port, such as 10.0.0.5:5001.",
    );
  return [host, Number(port)];
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
