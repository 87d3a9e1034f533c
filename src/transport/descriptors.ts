// How many files and sockets the process may have open, and what happens when all descriptors are in use. State: a few descriptors that are kept back.

import { closeSync, openSync, readdirSync, readFileSync } from "node:fs";
import { devNull } from "node:os";

/** Assumed where the system does not say: macOS and Windows allow more. */
const FALLBACK_LIMIT = 4096;
/** For files that are opened later: segments, the database, connections to Redis, lookups of names. */
const RESERVED = 64;
const RESERVED_SHARE = 64;

/** RLIMIT_NOFILE; Node.js has raised the soft limit to the hard one when it started. */
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
 * How many sockets fit under the limit of open files, beside what is open now and a reserve; at least one. Call it when the process has opened
 * what it works with.
 */
export function socketCapacity(): number {
  const limit = fileLimit();
  const reserve = openFiles() + RESERVED + Math.floor(limit / RESERVED_SHARE);
  return limit === Number.POSITIVE_INFINITY
    ? limit
    : Math.max(1, limit - reserve);
}

const KEPT = 8;
const LOOK_MS = 1000;

/**
 * Descriptors kept back for the case that there are no others. uWebSockets.js then tries again and again to accept what waits, which takes all
 * of a core; so they are given up, and connections can be accepted and closed at once until there are descriptors again. (To stop listening
 * is no way out: the port could not be had again while connections to it are open.)
 */
export class DescriptorReserve {
  #kept: readonly number[] = [];
  #looks: NodeJS.Timeout | undefined;
  #isExhausted = false;

  /** Whether connections are to be closed at once. */
  get isExhausted(): boolean {
    return this.#isExhausted;
  }

  start(): void {
    this.#kept = openSome(KEPT) ?? [];
    this.#looks = setInterval(() => this.#look(), LOOK_MS).unref();
  }

  stop(): void {
    clearInterval(this.#looks);
    closeAll(this.#kept);
    this.#kept = [];
  }

  #look(): void {
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

/** So many descriptors, or undefined when they cannot be had (EMFILE, ENFILE). */
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
