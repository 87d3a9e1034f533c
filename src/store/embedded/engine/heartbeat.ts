// The file `heartbeat` in the data folder. While a process owns the folder, the text of the file
// changes at every beat. After a clean stop, the text names the state in which the database was
// left. The modification time is not used, because only the owner of the file may set it, and
// because the clock may jump.

import { closeSync, openSync, readFileSync, writeSync } from "node:fs";
import { join } from "node:path";
import { createFile } from "./private-files.ts";

export const HEARTBEAT_FILE = "heartbeat";
/** Every text has the same length, so that a write never has to shorten the file. */
const TEXT_BYTES = 64;
const STOPPED = "stopped ";

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
    this.#write(`running ${this.#token} ${this.#beats}`);
  }

  read(): string {
    return readHeartbeat(this.#path);
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
