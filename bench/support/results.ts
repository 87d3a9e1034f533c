// Results of single benchmarks: their file, and the table of all rows that have a target. The files
// in docs/benchmarks/ are the source of the table in docs/benchmarks.md.

import { mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { cpus } from "node:os";
import { join } from "node:path";
import { type Plan, type Row, reached } from "./benchmark.ts";
import { formatNumber, targetText } from "./table.ts";

export interface BenchmarkResult {
  readonly name: string;
  readonly question: string;
  readonly command: string;
  /** Time at which the run ended [ISO 8601]. */
  readonly at: string;
  readonly machine: {
    readonly cpu: string;
    readonly cores: number;
    readonly node: string;
    /** One-minute load average before the run. */
    readonly loadBefore: number;
  };
  readonly plan: Plan;
  readonly rows: readonly (Row & { readonly reached?: boolean | undefined })[];
}

/**
 * Writes the result to `<name>.json` in the folder, or to `<name>-quick.json` after a quick run.
 * Creates the folder if necessary.
 */
export function writeResult(
  folder: string,
  result: Omit<BenchmarkResult, "at" | "machine">,
  loadBefore: number,
): void {
  const { name, question, command, plan, rows } = result;
  const [processor] = cpus();
  const written: BenchmarkResult = {
    ...{ name, question, command, at: new Date().toISOString() },
    machine: {
      cpu: processor?.model ?? "",
      cores: cpus().length,
      node: process.version,
      loadBefore,
    },
    plan,
    rows: rows.map((row) => ({ ...row, reached: reached(row) })),
  };
  putResult(folder, written);
}

export function putResult(folder: string, result: BenchmarkResult): void {
  mkdirSync(folder, { recursive: true });
  const name = `${result.name}${result.plan.isQuick ? "-quick" : ""}.json`;
  writeFileSync(join(folder, name), `${JSON.stringify(result, undefined, 2)}\n`);
}

/**
 * Reads the result of a benchmark. Throws if the file is not a result, or if no row has a target,
 * as after a run with `--against`.
 */
export function readTargets(file: string): BenchmarkResult {
  const result = JSON.parse(readFileSync(file, "utf8")) as Partial<BenchmarkResult>;
  const isResult = typeof result.question === "string" && Array.isArray(result.rows);
  if (!isResult) throw new Error(`${file} is not a benchmark result.`);
  if (!result.rows?.some(({ target }) => target !== undefined))
    throw new Error(`${file} has no row with a target. Run the benchmark without --against.`);
  return result as BenchmarkResult; // checked above
}

/** Reads the benchmark results in a folder: all JSON files except the overview's results.json. */
export function resultsIn(folder: string): readonly BenchmarkResult[] {
  return readdirSync(folder)
    .filter((name) => name.endsWith(".json") && name !== "results.json")
    .sort()
    .map((name) => readTargets(join(folder, name)));
}

/** Returns one Markdown table of all rows with a target, and a line on each benchmark's run. */
export function targetTable(results: readonly BenchmarkResult[]): string {
  if (results.length === 0) return "No result is published yet.";
  const rows = results.flatMap(({ name, rows }) =>
    rows.flatMap((row) => (row.target === undefined ? [] : [{ ...row, name, target: row.target }])),
  );
  const count = rows.filter((row) => reached(row)).length;
  const lines = rows.map((row) => {
    const { name, title, unit, baseline, ours, ratio, target } = row;
    const cells = [
      `\`${name}\`: ${title}`,
      `${formatNumber(baseline.value)} (${baseline.subject})`,
      `${formatNumber(ours.value)} ${unit}`,
      ratio.toFixed(2),
      targetText(target, unit),
      reached(row) ? "reached" : "**missed**",
    ];
    return `| ${cells.join(" | ")} |`;
  });
  const runs = results.map(
    ({ name, at, command, machine, plan }) =>
      `- \`${name}\`: ${at.slice(0, 10)}, \`${command}\`, ${plan.rounds} ${plan.rounds === 1 ? "round" : "rounds"} of ${plan.seconds} s, ${machine.cores} cores, Node.js ${machine.node.slice(1)}, load average ${machine.loadBefore.toFixed(1)} before the run.`,
  );
  return [
    `${count} of ${rows.length} targets are reached.`,
    "",
    "| Row | Compared with | Jindou | Ratio | Target | |",
    "|---|---|---|---|---|---|",
    ...lines,
    "",
    ...runs,
  ].join("\n");
}
