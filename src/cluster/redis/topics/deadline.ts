// Promise helpers: timeout, sleep.

import { BrokerError } from "../../../broker/errors.ts";

/** Settles with `promise`, or rejects `unavailable` after `timeoutMs`; the promise continues. */
export async function within<T>(promise: Promise<T>, timeoutMs: number, what: string): Promise<T> {
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

/** Resolves after `ms` milliseconds; does not keep the process alive. */
export function pause(ms: number): Promise<void> {
  return new Promise((go) => {
    setTimeout(go, ms).unref();
  });
}
