// Reads this process's limit on open files, and keeps a reserve of file descriptors for when the
// limit is reached. State: the reserved descriptors.

import { closeSync, openSync, readdirSync, readFileSync } from "node:fs";
import { devNull } from "node:os";

/** Limit that is assumed if the system does not report a limit. macOS and Windows allow more. */
const FALLBACK_LIMIT = 4096;
/** Number of descriptors that are left free for WAL segments, the database, Redis and DNS. */
const RESERVED = 64;
/**
 * One additional descriptor is left free for every `RESERVED_SHARE` descriptors that the limit
 * allows.
 */
const RESERVED_SHARE = 64;

/**
 * Returns the soft limit on open files. Node.js raises the soft limit to the hard limit when the
 * process starts.
 */
function fileLimit(): number {
  try {
    const limits = readFileSync("/proc/self/limits", "utf8");
    const soft = /^Max open files\s+(\d+)/m.exec(limits)?.[1];
    return soft === undefined ? Number.POSITIVE_INFINITY : Number(soft);
  } catch {
    return FALLBACK_LIMIT; // not Linux
  }
}

function openFiles(): number {
  try {
    return readdirSync("/proc/self/fd").length;
  } catch {
    return RESERVED; // not Linux
  }
}

/**
 * Returns the number of sockets that the process may open. Must be called after the process has
 * opened its files.
 */
export function socketCapacity(): number {
  const limit = fileLimit();
  const reserve = openFiles() + RESERVED + Math.floor(limit / RESERVED_SHARE);
  return limit === Number.POSITIVE_INFINITY ? limit : Math.max(1, limit - reserve);
}

const RESERVE_SIZE = 8;
const CHECK_MS = 1000;

/**
 * Reserve of file descriptors. Without free descriptors, uWebSockets.js keeps trying to accept
 * waiting connections, which uses a whole CPU core. In that case, the reserve is released, and
 * connections are accepted and closed at once until other descriptors are free. The listening
 * socket is not closed, because its port cannot be bound again while connections are open.
 */
export class DescriptorReserve {
  #reserved: readonly number[] = [];
  #checks: NodeJS.Timeout | undefined;
  #isExhausted = false;

  get isExhausted(): boolean {
    return this.#isExhausted;
  }

  start(): void {
    this.#reserved = openSome(RESERVE_SIZE) ?? [];
    this.#checks = setInterval(() => this.#check(), CHECK_MS).unref();
  }

  stop(): void {
    clearInterval(this.#checks);
    closeAll(this.#reserved);
    this.#reserved = [];
  }

  #check(): void {
    const probes = openSome(this.#isExhausted ? 2 * RESERVE_SIZE : 1);
    if (probes === undefined) {
      closeAll(this.#reserved);
      this.#reserved = [];
    } else if (this.#isExhausted) {
      this.#reserved = probes.slice(0, RESERVE_SIZE);
      closeAll(probes.slice(RESERVE_SIZE));
    } else closeAll(probes);
    this.#isExhausted = probes === undefined;
  }
}

function openSome(count: number): readonly number[] | undefined {
  const opened: number[] = [];
  try {
    while (opened.length < count) opened.push(openSync(devNull, "r"));
    return opened;
  } catch {
    closeAll(opened);
    return undefined;
  }
}

function closeAll(descriptors: readonly number[]): void {
  for (const descriptor of descriptors) closeSync(descriptor);
}
