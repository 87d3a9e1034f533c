// Helpers for promises and timers: timeout, restartable timer, sleep.

import { deferred } from "../lib/deferred.ts";
import { type ClientErrorCode, JindouError } from "./errors.ts";

export async function within<T>(
  ms: number,
  code: ClientErrorCode,
  work: T | Promise<T>,
): Promise<T> {
  const late = deferred<never>();
  const timer = setTimeout(() => late.reject(new JindouError(code)), ms);
  try {
    return await Promise.race([work, late.promise]);
  } finally {
    clearTimeout(timer);
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

/** The timer does not keep the process alive. */
export function sleep(ms: number): Promise<void> {
  return new Promise((resolve) => {
    // only the timers of Node have `unref`
    const timer: { unref?(): unknown } = setTimeout(resolve, ms);
    timer.unref?.();
  });
}
