// Runs many test files in one process, because the start of a process takes half a second, longer
// than most files need. Owns `t`, to which a test file adds its tests: the root of the process if
// the file runs alone, otherwise the suite of the file.

import { readdirSync, readFileSync } from "node:fs";
import root, { type Test } from "tap";
import { parse } from "yaml";
import { compiledUrl } from "./child.ts";

/** Parent of the tests of the file that is being loaded. Its end runs the file's teardowns. */
export let t: Test = root;

/** Timeout of one file. It is long enough for a machine that is busy with other tests. */
const FILE_MS = 900_000;
const REPOSITORY = new URL("../../", import.meta.url);
const FILE = /\.test\.ts$/;

/** Runs each file as a suite of this process, one after the other. */
export async function runFiles(
  t: Test,
  files: readonly URL[],
  nameOf = (file: URL) => file.href.slice(REPOSITORY.href.length),
): Promise<void> {
  t.setTimeout(0); // each file has its own timeout
  for (const file of files)
    await t.test(nameOf(file), { timeout: FILE_MS }, (suite) => load(suite, file));
}

/**
 * Runs the test files in the folder of the file `own` and below it, except those that `.taprc`
 * lists, which run in their own process.
 */
export async function runRoom(t: Test, own: string): Promise<void> {
  const { include } = parse(readFileSync(new URL(".taprc", REPOSITORY), "utf8")) as {
    readonly include: readonly string[];
  };
  const ownProcess = new Set([own, ...include.map((name) => new URL(name, REPOSITORY).href)]);
  const files = readdirSync(new URL(".", own), {
    ...{ recursive: true, encoding: "utf8" as const },
  })
    .filter((name) => FILE.test(name))
    .sort()
    .map((name) => new URL(name, own))
    .filter(({ href }) => !ownProcess.has(href));
  await runFiles(t, files);
}

/** Loads a test file so that its tests are added to `suite`. */
async function load(suite: Test, file: URL): Promise<void> {
  t = suite;
  await import(compiledUrl(file));
}
