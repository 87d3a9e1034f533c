// Promise helpers: a timeout and a pause.

import { BrokerError } from "../../../broker/errors.ts";

/**
 * Rejects with `unavailable` if `promise` takes longer than `timeoutMs`. The underlying work is not
 * cancelled.
 */
export async function within<T>(
  promise: Promise<T>,
  timeoutMs: number,
  reason: string,
): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const timeout = new Promise<never>((_, reject) => {
    timer = setTimeout(
      () => reject(new BrokerError("unavailable", { cause: new Error(reason) })),
      timeoutMs,
    );
  });
  try {
    return await Promise.race([promise, timeout]);
  } finally {
    clearTimeout(timer);
  }
}

export function pause(ms: number): Promise<void> {
  return new Promise((go) => {
    setTimeout(go, ms).unref();
  });
}
