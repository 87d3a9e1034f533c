// Waiting: with an end, for a while, for somebody's word. State: none beside who waits.

import { BrokerError } from "../../../broker/errors.ts";

/** What `promise` gives, or `unavailable` after so many milliseconds; the promise itself goes on. */
export async function within<T>(
  promise: Promise<T>,
  timeoutMs: number,
  what: string,
): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const over = new Promise<never>((_, reject) => {
    timer = setTimeout(
      () => reject(new BrokerError("unavailable", { cause: new Error(what) })),
      timeoutMs,
    );
  });
  try {
    return await Promise.race([promise, over]);
  } finally {
    clearTimeout(timer);
  }
}

/** Resolves after so many milliseconds; keeps no process alive. */
export function pause(ms: number): Promise<void> {
  return new Promise((go) => {
    setTimeout(go, ms).unref();
  });
}

/** What several wait for and another one lets happen. */
export class Gate {
  readonly passed: Promise<void>;
  #open: () => void = () => {};

  constructor() {
    this.passed = new Promise((resolve) => {
      this.#open = resolve;
    });
  }

  open(): void {
    this.#open();
  }
}
