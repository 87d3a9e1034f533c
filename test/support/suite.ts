// Where a test file adds its tests, and with whose end what it starts goes away: the process, when
// the file runs alone, or one suite of a process that runs many files, one after the other:
// starting Node.js and loading what is tested takes half a second for each process, longer than
// most files need. State: which of them it is.

import { readdirSync, readFileSync } from "node:fs";
import root, { type Test } from "tap";
import { parse } from "yaml";
import { compiledUrl } from "./child.ts";

export let t: Test = root;

/** Longest that one file may take, on a machine that is busy with other tests. */
const FILE_MS = 900_000;
const REPOSITORY = new URL("../../", import.meta.url);
const FILE = /\.test\.ts$/;

/** Runs each file as a suite of this process. */
export async function runFiles(
  t: Test,
  files: readonly URL[],
  nameOf = (file: URL) => file.href.slice(REPOSITORY.href.length),
): Promise<void> {
  t.setTimeout(0); // each file has its own
  for (const file of files)
    await t.test(nameOf(file), { timeout: FILE_MS }, (suite) => load(suite, file));
}

/**
 * Runs the test files beside this one and below that `.taprc` does not give a process of their own.
 */
export async function runRoom(t: Test, own: string): Promise<void> {
  const { include } = parse(readFileSync(new URL(".taprc", REPOSITORY), "utf8")) as {
    readonly include: readonly string[];
  };
  const alone = new Set([own, ...include.map((name) => new URL(name, REPOSITORY).href)]);
  const files = readdirSync(new URL(".", own), {
    ...{ recursive: true, encoding: "utf8" as const },
  })
    .filter((name) => FILE.test(name))
    .sort()
    .map((name) => new URL(name, own))
    .filter(({ href }) => !alone.has(href));
  await runFiles(t, files);
}

/** What the file loads belongs to `suite`. */
async function load(suite: Test, file: URL): Promise<void> {
  t = suite;
  await import(compiledUrl(file));
}
