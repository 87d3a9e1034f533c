// The memory of a broker process, for tests of what it keeps. Counts what the process owns
// (RssAnon: heap, buffers, stacks); pages of the store's mapped file belong to the kernel's cache
// and come and go with it.

import { readFileSync } from "node:fs";
import { setTimeout as delay } from "node:timers/promises";
import type { Settings } from "../support/broker.ts";

const MIB = 1024 * 1024;
const STEP_MS = 200;
const CALM_LOOKS = 15;

/**
 * Settings of a broker whose memory is measured: it collects garbage at SIGUSR2, keeps 1 MiB for
 * young objects, and glibc gives every freed block of 16 KiB and more back to the kernel. By
 * default V8 holds up to 32 MiB for young objects until it has been idle for long, and glibc keeps
 * freed blocks for later (40 to 80 MiB here, and no more however long it runs): that would hide
 * what this looks for, memory in use.
 */
export const MEASURED: Settings = {
  MALLOC_ARENA_MAX: "1",
  MALLOC_MMAP_THRESHOLD_: "16384",
  MALLOC_TRIM_THRESHOLD_: "16384",
  NODE_OPTIONS: `--max-semi-space-size=1 --import=data:text/javascript,${encodeURIComponent(
    [
      'import { setFlagsFromString } from "node:v8";',
      'import { runInNewContext } from "node:vm";',
      'setFlagsFromString("--expose-gc");',
      'const collect = runInNewContext("gc");',
      'process.on("SIGUSR2", () => collect());',
    ].join("\n"),
  )}`,
};

/** What the process owns of the machine's memory now, in MiB. */
export function memoryMib(pid: number | undefined): number {
  const status = readFileSync(`/proc/${pid}/status`, "utf8");
  const kib = /^RssAnon:\s+(\d+) kB$/m.exec(status)?.[1];
  if (kib === undefined) throw new Error("no RssAnon in /proc");
  return (Number(kib) * 1024) / MIB;
}

/**
 * What it owns, in MiB, once that stops falling: garbage is collected until it has found no new low
 * for 3 s, or owns no more than `enoughMib`. The process needs `MEASURED`.
 */
export async function settledMib(pid: number | undefined, enoughMib = 0): Promise<number> {
  if (pid === undefined) throw new Error("there is no process");
  let lowest = Number.POSITIVE_INFINITY;
  for (let calm = 0; calm < CALM_LOOKS && lowest > enoughMib; calm++) {
    process.kill(pid, "SIGUSR2");
    await delay(STEP_MS); // the signal is handled in another process, which does not tell when
    const now = memoryMib(pid);
    if (now < lowest - 1) calm = 0;
    lowest = Math.min(lowest, now);
  }
  return lowest;
}
