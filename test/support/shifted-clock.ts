// Starts broker processes whose wall clock a test sets while they run.

import { readFileSync, renameSync, writeFileSync } from "node:fs";
import type { Test } from "tap";
import {
  type ChildBroker,
  type LaunchOptions,
  type Settings,
  spawnBroker,
  tempFolder,
} from "./broker.ts";
import { compiledUrl } from "./child.ts";

const PRELOAD = compiledUrl(new URL("shift-clock.ts", import.meta.url));

/** Time within which a running process must use a new time. */
const SEEN_MS = 20_000;

/** Wall clock of one broker process at a time, as an offset from the real time. */
export class ShiftedClock {
  /** Environment of a process that uses the clock. */
  readonly settings: Settings;
  readonly #file: string;

  private constructor(file: string) {
    this.#file = file;
    this.settings = { CLOCK_FILE: file };
  }

  static async create(t: Test, shiftMs = 0): Promise<ShiftedClock> {
    const file = `${await tempFolder(t)}/shift`;
    writeFileSync(file, String(shiftMs));
    return new ShiftedClock(file);
  }

  /** Sets the clock for the next process. A running process adopts the new time with a delay. */
  set(shiftMs: number): void {
    writeFileSync(`${this.#file}.next`, String(shiftMs));
    renameSync(`${this.#file}.next`, this.#file);
  }

  /** Sets the clock. Resolves when the running process uses it. */
  async shiftTo(shiftMs: number): Promise<void> {
    this.set(shiftMs);
    const endMs = performance.now() + SEEN_MS;
    while (readFileSync(`${this.#file}.seen`, "utf8") !== String(shiftMs)) {
      if (performance.now() > endMs) throw new Error("the process does not use the new time");
      await new Promise((resolve) => setTimeout(resolve, 2));
    }
  }
}

/** Options that start the built program with the clock in its environment. */
export const SHIFTED: LaunchOptions = {
  program: [`--import=${PRELOAD}`, "dist/main.js", "start"],
};

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
  const clock = await ShiftedClock.create(t, shiftMs);
  const merged = { JINDOU_AUTH_CLIENTS: "none", ...settings, ...clock.settings };
  const spawn = () => spawnBroker(t, merged, dataPath, SHIFTED);
  let broker = await spawn();
  return {
    get broker() {
      return broker;
    },
    shiftTo: (shiftMs) => clock.shiftTo(shiftMs),
    async restart() {
      await broker.kill();
      broker = await spawn();
    },
  };
}
