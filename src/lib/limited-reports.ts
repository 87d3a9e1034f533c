// Limits how often the same problem is reported. One unreadable record, for example, may be met by
// every client that connects.

/**
 * Returns a function that passes on the first error with each text `what`, and after that at most
 * one in `everyMs` milliseconds. The texts must be constants, because all of them are remembered.
 */
export function limitedReports<Failure>(
  report: (error: Failure, what: string) => void,
  everyMs: number,
): (error: Failure, what: string) => void {
  const reportedAtMs = new Map<string, number>();
  return (error, what) => {
    const now = performance.now();
    if (now - (reportedAtMs.get(what) ?? Number.NEGATIVE_INFINITY) < everyMs) return;
    reportedAtMs.set(what, now);
    report(error, what);
  };
}
