// Limits how often the same problem is reported. For example, every client that connects may cause
// a read of the same unreadable record.

/**
 * Returns a function that calls `report` for the first error with each text `what`. After that, it
 * calls `report` for at most one error with this text per `everyMs` milliseconds. The texts must be
 * constants, because all of them are remembered.
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
