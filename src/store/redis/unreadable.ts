// Records in Redis that this build cannot read: damaged, or written by a newer build. They are left
// out of what is read, so that one of them hides no other. State: how many reads met one, and when
// that was last reported.

import { BrokerError } from "../../broker/errors.ts";

const REPORT_EVERY_MS = 60_000;

export class UnreadableRecords {
  readonly #onError: (error: unknown, what: string) => void;
  #count = 0;
  #reportedAtMs = Number.NEGATIVE_INFINITY;

  /** `onError` gets the first failure, and then no more than one a minute. */
  constructor(onError: (error: unknown, what: string) => void) {
    this.#onError = onError;
  }

  /** Since the start; a record that is read twice counts twice. */
  get count(): number {
    return this.#count;
  }

  /**
   * What `decode` returns for each item that it can read, in order. Throws what is not `internal`.
   */
  leaveOut<Item, Result>(items: readonly Item[], decode: (item: Item) => Result): Result[] {
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
    if (!(error instanceof BrokerError) || error.code !== "internal") throw error;
    this.#count += 1;
    const now = performance.now();
    if (now - this.#reportedAtMs < REPORT_EVERY_MS) return;
    this.#reportedAtMs = now;
    this.#onError(error, "A stored record cannot be read and is left out");
  }
}
