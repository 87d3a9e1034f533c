// Results that are available immediately or later. A step that does not wait creates no promise,
// because a node with thousands of steps per second would spend much of its time on promises.

/** A value or a promise of it. A function with this return type must reject instead of throwing. */
export type MaybePromise<T> = T | Promise<T>;

/** Works like `Promise.all`, but returns the values themselves if none of them is a promise. */
export function together<const T extends readonly unknown[]>(
  values: T,
): MaybePromise<{ -readonly [At in keyof T]: Awaited<T[At]> }> {
  for (const value of values) if (value instanceof Promise) return Promise.all(values);
  return values as { -readonly [At in keyof T]: Awaited<T[At]> }; // none of them is a promise
}

/** Passes the value to `next`, at once if it is not a promise. */
export function andThen<T, Result>(
  value: MaybePromise<T>,
  next: (value: T) => MaybePromise<Result>,
): MaybePromise<Result> {
  return value instanceof Promise ? value.then(next) : next(value);
}
