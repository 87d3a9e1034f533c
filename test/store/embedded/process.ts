// Starts child.ts and reads the lines that it prints.

import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import type { Test } from "tap";
import { TYPESCRIPT_ARGS, tieToParent } from "../../support/child.ts";

const CHILD = fileURLToPath(new URL("child.ts", import.meta.url));

/** A line that child.ts prints. */
export interface Line {
  readonly started?: number;
  readonly refused?: string;
  readonly problem?: string;
  readonly lost?: string;
  readonly pausing?: string;
  readonly waiting?: boolean;
  readonly code?: string;
  readonly created?: boolean;
  readonly id?: string;
  readonly clientMsgNo?: string;
  readonly messageSeq?: number;
  readonly messageId?: number;
  readonly acknowledged?: number;
  readonly worker?: number;
  readonly count?: number;
  readonly verdict?: string;
}

/** A running child. */
export interface Child {
  readonly process: ChildProcess;
  readonly lines: Line[];
  /**
   * Resolves with the first line for which `match` returns true, even if it was printed earlier.
   * Resolves with `undefined` if the process ends without such a line.
   */
  line(match: (line: Line) => boolean): Promise<Line | undefined>;
  /** Kills the process with SIGKILL and waits until it has ended. */
  kill(): Promise<void>;
}

/** Starts the child. `before` is a command that runs it, for example prlimit with its arguments. */
export function startChild(
  t: Test,
  args: readonly string[],
  before: readonly string[] = [],
): Child {
  const node = [process.execPath, ...TYPESCRIPT_ARGS, CHILD, ...args];
  const [command = "", ...rest] = [...before, ...node];
  const child = spawn(...tieToParent(command, rest), {
    stdio: ["pipe", "pipe", "pipe"],
  });
  // The child does not inherit standard error, because a limit on the file size would also apply if
  // standard error is a file.
  child.stderr.pipe(process.stderr, { end: false });
  const lines: Line[] = [];
  const reader = createInterface(child.stdout);
  reader.on("line", (text) => {
    // The last line before a kill may be incomplete.
    if (text.endsWith("}")) lines.push(JSON.parse(text) as Line);
  });
  const ended = once(reader, "close");
  t.teardown(() => child.kill("SIGKILL"));
  return {
    process: child,
    lines,
    async line(match) {
      for (;;) {
        const matching = lines.find(match);
        if (matching !== undefined) return matching;
        const hasLine = await Promise.race([
          once(reader, "line").then(() => true),
          ended.then(() => false),
        ]);
        if (!hasLine) return lines.find(match);
      }
    },
    async kill() {
      child.kill("SIGKILL");
      await ended;
    },
  };
}
