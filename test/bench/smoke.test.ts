// Runs the benchmarks in their quick form from start to end, all in one run from the command line,
// as a person would. By default, only the benchmarks by which changes are judged run. All
// benchmarks run with JINDOU_TEST_VOLUME=full. The tests assert nothing about speed.

import { spawnSync } from "node:child_process";
import { readFileSync, rmSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import t from "tap";
import { TYPESCRIPT_ARGS, tieToParent } from "../support/child.ts";
import { IS_FULL } from "../support/volume.ts";

interface Result {
  readonly rows: readonly {
    readonly ours: { readonly value: number };
    readonly baseline: { readonly value: number };
  }[];
}

const ROOT = fileURLToPath(new URL("../..", import.meta.url));
/** Number of rows of the benchmarks that run by default. */
const ROWS = {
  http: 4,
  fanout: 5,
  "socket-send": 2,
  stream: 4,
  logs: 9,
  connects: 6,
  "store-append": 12,
};
const OTHER_ROWS = {
  formats: 4,
  tcp: 4,
  reconnects: 6,
  connections: 10,
  "user-groups": 18,
  beside: 4,
  attacks: 136,
  growth: 12,
  idle: 2,
  start: 3,
  imports: 2,
  webhooks: 4,
  cluster: 26,
  "redis-restart": 8,
};
const HAS_COMPILER = spawnSync("cc", ["--version"]).status === 0;
const skip =
  process.platform === "linux" && HAS_COMPILER
    ? false
    : "the benches need Linux and a C compiler under the name cc";

const resultOf = (name: string): string => join(ROOT, "bench/results", `${name}-quick.json`);

function bench(...args: readonly string[]) {
  return spawnSync(
    ...tieToParent(process.execPath, [...TYPESCRIPT_ARGS, join(ROOT, "bench/run.ts"), ...args]),
    {
      ...{ cwd: ROOT, encoding: "utf8", timeout: 800_000 },
      // the number of rows does not depend on whether this machine has the program
      env: { ...process.env, BENCH_DURABLE_STREAMS_SERVER: "/no/such/program" },
    },
  );
}

t.test("each benchmark measures Jindou and a baseline", { skip }, async (t) => {
  const rowCounts: Readonly<Record<string, number>> = IS_FULL ? { ...ROWS, ...OTHER_ROWS } : ROWS;
  const names = Object.keys(rowCounts);
  for (const name of names) rmSync(resultOf(name), { force: true });
  const run = bench(...names, "--quick");
  t.equal(run.status, 0, run.stderr);
  for (const [name, rows] of Object.entries(rowCounts)) {
    t.match(run.stdout, new RegExp(`^${name}: `, "m"));
    const text = readFileSync(resultOf(name), "utf8");
    const result = JSON.parse(text) as Result;
    t.equal(result.rows.length, rows, name);
    for (const { ours, baseline } of result.rows) {
      t.ok(Number.isFinite(ours.value), "Jindou was measured");
      t.ok(Number.isFinite(baseline.value), "the server it is compared with was measured");
    }
  }
});

t.test("an unknown benchmark name ends the run with exit code 1", async (t) => {
  const run = bench("nonsense");
  t.equal(run.status, 1);
  t.match(run.stderr, /socket-send/, "standard error lists the names of the benchmarks");
});
