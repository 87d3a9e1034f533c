// What may be at hand or still to come. A type only.

/** Now or later; a failure is always a rejection. */
export type Answer<T> = T | Promise<T>;
