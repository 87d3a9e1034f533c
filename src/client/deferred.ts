// Promises: settled from outside, or given only so much time. No state but theirs.

import { type ClientErrorCode, JindouError } from "./errors.ts";

export interface Deferred<T> {
  readonly promise: Promise<T>;
  resolve(value: T): void;
  reject(error: unknown): void;
}

/** A rejection that nobody looks at is no unhandled one: who looks still gets it. */
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

/** Does work that races against `late`, which rejects with `code` after `ms`. */
export async function within<T>(
  ms: number,
  code: ClientErrorCode,
  work: (late: Promise<never>) => Promise<T>,
): Promise<T> {
  const late = deferred<never>();
  const timer = setTimeout(() => late.reject(new JindouError(code)), ms);
  try {
    return await work(late.promise);
  } finally {
    clearTimeout(timer);
  }
}
