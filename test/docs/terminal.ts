// A terminal as a reader of the documentation has it: a bash to paste blocks into, and what it
// shows. Owns the shell and everything started in it; all of that is killed with the test.

import { spawn } from "node:child_process";
import { once } from "node:events";
import type { Test } from "tap";

export interface Terminal {
  /** Pastes `block` and resolves with what it printed once the prompt would be back. */
  run(block: string): Promise<string>;
  /** Pastes `block`, which goes on running. */
  type(block: string): void;
  /**
   * Resolves with the first match in everything shown so far or later; rejects when the shell ends
   * without one.
   */
  shows(pattern: RegExp): Promise<RegExpExecArray>;
  /** Everything shown so far. */
  screen(): string;
}

/** Kills the group when this process is gone, by whatever: its input ends then. */
const WARDEN = 'read -r _; kill -KILL "-$1"';

/** Opens a bash in `folder`. Of this process's environment only the search path reaches it. */
export function openTerminal(
  t: Test,
  folder: string,
  env: Readonly<Record<string, string>> = {},
): Terminal {
  const shell = spawn("bash", ["--norc", "--noprofile"], {
    cwd: folder,
    env: { PATH: process.env.PATH, HOME: folder, ...env },
    stdio: ["pipe", "pipe", "pipe"],
    detached: true, // a process group of its own, to be killed as one
  });
  let text = "";
  let pasted = 0;
  for (const stream of [shell.stdout, shell.stderr])
    stream.setEncoding("utf8").on("data", (chunk: string) => {
      text += chunk;
      shell.emit("shown");
    });
  shell.once("close", () => shell.emit("shown"));
  const { stdin: warden } = spawn("sh", ["-c", WARDEN, "sh", `${shell.pid}`], {
    stdio: ["pipe", "ignore", "ignore"],
    detached: true,
  });
  t.teardown(() => {
    killGroup(shell.pid);
    warden.end();
  });

  async function shows(pattern: RegExp): Promise<RegExpExecArray> {
    for (;;) {
      const match = pattern.exec(text);
      if (match !== null) return match;
      if (shell.exitCode !== null || shell.signalCode !== null)
        throw new Error(`the shell ended without ${pattern}:\n${text}`);
      await once(shell, "shown");
    }
  }

  return {
    async run(block) {
      pasted += 1;
      const start = text.length;
      shell.stdin.write(`${block}\necho; echo "prompt-${pasted}"\n`);
      const end = await shows(new RegExp(`^prompt-${pasted}$`, "m"));
      return text.slice(start, end.index).trim();
    },
    type(block) {
      shell.stdin.write(`${block}\n`);
    },
    shows,
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
