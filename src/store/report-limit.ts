// Limits how often stores report what they cannot read. One unreadable record may be met by every
// client that connects.

const REPORT_EVERY_MS = 60_000;

type Report<Failure> = (error: Failure, what: string) => void;

/**
 * Returns a function that passes on the first error with each text `what`, and after that at most
 * one a minute. The texts must be constants, because all of them are remembered.
 */
export function onceAMinute<Failure>(report: Report<Failure>): Report<Failure> {
  const reportedAtMs = new Map<string, number>();
  return (error, what) => {
    const now = performance.now();
    if (now - (reportedAtMs.get(what) ?? Number.NEGATIVE_INFINITY) < REPORT_EVERY_MS) return;
    reportedAtMs.set(what, now);
    report(error, what);
  };
}
