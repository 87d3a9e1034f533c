// Runs a program of a few lines in its own process.

import { type ChildProcessWithoutNullStreams, spawn } from "node:child_process";
import { once } from "node:events";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { Test } from "tap";
import { tempFolder } from "./broker.ts";
import { tieToParent } from "./child.ts";

/**
 * Writes the program to a file with this name and runs it. Returns the output and the exit code.
 */
export async function run(
  t: Test,
  name: string,
  program: string,
  args: readonly string[] = [],
  command: readonly string[] = [process.execPath],
) {
  const path = join(await tempFolder(t), name);
  await writeFile(path, program);
  const [executable = "", ...options] = command;
  const env = { PATH: process.env.PATH, HOME: process.env.HOME };
  const child = spawn(...tieToParent(executable, [...options, path, ...args]), { env });
  return outputOf(child);
}

/** Waits for the end of a process. Returns its output and its exit code. */
export async function outputOf(child: ChildProcessWithoutNullStreams) {
  let output = "";
  let errors = "";
  child.stdout.setEncoding("utf8").on("data", (chunk: string) => {
    output += chunk;
  });
  child.stderr.setEncoding("utf8").on("data", (chunk: string) => {
    errors += chunk;
  });
  const [exitCode] = await once(child, "close");
  return { output, errors, exitCode };
}
