// Records in Redis that this build cannot decode, because they are damaged or were written by a
// newer build. They are left out of results, so that one unreadable record does not hide the
// others. State: the number of unreadable records.

import { BrokerError } from "../../broker/errors.ts";
import { limitedReports } from "../../lib/limited-reports.ts";

const REPORT_INTERVAL_MS = 60_000;

export class UnreadableRecords {
  readonly #report: (error: unknown, what: string) => void;
  #count = 0;

  /** `onError` is called for the first unreadable record, and after that at most once a minute. */
  constructor(onError: (error: unknown, what: string) => void) {
    this.#report = limitedReports(onError, REPORT_INTERVAL_MS);
  }

  /** Number of unreadable records since the start. A record is counted each time it is read. */
  get count(): number {
    return this.#count;
  }

  /**
   * Decodes items. Skips items that cannot be decoded. Rethrows a `BrokerError` other than
   * `internal`.
   */
  decodeReadable<Item, Result>(items: readonly Item[], decode: (item: Item) => Result): Result[] {
    const results: Result[] = [];
    for (const item of items) {
      try {
        results.push(decode(item));
      } catch (error) {
        this.#skip(error);
      }
    }
    return results;
  }

  #skip(error: unknown): void {
    if (error instanceof BrokerError && error.code !== "internal") throw error;
    this.#count += 1;
    this.#report(error, "A stored record cannot be decoded and is left out of the results");
  }
}
