// Formats rows of results as a text table. Pure.

import { type Benchmark, type Figure, type Row, reached, type Target } from "./benchmark.ts";

const HEAD = ["", "value", "±", "p50 ms", "p99 ms", "p99.9 ms", "cpu µs", "ratio"];

/** Returns the table of a benchmark. Each row has three lines: title, baseline, our build. */
export function table(benchmark: Benchmark, rows: readonly Row[]): string {
  const lines = rows.flatMap((row) => [
    [row.title, row.unit],
    figureLine(row.baseline, ""),
    figureLine(row.ours, verdict(row)),
  ]);
  return `\n${benchmark.name}: ${benchmark.question}\n${alignColumns([HEAD, ...lines])}\n`;
}

function figureLine(figure: Figure, verdict: string): string[] {
  const { latency, cpuUs } = figure;
  const ms = (us: number | undefined) => (us === undefined ? "" : (us / 1000).toFixed(2));
  return [
    `  ${figure.subject}`,
    formatNumber(figure.value),
    `${(figure.spread * 100).toFixed(0)}%`,
    ms(latency?.p50),
    ms(latency?.p99),
    ms(latency?.p999),
    cpuUs === undefined ? "" : cpuUs.toFixed(2),
    verdict,
  ];
}

function verdict(row: Row): string {
  const ratio = row.ratio.toFixed(2);
  if (row.target === undefined) return ratio;
  return `${ratio}  ${reached(row) ? "reached" : "MISSED"} (${targetText(row.target, row.unit)})`;
}

export function targetText(target: Target, unit: string): string {
  switch (target.kind) {
    case "ratio":
      return `≥ ${target.atLeast.toFixed(2)}`;
    case "slowdown":
      return `≤ ${target.atMost.toFixed(2)}`;
    case "value":
      return `≤ ${formatNumber(target.atMost)} ${unit}`;
  }
}

export function formatNumber(value: number): string {
  const maximumFractionDigits = value < 100 ? 1 : 0;
  return value.toLocaleString("en-US", { maximumFractionDigits });
}

/**
 * Aligns the first column to the left and the others to the right. A title line spans all columns.
 */
function alignColumns(lines: readonly (readonly string[])[]): string {
  const widths = HEAD.map((_, column) =>
    Math.max(...lines.filter((line) => line.length > 2).map((line) => line[column]?.length ?? 0)),
  );
  const text = (line: readonly string[]) =>
    line.length === 2
      ? `${line[0]} (${line[1]})`
      : line
          .map((cell, at) => {
            const width = widths[at] ?? 0;
            return at === 0 || at === HEAD.length - 1 ? cell.padEnd(width) : cell.padStart(width);
          })
          .join("  ")
          .trimEnd();
  return lines.map(text).join("\n");
}
