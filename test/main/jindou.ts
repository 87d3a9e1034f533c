// The `jindou` command as a child process, seen as a shell sees it: what it prints, on which
// stream, and how it exits.

import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { fileURLToPath } from "node:url";
import type { Test } from "tap";
import { tieToParent } from "../support/child.ts";

const MAIN = fileURLToPath(new URL("../../dist/main.js", import.meta.url));

export interface Invocation {
  readonly env?: Readonly<Record<string, string>>;
  readonly input?: string;
  /** A module to load before the command, as JavaScript text. */
  readonly preload?: string;
}

export interface Ended {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  readonly stdout: string;
  readonly stderr: string;
}

export interface Running {
  readonly child: ChildProcess;
  /**
   * Resolves with the first log line that has this message; rejects when the process ends without
   * one.
   */
  logged(message: string): Promise<Readonly<Record<string, unknown>>>;
  readonly ended: Promise<Ended>;
}

/** Runs the command to its end. Nothing of this process's environment but PATH reaches it. */
export function jindou(
  t: Test,
  argv: readonly string[],
  invocation: Invocation = {},
): Promise<Ended> {
  return spawnJindou(t, argv, invocation).ended;
}

/** Starts the command; it is killed with the test at the latest. */
export function spawnJindou(
  t: Test,
  argv: readonly string[],
  { env = {}, input = "", preload }: Invocation = {},
): Running {
  const early =
    preload === undefined ? [] : [`--import=data:text/javascript,${encodeURIComponent(preload)}`];
  const args = [...early, MAIN, ...argv];
  const child = spawn(...tieToParent(process.execPath, args), {
    env: { PATH: process.env.PATH, ...env },
  });
  t.teardown(() => child.kill("SIGKILL"));
  child.stdin.on("error", () => child.stdin.destroy()); // most commands never read it
  child.stdin.end(input);
  return follow(child);
}

function follow(child: ChildProcess): Running {
  const output = { stdout: "", stderr: "" };
  for (const name of ["stdout", "stderr"] as const)
    child[name]?.setEncoding("utf8").on("data", (text: string) => {
      output[name] += text;
      child.emit("output");
    });
  const ended = once(child, "close").then(([code, signal]) => {
    child.emit("output");
    return { code, signal, ...output };
  });
  const find = (message: string) =>
    output.stdout
      .split("\n")
      .filter((line) => line.startsWith("{") && line.endsWith("}"))
      .map((line) => JSON.parse(line))
      .find((line) => line.msg === message);
  return {
    child,
    ended,
    async logged(message) {
      while (find(message) === undefined) {
        if (child.exitCode !== null || child.signalCode !== null)
          throw new Error(`it ended without "${message}": ${output.stderr}`);
        await once(child, "output");
      }
      return find(message);
    },
  };
}
