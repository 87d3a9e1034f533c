// The type of a result that is either available immediately or promised.

/** A value, or a promise of it. A function with this result type rejects, and never throws. */
export type MaybePromise<T> = T | Promise<T>;
