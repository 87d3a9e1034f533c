// Promise and timer helpers: time limit, restartable timer, sleep.

import { deferred } from "../lib/deferred.ts";
import { type ClientErrorCode, JindouError } from "./errors.ts";

/**
 * Lateness of a timer, in milliseconds, above which the process was probably suspended. Also the
 * grace period after such a suspension.
 */
const LATE_MS = 250;

/**
 * Returns a monotonic time in milliseconds, or the wall-clock time if the platform has no monotonic
 * clock.
 */
export function now(): number {
  return typeof performance === "undefined" ? Date.now() : performance.now();
}

/**
 * Calls `expired` after `ms` unless the returned function is called before that. When the
 * machine wakes from sleep, timers run before replies that are already in the socket are read. The
 * grace period lets such replies arrive first.
 */
export function timeLimit(ms: number, expired: () => void): () => void {
  const dueAt = now() + ms;
  let timer = setTimeout(() => {
    timer = setTimeout(expired, now() - dueAt > LATE_MS ? LATE_MS : 0);
  }, ms);
  return () => clearTimeout(timer);
}

export async function within<T>(
  ms: number,
  code: ClientErrorCode,
  work: T | Promise<T>,
): Promise<T> {
  const late = deferred<never>();
  const stop = timeLimit(ms, () => late.reject(new JindouError(code)));
  try {
    return await Promise.race([work, late.promise]);
  } finally {
    stop();
  }
}

export class Timer {
  readonly #onTimeout: () => void;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(onTimeout: () => void) {
    this.#onTimeout = onTimeout;
  }

  get isRunning(): boolean {
    return this.#timer !== undefined;
  }

  start(ms: number): void {
    this.stop();
    this.#timer = setTimeout(() => {
      this.#timer = undefined;
      this.#onTimeout();
    }, ms);
  }

  stop(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
  }
}

/** Resolves after `ms`. The timer does not keep the process alive. */
export function sleep(ms: number): Promise<void> {
  return new Promise((resolve) => {
    // only Node timers have `unref`
    const timer: { unref?(): unknown } = setTimeout(resolve, ms);
    timer.unref?.();
  });
}
