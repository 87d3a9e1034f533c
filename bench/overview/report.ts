// Writes a result as text: the table for the terminal, Markdown, CSV and HTML. Ratios come first,
// because absolute figures depend on the machine. Pure.

import type { OverviewResult, OverviewRow, PeerFigure } from "./results.ts";

/** Load average above which a result is marked as noisy. */
const MAX_QUIET_LOAD = 0.5;

const HEAD = [
  ...["", "ratio", "CPU ratio", "value", "±"],
  ...["p50 ms", "p99 ms", "p99.9 ms", "CPU µs"],
];

/** The one value that short tables and pictures show for each figure. */
export interface Measure {
  readonly title: string;
  readonly isLowerBetter: boolean;
  of(figure: PeerFigure): number | undefined;
}

/**
 * Returns the rate as the measure, or the processor time if other programs were running on the
 * machine.
 */
export function measureOf({ load }: Pick<OverviewResult, "load">): Measure {
  return load.before <= MAX_QUIET_LOAD
    ? { title: "Rate", isLowerBetter: false, of: ({ ratio }) => ratio }
    : { title: "Processor time", isLowerBetter: true, of: ({ cpuRatio }) => cpuRatio };
}

/** Returns the tables of a result for the terminal. */
export function terminalText(result: OverviewResult): string {
  const lines = result.rows.flatMap((row) => [
    [row.title],
    ...row.figures.map((figure) => cellsOf(result, row, figure, "  ")),
  ]);
  const widths = HEAD.map((head, column) =>
    Math.max(
      head.length,
      ...lines.filter(({ length }) => length > 1).map((cells) => cells[column]?.length ?? 0),
    ),
  );
  const text = (cells: readonly string[]) =>
    cells.length === 1
      ? `\n${cells[0]}`
      : cells
          .map((cell, at) =>
            at === 0 ? cell.padEnd(widths[at] ?? 0) : cell.padStart(widths[at] ?? 0),
          )
          .join("  ");
  const lacking = result.peers
    .filter(({ lacks }) => lacks.length > 0)
    .map(({ title, lacks }) => `Not part of the work of ${title}: ${lacks.join(", ")}.`);
  const remarks = [...notes(result), ...lacking];
  return `${[text(HEAD), ...lines.map(text)].join("\n")}\n\n${remarks.join("\n")}\n`;
}

/** Returns the report in Markdown. `level` is the number of `#` of its headings. */
export function markdown(result: OverviewResult, level = 2): string {
  const heading = "#".repeat(level);
  const tables = result.rows.map((row) => {
    const rows = row.figures.map((figure) => pageCellsOf(result, row, figure));
    const loop = row.loop === "" ? "" : `, ${row.loop}`;
    return `${heading} ${capitalized(row.title)}\n\n${row.unit}${loop}.\n\n${markdownTable(PAGE_HEAD, rows)}`;
  });
  return `${tables.join("\n")}\n${notes(result)
    .map((line) => `- ${line}`)
    .join("\n")}\n`;
}

/** Returns the README's short table: each workload relative to raw uWebSockets.js. */
export function ratioTable(result: OverviewResult): string {
  const measure = measureOf(result);
  const peers = result.peers.filter(({ name }) => name !== "raw");
  const of = (row: OverviewRow, name: string) => {
    const figure = row.figures.find(({ peer }) => peer === name);
    const ratio = figure && (row.unit === "bytes" ? figure.ratio : measure.of(figure));
    return ratio === undefined ? "–" : ratio.toFixed(2);
  };
  const compared = result.rows.filter(({ figures }) => figures.some(({ peer }) => peer === "raw"));
  const rows = compared.map((row) => [row.title, ...peers.map(({ name }) => of(row, name))]);
  const lacking = ["not part of this work", ...peers.map(({ lacks }) => lacks.join(", ") || "–")];
  return markdownTable(
    [
      `${measure.title}, relative to raw uWebSockets.js (${measure.isLowerBetter ? "less" : "more"} is better)`,
      ...peers.map(({ title }) => title),
    ],
    [...rows, lacking],
  );
}

export function csv(result: OverviewResult): string {
  const head = [
    ...["work", "title", "unit", "loop", "peer", "ratio", "cpu_ratio", "value", "spread"],
    ...["p50_us", "p99_us", "p999_us", "cpu_us", "samples"],
  ];
  const rows = result.rows.flatMap((row) =>
    row.figures.map(({ peer, ratio, cpuRatio, value, spread, latency, cpuUs, samples }) => [
      ...[row.id, row.title, row.unit, row.loop, peer, ratio ?? "", cpuRatio ?? "", value, spread],
      ...[latency?.p50 ?? "", latency?.p99 ?? "", latency?.p999 ?? "", cpuUs ?? ""],
      samples.join(" "),
    ]),
  );
  return `${[head, ...rows].map((cells) => cells.map(csvCell).join(",")).join("\n")}\n`;
}

function csvCell(value: string | number): string {
  const text = String(value);
  return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** Returns a page without references to other files. `picture` is an SVG element. */
export function html(result: OverviewResult, picture: string): string {
  const tables = result.rows.map((row) => {
    const cells = row.figures.map((figure) => pageCellsOf(result, row, figure));
    const body = [PAGE_HEAD, ...cells]
      .map((line, at) => {
        const tag = at === 0 ? "th" : "td";
        return `<tr>${line.map((cell) => `<${tag}>${escaped(cell)}</${tag}>`).join("")}</tr>`;
      })
      .join("\n");
    return `<h2>${escaped(capitalized(row.title))}</h2>\n<p>${escaped(`${row.unit}${row.loop === "" ? "" : `, ${row.loop}`}`)}</p>\n<table>\n${body}\n</table>`;
  });
  const list = notes(result)
    .map((line) => `<li>${escaped(line)}</li>`)
    .join("\n");
  return `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Jindou, measured on ${escaped(result.at.slice(0, 10))}</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; }
th, td { padding: .2rem .8rem; text-align: right; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; }
svg { max-width: 100%; height: auto; }
</style>
<h1>Jindou and its peers</h1>
${picture}
${tables.join("\n")}
<h2>About these figures</h2>
<ul>
${list}
</ul>
</html>
`;
}

function escaped(text: string): string {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

/** Returns notes that a reader needs to judge the figures. */
function notes(result: OverviewResult): readonly string[] {
  const { machine, load, missing } = result;
  const noise =
    load.before > MAX_QUIET_LOAD // the load after the run is that of the run itself
      ? " Other programs were running, so rates and latencies are rough; compare the CPU ratios."
      : "";
  return [
    "The ratio is the value divided by that of raw uWebSockets.js in the same run, and the CPU ratio is the same for the processor time of an operation. Values are medians, ± is (largest − smallest) ÷ median.",
    `Measured ${result.at.slice(0, 16).replace("T", " ")} UTC with \`${result.command}\`, commit ${result.commit}: ${result.rounds} rounds of ${result.seconds} s, messages of ${result.payloadBytes} bytes.`,
    `${machine.cpu}, ${machine.cores} cores, ${machine.memoryGiB} GiB, ${machine.system}, Node.js ${machine.node}. Load average ${load.before.toFixed(1)} before and ${load.after.toFixed(1)} after the run.${noise}`,
    ...missing.map(({ name, reason }) => `Not measured: ${name}. ${reason}`),
  ];
}

/** Table head on pages, which have room for one more column than a terminal. */
const PAGE_HEAD: readonly string[] = [...HEAD, "not part of this work"];

function pageCellsOf(result: OverviewResult, row: OverviewRow, figure: PeerFigure): string[] {
  const lacks = result.peers.find(({ name }) => name === figure.peer)?.lacks ?? [];
  return [...cellsOf(result, row, figure, ""), lacks.join(", ")];
}

function cellsOf(
  { peers }: OverviewResult,
  row: OverviewRow,
  figure: PeerFigure,
  indent: string,
): string[] {
  const { peer, ratio, cpuRatio, value, spread, latency, cpuUs } = figure;
  const ms = (us: number | undefined) => (us === undefined ? "" : (us / 1000).toFixed(2));
  const title = peers.find(({ name }) => name === peer)?.title ?? peer;
  return [
    `${indent}${title}`,
    ratio === undefined ? "" : ratio.toFixed(2),
    cpuRatio === undefined ? "" : cpuRatio.toFixed(2),
    `${valueText(value)}${indent === "" ? "" : ` ${row.unit}`}`,
    `${(spread * 100).toFixed(0)} %`,
    ms(latency?.p50),
    ms(latency?.p99),
    ms(latency?.p999),
    cpuUs === undefined ? "" : cpuUs.toFixed(cpuUs < 10 ? 2 : 1),
  ];
}

export function markdownTable(
  head: readonly string[],
  rows: readonly (readonly string[])[],
): string {
  const line = (cells: readonly string[]) => `| ${cells.join(" | ")} |`;
  return `${[line(head), `|${head.map(() => "---|").join("")}`, ...rows.map(line)].join("\n")}\n`;
}

export function valueText(value: number): string {
  if (value >= 999_500) return `${(value / 1e6).toFixed(2)} M`;
  return value.toLocaleString("en-US", { maximumFractionDigits: value < 100 ? 1 : 0 });
}

function capitalized(text: string): string {
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}`;
}

/** Returns a paragraph about what a run will do and how long it will take. */
export function announcement(
  peers: readonly string[],
  works: readonly string[],
  seconds: number,
): string {
  return `Measures ${works.join(", ")} with ${peers.join(", ")}, about ${Math.round(seconds)} seconds.`;
}
