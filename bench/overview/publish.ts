// Puts a result into the pages: copies it and its picture to docs/benchmarks/, and replaces the
// tables between the marks in README.md and docs/benchmarks.md. A test compares the pages with the
// copied result.

import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { ROOT } from "../support/builds.ts";
import { picture } from "./picture.ts";
import { markdown, ratioTable } from "./report.ts";
import { type OverviewResult, readResult, resultText, writeFiles } from "./results.ts";

const FOLDER = join(ROOT, "docs/benchmarks");
const BEGIN = "<!-- Written by npm run bench -- --publish. Do not edit. -->";
const END = "<!-- End of the written part. -->";

/** Pages with a written part, and what it contains. */
export const PAGES: Readonly<Record<string, (result: OverviewResult) => string>> = {
  "README.md": (result) =>
    `![Jindou and its peers, relative to raw uWebSockets.js](docs/benchmarks/picture.svg)\n\n${ratioTable(result)}\n${source(result)}`,
  "docs/benchmarks.md": (result) =>
    `![Jindou and its peers, relative to raw uWebSockets.js](benchmarks/picture.svg)\n\n${markdown(result, 3)}`,
};

/**
 * Publishes the result in this folder or file. Throws if a page has no marks, or without ECharts.
 */
export function publish(path: string): void {
  const result = readResult(path);
  const svg = picture(result);
  if (svg === undefined) throw new Error("ECharts is not installed. Run .ci/charts.");
  writeFiles(FOLDER, { "results.json": resultText(result), "picture.svg": svg });
  for (const [page, write] of Object.entries(PAGES)) {
    const file = join(ROOT, page);
    const text = readFileSync(file, "utf8");
    const { before, after } = splitPage(text);
    writeFileSync(file, `${before}\n\n${write(result).trim()}\n\n${after}`);
  }
}

/** Returns the part of the page between the marks. Throws if the page has no marks. */
export function writtenPart(page: string): string {
  return splitPage(page).written;
}

function splitPage(page: string) {
  const from = page.indexOf(BEGIN) + BEGIN.length;
  const to = page.indexOf(END);
  if (from < BEGIN.length || to < from) throw new Error(`A page has no marks ${BEGIN} … ${END}`);
  return {
    before: page.slice(0, from),
    written: page.slice(from, to).trim(),
    after: page.slice(to),
  };
}

function source({ at, command, machine, load }: OverviewResult): string {
  return `${at.slice(0, 10)}, \`${command}\`, ${machine.cores} cores, load average ${load.before.toFixed(1)} before the run.`;
}
