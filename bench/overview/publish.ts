// Publishes results: copies them and the picture to docs/benchmarks/, and replaces the tables
// between the markers in README.md and docs/benchmarks.md. A test compares the pages with the
// copied results.

import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { ROOT } from "../support/builds.ts";
import { putResult, readTargets, resultsIn, targetTable } from "../support/results.ts";
import { picture } from "./picture.ts";
import { markdown, ratioTable } from "./report.ts";
import { type OverviewResult, readResult, resultText, writeFiles } from "./results.ts";

const FOLDER = join(ROOT, "docs/benchmarks");
const END = "<!-- End of the written part. -->";

/** Part of a page that is generated from results. */
interface WrittenPart {
  readonly page: string;
  /** First line of the part. */
  readonly begin: string;
  /** Returns the text, from the results in docs/benchmarks/. */
  text(): string;
}

const begin = (source: string) =>
  `<!-- Written by npm run bench -- --publish${source}. Do not edit. -->`;

export const PARTS: readonly WrittenPart[] = [
  {
    page: "README.md",
    begin: begin(""),
    text() {
      const result = readResult(FOLDER);
      return `![Jindou and its peers, relative to raw uWebSockets.js](docs/benchmarks/picture.svg)\n\n${ratioTable(result)}\n${source(result)}`;
    },
  },
  {
    page: "docs/benchmarks.md",
    begin: begin(""),
    text: () =>
      `![Jindou and its peers, relative to raw uWebSockets.js](benchmarks/picture.svg)\n\n${markdown(readResult(FOLDER), 3)}`,
  },
  {
    page: "docs/benchmarks.md",
    begin: begin(" with single benchmarks"),
    text: () => targetTable(resultsIn(FOLDER)),
  },
];

/**
 * Publishes results: a folder of the overview, or files of single benchmarks. Throws if a file is
 * not a result or a page has no markers. For an overview, also throws if ECharts is not installed.
 */
export function publish(paths: readonly string[]): void {
  for (const path of paths)
    if (path.endsWith(".json") && !path.endsWith("results.json"))
      putResult(FOLDER, readTargets(path));
    else publishOverview(readResult(path));
  for (const part of PARTS) {
    const file = join(ROOT, part.page);
    const { before, after } = splitPage(readFileSync(file, "utf8"), part);
    writeFileSync(file, `${before}\n\n${part.text().trim()}\n\n${after}`);
  }
}

function publishOverview(result: OverviewResult): void {
  const svg = picture(result);
  if (svg === undefined) throw new Error("ECharts is not installed. Run .ci/charts.");
  writeFiles(FOLDER, { "results.json": resultText(result), "picture.svg": svg });
}

/** Returns the text between the part's markers. Throws if the page has no such markers. */
export function writtenPart(page: string, part: WrittenPart): string {
  return splitPage(page, part).written;
}

function splitPage(page: string, part: WrittenPart) {
  const from = page.indexOf(part.begin) + part.begin.length;
  const to = page.indexOf(END, from);
  if (from < part.begin.length || to < from)
    throw new Error(`${part.page} has no markers ${part.begin} … ${END}`);
  return {
    before: page.slice(0, from),
    written: page.slice(from, to).trim(),
    after: page.slice(to),
  };
}

function source({ at, command, machine, load }: OverviewResult): string {
  return `${at.slice(0, 10)}, \`${command}\`, ${machine.cores} cores, load average ${load.before.toFixed(1)} before the run.`;
}
