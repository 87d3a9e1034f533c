// The process's limit of open files, and a reserve for when it is reached. State: the reserved
// descriptors.

import { closeSync, openSync, readdirSync, readFileSync } from "node:fs";
import { devNull } from "node:os";

/** Assumed where the system does not report one: macOS and Windows allow more. */
const FALLBACK_LIMIT = 4096;
/** For files opened later: segments, the database, connections to Redis, DNS lookups. */
const RESERVED = 64;
const RESERVED_SHARE = 64;

/** RLIMIT_NOFILE; Node.js raises the soft limit to the hard one at its start. */
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
 * Sockets that fit under the limit of open files, beside the files open now and a reserve; at least
 * one. Call it after the process has opened its files.
 */
export function socketCapacity(): number {
  const limit = fileLimit();
  const reserve = openFiles() + RESERVED + Math.floor(limit / RESERVED_SHARE);
  return limit === Number.POSITIVE_INFINITY ? limit : Math.max(1, limit - reserve);
}

const KEPT = 8;
const CHECK_MS = 1000;

/**
 * Descriptors reserved for when there are no others. uWebSockets.js then retries to accept waiting
 * connections, which takes a whole core; so the reserve is released, and connections are accepted
 * and closed at once until there are descriptors again. (Closing the listening socket does not
 * help: the port could not be bound again while connections to it are open.)
 */
export class DescriptorReserve {
  #kept: readonly number[] = [];
  #checks: NodeJS.Timeout | undefined;
  #isExhausted = false;

  /** Whether new connections must be closed at once. */
  get isExhausted(): boolean {
    return this.#isExhausted;
  }

  start(): void {
    this.#kept = openSome(KEPT) ?? [];
    this.#checks = setInterval(() => this.#check(), CHECK_MS).unref();
  }

  stop(): void {
    clearInterval(this.#checks);
    closeAll(this.#kept);
    this.#kept = [];
  }

  #check(): void {
    const probes = openSome(this.#isExhausted ? 2 * KEPT : 1);
    if (probes === undefined) {
      closeAll(this.#kept);
      this.#kept = [];
    } else if (this.#isExhausted) {
      this.#kept = probes.slice(0, KEPT);
      closeAll(probes.slice(KEPT));
    } else closeAll(probes);
    this.#isExhausted = probes === undefined;
  }
}

/** `count` descriptors, or undefined when there are too few (EMFILE, ENFILE). */
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
