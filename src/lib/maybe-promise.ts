// A value or a promise of it. A type only.

/** A failure is always a rejection, never thrown. */
export type MaybePromise<T> = T | Promise<T>;
