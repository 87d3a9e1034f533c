// Reads stored data that may be damaged, or that a newer build may have written.

/** Returns the result of `read`. If `read` throws, reports the error and returns `undefined`. */
export function ifReadable<Result>(
  read: () => Result,
  what: string,
  onError: (error: Error, what: string) => void,
): Result | undefined {
  try {
    return read();
  } catch (error) {
    onError(error as Error, what);
    return undefined;
  }
}
