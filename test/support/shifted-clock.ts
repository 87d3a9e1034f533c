// Starts broker processes whose wall clock a test sets while they run.

import { readFileSync, renameSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import type { Test } from "tap";
import { type ChildBroker, type Settings, spawnBroker, tempFolder } from "./broker.ts";
import { TYPESCRIPT_ARGS } from "./child.ts";

const PROGRAM = fileURLToPath(new URL("shifted-broker.ts", import.meta.url));

/** A broker process and its wall clock. */
export interface ShiftedBroker {
  /** The current process. */
  readonly broker: ChildBroker;
  /** Sets the wall clock to the real time plus `shiftMs`. Resolves when the process uses it. */
  shiftTo(shiftMs: number): Promise<void>;
  /** Kills the process and starts it again with the same data and clock. */
  restart(): Promise<void>;
}

/** Starts a broker process whose wall clock is `shiftMs` ahead of the real time. */
export async function spawnShifted(
  t: Test,
  settings: Settings = {},
  shiftMs = 0,
): Promise<ShiftedBroker> {
  const dataPath = await tempFolder(t);
  const file = `${await tempFolder(t)}/shift`;
  writeFileSync(file, String(shiftMs));
  const merged = { JINDOU_AUTH_CLIENTS: "none", ...settings, CLOCK_FILE: file };
  const spawn = () => spawnBroker(t, merged, dataPath, { program: [...TYPESCRIPT_ARGS, PROGRAM] });
  let broker = await spawn();
  return {
    get broker() {
      return broker;
    },
    async shiftTo(shiftMs) {
      writeFileSync(`${file}.next`, String(shiftMs));
      renameSync(`${file}.next`, file);
      while (readFileSync(`${file}.seen`, "utf8") !== String(shiftMs))
        await new Promise((resolve) => setTimeout(resolve, 2));
    },
    async restart() {
      await broker.kill();
      broker = await spawn();
    },
  };
}
