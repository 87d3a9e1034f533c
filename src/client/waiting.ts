// Promise and timer helpers: deferred, timeout, restartable timer, sleep.

import { type ClientErrorCode, JindouError } from "./errors.ts";

export interface Deferred<T> {
  readonly promise: Promise<T>;
  resolve(value: T): void;
  reject(error: unknown): void;
}

/** A promise settled from outside; its rejection is never an unhandled one. */
export function deferred<T>(): Deferred<T> {
  let resolve: Deferred<T>["resolve"] = () => undefined;
  let reject: Deferred<T>["reject"] = () => undefined;
  const promise = new Promise<T>((yes, no) => {
    resolve = yes;
    reject = no;
  });
  promise.catch(() => undefined);
  return { promise, resolve, reject };
}

/** The result of `work`; rejects with `code` after `ms`. */
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

  /** Starts anew, also when running. */
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

/** Does not keep the process alive. */
export function sleep(ms: number): Promise<void> {
  return new Promise((resolve) => {
    const timer: { unref?(): unknown } = setTimeout(resolve, ms); // Node's has it
    timer.unref?.();
  });
}
