// Starts child.ts and reads its lines.

import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import type { Test } from "tap";
import { TYPESCRIPT_ARGS, tieToParent } from "../../support/child.ts";

const CHILD = fileURLToPath(new URL("child.ts", import.meta.url));

export interface Line {
  readonly started?: number;
  readonly refused?: string;
  readonly problem?: string;
  readonly lost?: string;
  readonly pausing?: string;
  readonly waiting?: boolean;
  readonly code?: string;
  readonly created?: boolean;
  readonly groupCode?: string;
  readonly isSubscriber?: boolean;
  readonly id?: string;
  readonly clientMsgNo?: string;
  readonly messageSeq?: number;
  readonly messageId?: number;
  readonly acknowledged?: number;
  readonly lane?: number;
  readonly count?: number;
  readonly verdict?: string;
}

export interface Child {
  readonly process: ChildProcess;
  readonly lines: Line[];
  /**
   * Resolves with the first line, come or to come, that `match` likes; undefined when the process
   * ends without.
   */
  line(match: (line: Line) => boolean): Promise<Line | undefined>;
  /** kill -9, and wait for the end. */
  kill(): Promise<void>;
}

/** `before`: a command to run it under, e.g. prlimit with its arguments. */
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
  // Not inherited: where ours is a file, a limit on the size of files would hold for it too.
  child.stderr.pipe(process.stderr, { end: false });
  const lines: Line[] = [];
  const reader = createInterface(child.stdout);
  reader.on("line", (text) => {
    // The last line before a kill may be cut off.
    if (text.endsWith("}")) lines.push(JSON.parse(text) as Line);
  });
  const ended = once(reader, "close");
  t.teardown(() => child.kill("SIGKILL"));
  return {
    process: child,
    lines,
    async line(match) {
      for (;;) {
        const found = lines.find(match);
        if (found !== undefined) return found;
        const more = await Promise.race([
          once(reader, "line").then(() => true),
          ended.then(() => false),
        ]);
        if (!more) return lines.find(match);
      }
    },
    async kill() {
      child.kill("SIGKILL");
      await ended;
    },
  };
}
