// A bash with a terminal for the tests of the documentation: blocks are pasted into it and its
// output is read. It owns the shell and everything started in it, which is killed when the test
// ends.

import { spawn } from "node:child_process";
import { once } from "node:events";
import type { Test } from "tap";

/** A running shell. */
export interface Terminal {
  /** Pastes the block and returns what it printed when it has completed. */
  run(block: string): Promise<string>;
  /** Pastes the block and does not wait until it completes. */
  type(block: string): void;
  /**
   * Returns the first match in the output so far or later. Rejects if the shell exits without a
   * match.
   */
  untilShown(pattern: RegExp): Promise<RegExpExecArray>;
  /** Returns all output so far. */
  screen(): string;
}

/**
 * Shell script that kills the process group when its input ends, which happens when this process
 * exits in any way.
 */
const WATCHDOG = 'read -r _; kill -KILL "-$1"';

/** Opens a bash in `folder`. Its environment has only `PATH`, `HOME` and the variables in `env`. */
export function openTerminal(
  t: Test,
  folder: string,
  env: Readonly<Record<string, string>> = {},
): Terminal {
  const shell = spawn("bash", ["--norc", "--noprofile"], {
    cwd: folder,
    env: { PATH: process.env.PATH, HOME: folder, ...env },
    stdio: ["pipe", "pipe", "pipe"],
    detached: true, // a separate process group can be killed as a whole
  });
  let text = "";
  let blockCount = 0;
  for (const stream of [shell.stdout, shell.stderr])
    stream.setEncoding("utf8").on("data", (chunk: string) => {
      text += chunk;
      shell.emit("shown");
    });
  shell.once("close", () => shell.emit("shown"));
  const { stdin: watchdog } = spawn("sh", ["-c", WATCHDOG, "sh", `${shell.pid}`], {
    stdio: ["pipe", "ignore", "ignore"],
    detached: true,
  });
  t.teardown(() => {
    killGroup(shell.pid);
    watchdog.end();
  });

  async function untilShown(pattern: RegExp): Promise<RegExpExecArray> {
    for (;;) {
      const match = pattern.exec(text);
      if (match !== null) return match;
      if (shell.exitCode !== null || shell.signalCode !== null)
        throw new Error(`the shell exited without ${pattern}:\n${text}`);
      await once(shell, "shown");
    }
  }

  return {
    async run(block) {
      blockCount += 1;
      const start = text.length;
      shell.stdin.write(`${block}\necho; echo "prompt-${blockCount}"\n`);
      const end = await untilShown(new RegExp(`^prompt-${blockCount}$`, "m"));
      return text.slice(start, end.index).trim();
    },
    type(block) {
      shell.stdin.write(`${block}\n`);
    },
    untilShown,
    screen: () => text,
  };
}

function killGroup(pid: number | undefined): void {
  if (pid === undefined) return;
  try {
    process.kill(-pid, "SIGKILL");
  } catch (error) {
    if (!(error instanceof Error && "code" in error && error.code === "ESRCH")) throw error;
  }
}
