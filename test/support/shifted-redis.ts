// Starts Redis servers whose wall clock a test sets while they run. Compiles `shift-time.c`, which
// the servers load.

import { execFileSync, spawnSync } from "node:child_process";
import { renameSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import type { Test } from "tap";
import { tempFolder } from "./broker.ts";
import { type RedisServer, startRedis } from "./redis.ts";

const SOURCE = fileURLToPath(new URL("shift-time.c", import.meta.url));

/** Reason why the clock of Redis cannot be shifted, `false` if it can. */
export const NO_SHIFTED_REDIS =
  process.platform === "linux" && spawnSync("cc", ["--version"]).status === 0
    ? false
    : "a Redis with a different clock needs Linux and a C compiler under the name cc";

export interface ShiftedRedis {
  readonly redis: RedisServer;
  /** Sets the clock of the server to the real time plus `shiftMs`, at once. */
  shiftTo(shiftMs: number): void;
}

/** Starts a server whose wall clock is `shiftMs` ahead of the real time. */
export async function startShiftedRedis(t: Test, shiftMs = 0): Promise<ShiftedRedis> {
  const folder = await tempFolder(t);
  const [library, file] = [join(folder, "shift-time.so"), join(folder, "shift")];
  execFileSync("cc", ["-shared", "-fPIC", "-O2", "-o", library, SOURCE, "-ldl"]);
  const shiftTo = (nextMs: number) => {
    writeFileSync(`${file}.next`, String(Math.round(nextMs / 1000)));
    renameSync(`${file}.next`, file);
  };
  shiftTo(shiftMs);
  return { redis: await startRedis(t, [], { LD_PRELOAD: library, CLOCK_FILE: file }), shiftTo };
}
