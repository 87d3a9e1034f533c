// Every benchmark runs from start to end in its quick form, from the command line as a person would. Nothing is asserted about speed.

import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import t from "tap";

interface Result {
  readonly rows: readonly {
    readonly ours: { readonly value: number };
    readonly baseline: { readonly value: number };
  }[];
}

const ROOT = fileURLToPath(new URL("../..", import.meta.url));
const ROWS = {
  http: 4,
  fanout: 4,
  "socket-send": 2,
  stream: 4,
  connections: 2,
  cluster: 16,
};
const HAS_COMPILER = spawnSync("cc", ["--version"]).status === 0;
const skip =
  process.platform === "linux" && HAS_COMPILER
    ? false
    : "the benches need Linux and a C compiler under the name cc";

function bench(...args: readonly string[]) {
  return spawnSync(
    process.execPath,
    ["--import=tsx", "bench/run.ts", ...args],
    { cwd: ROOT, encoding: "utf8", timeout: 120_000 },
  );
}

for (const [name, rows] of Object.entries(ROWS)) {
  t.test(`the ${name} benchmark measures both servers`, { skip }, async (t) => {
    const run = bench(name, "--quick");
    t.equal(run.status, 0, run.stderr);
    t.match(run.stdout, new RegExp(`^${name}: `, "m"));
    const file = `${ROOT}/bench/results/${name}-quick.json`;
    const result = JSON.parse(readFileSync(file, "utf8")) as Result;
    t.equal(result.rows.length, rows);
    for (const { ours, baseline } of result.rows) {
      t.ok(Number.isFinite(ours.value), "ours was measured");
      t.ok(
        Number.isFinite(baseline.value),
        "what it is compared with was measured",
      );
    }
  });
}

t.test("a name that is no benchmark ends the run with 1", async (t) => {
  const run = bench("nonsense");
  t.equal(run.status, 1);
  t.match(run.stderr, /socket-send/, "and the names there are");
});
