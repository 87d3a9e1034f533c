// Runs the `jindou` command as a child process and collects its standard output, its standard error
// and its exit code.

import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import type { Test } from "tap";
import { tempFolder } from "../support/broker.ts";
import { tieToParent } from "../support/child.ts";

const MAIN = fileURLToPath(new URL("../../dist/main.js", import.meta.url));

/** Environment and input of a command. */
export interface Invocation {
  readonly env?: Readonly<Record<string, string>>;
  /** Text for standard input. */
  readonly input?: string;
  /** JavaScript text of a module that is loaded before the command. */
  readonly preload?: string;
  /** Command that starts the process, such as `nohup` or `unshare`. */
  readonly prefix?: readonly string[];
}

/** Returns settings for a node on free loopback ports with its own data folder. */
export async function nodeSettings(
  t: Test,
  drainTimeoutMs: number,
): Promise<Record<string, string>> {
  return {
    JINDOU_API_LISTEN: "127.0.0.1:0",
    JINDOU_CLIENT_LISTEN: "127.0.0.1:0",
    JINDOU_STORE_PATH: join(await tempFolder(t), "data"),
    JINDOU_ADMIN_PASSWORD: "hunter2",
    JINDOU_DRAIN_TIMEOUT_MS: String(drainTimeoutMs),
  };
}

/** Exit and output of a command. */
export interface Exit {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  readonly stdout: string;
  readonly stderr: string;
}

export type LogLine = Readonly<Record<string, unknown>>;

/** A command that may still be running. */
export interface JindouProcess {
  readonly child: ChildProcess;
  /**
   * Waits for the first log line with this message and returns its fields. Rejects if the process
   * exits without such a line.
   */
  logged(message: string): Promise<LogLine>;
  /** Waits like `logged`, but for the first log line for which `matches` returns true. */
  loggedLine(matches: (line: LogLine) => boolean): Promise<LogLine>;
  readonly exit: Promise<Exit>;
}

/** Runs the command with only PATH and `env` in its environment, and waits for its exit. */
export function jindou(
  t: Test,
  argv: readonly string[],
  invocation: Invocation = {},
): Promise<Exit> {
  return spawnJindou(t, argv, invocation).exit;
}

/** Starts the command. It is killed when the test ends. */
export function spawnJindou(
  t: Test,
  argv: readonly string[],
  { env = {}, input = "", preload, prefix = [] }: Invocation = {},
): JindouProcess {
  const preloadArgs =
    preload === undefined ? [] : [`--import=data:text/javascript,${encodeURIComponent(preload)}`];
  const command = [...prefix, process.execPath, ...preloadArgs, MAIN, ...argv];
  const [launcher = "", ...args] = command;
  const child = spawn(...tieToParent(launcher, args), {
    env: { PATH: process.env.PATH, ...env },
  });
  t.teardown(() => child.kill("SIGKILL"));
  child.stdin.on("error", () => child.stdin.destroy()); // most commands do not read standard input
  child.stdin.end(input);
  return follow(child);
}

/** Collects the output of the process. */
function follow(child: ChildProcess): JindouProcess {
  const output = { stdout: "", stderr: "" };
  for (const name of ["stdout", "stderr"] as const)
    child[name]?.setEncoding("utf8").on("data", (text: string) => {
      output[name] += text;
      child.emit("output");
    });
  const exit = once(child, "close").then(([code, signal]) => {
    child.emit("output");
    return { code, signal, ...output };
  });
  const lines = (): readonly LogLine[] =>
    output.stdout
      .split("\n")
      .filter((line) => line.startsWith("{") && line.endsWith("}"))
      .map((line) => JSON.parse(line));
  async function loggedLine(
    matches: (line: LogLine) => boolean,
    what = "the line",
  ): Promise<LogLine> {
    for (;;) {
      const line = lines().find(matches);
      if (line !== undefined) return line;
      if (child.exitCode !== null || child.signalCode !== null)
        throw new Error(`the process exited without logging ${what}: ${output.stderr}`);
      await once(child, "output");
    }
  }
  return {
    child,
    exit,
    loggedLine,
    logged: (message) => loggedLine(({ msg }) => msg === message, `"${message}"`),
  };
}
