// Measures the memory of a broker process: the anonymous memory (RssAnon) for heap, buffers and
// stacks. Pages of the store's mapped file are not counted, because they belong to the kernel's
// page cache.

import { readFileSync } from "node:fs";
import { setTimeout as delay } from "node:timers/promises";
import type { Settings } from "../support/broker.ts";

const MIB = 1024 * 1024;
/** Time between two garbage collections. */
const STEP_MS = 200;
/**
 * Number of successive collections that may each free at most 1 MiB before the memory counts as
 * stable.
 */
const STABLE_STEPS = 15;

/**
 * Settings of a broker whose memory is measured. The broker collects garbage on SIGUSR2, V8
 * reserves only 1 MiB for young objects, and glibc returns every freed block of 16 KiB or more to
 * the kernel. With the defaults, V8 reserves up to 32 MiB for young objects and glibc keeps freed
 * blocks (40 to 80 MiB here). That memory would hide growth of the memory in use.
 */
export const MEASURED_SETTINGS: Settings = {
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

/** Returns the anonymous memory of the process in MiB. */
export function memoryMib(pid: number | undefined): number {
  const status = readFileSync(`/proc/${pid}/status`, "utf8");
  const kib = /^RssAnon:\s+(\d+) kB$/m.exec(status)?.[1];
  if (kib === undefined) throw new Error("/proc has no field RssAnon for the process");
  return (Number(kib) * 1024) / MIB;
}

/**
 * Collects garbage until the lowest value has not fallen by more than 1 MiB for 3 s, or until the
 * process uses `enoughMib` or less. Returns the lowest value in MiB. The process must run with
 * `MEASURED_SETTINGS`.
 */
export async function settledMib(pid: number | undefined, enoughMib = 0): Promise<number> {
  if (pid === undefined) throw new Error("there is no process");
  let lowest = Number.POSITIVE_INFINITY;
  for (let stable = 0; stable < STABLE_STEPS && lowest > enoughMib; stable++) {
    process.kill(pid, "SIGUSR2");
    await delay(STEP_MS); // the other process does not report when its collection is done
    const now = memoryMib(pid);
    if (now < lowest - 1) stable = 0;
    lowest = Math.min(lowest, now);
  }
  return lowest;
}
