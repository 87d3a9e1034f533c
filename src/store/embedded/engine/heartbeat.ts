// The file `heartbeat` in the data folder. While a process owns the folder, the file's text changes
// with every heartbeat. After a clean stop, the text contains the state of the database at that
// time. The modification time is not used, because only the user who owns the file may set it, and
// because the clock may jump.

import { closeSync, openSync, readFileSync, writeSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { createFile } from "./private-files.ts";

export const HEARTBEAT_FILE = "heartbeat";
/** Every text has the same length, so that a write never has to shorten the file. */
const TEXT_BYTES = 64;
const RUNNING = "running ";
const STOPPED = "stopped ";
const WATCH_MS = 250;

export class Heartbeat {
  readonly #path: string;
  readonly #token: string;
  #beats = 0;

  /** `token` must be different for each owner of the folder. */
  constructor(folder: string, token: string) {
    this.#path = join(folder, HEARTBEAT_FILE);
    this.#token = token;
  }

  beat(): void {
    this.#beats++;
    this.#write(`${RUNNING}${this.#token} ${this.#beats}`);
  }

  read(): string {
    return readHeartbeat(this.#path);
  }

  /**
   * Watches the file for `ms` milliseconds. Resolves to true if its content stays equal to `text`.
   */
  async stays(text: string, ms: number, signal?: AbortSignal): Promise<boolean> {
    for (const endMs = performance.now() + ms; performance.now() < endMs; ) {
      await pause(WATCH_MS, undefined, { signal });
      if (this.read() !== text) return false;
    }
    return true;
  }

  get isStopped(): boolean {
    return this.read().startsWith(STOPPED);
  }

  stop(state: string): void {
    this.#write(stoppedText(state));
  }

  #write(text: string): void {
    const fd = openForWriting(this.#path);
    try {
      writeSync(fd, padded(text), 0);
    } finally {
      closeSync(fd);
    }
  }
}

export function wasStoppedIn(folder: string, state: string): boolean {
  return readHeartbeat(join(folder, HEARTBEAT_FILE)) === padded(stoppedText(state));
}

/** Resolves when a process writes a heartbeat. Does not block the event loop. */
export async function nextBeat(folder: string): Promise<void> {
  const read = () => readFile(join(folder, HEARTBEAT_FILE), "utf8").catch(() => "");
  const first = await read();
  for (;;) {
    await pause(WATCH_MS);
    const text = await read();
    if (text !== first && text.startsWith(RUNNING)) return;
  }
}

function readHeartbeat(path: string): string {
  try {
    return readFileSync(path, "utf8");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return "";
    throw error;
  }
}

function openForWriting(path: string): number {
  try {
    return openSync(path, "r+");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "ENOENT") throw error;
    return createFile(path, "w");
  }
}

function stoppedText(state: string): string {
  return `${STOPPED}${state}`;
}

function padded(text: string): string {
  return `${text.padEnd(TEXT_BYTES - 1)}\n`;
}
