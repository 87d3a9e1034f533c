// Error handling in the sweeps of the embedded store and the Redis store: an item that cannot be
// processed does not block the other items.

/** Number of failures after which a sweep ends, because the store itself has probably failed. */
const MAX_FAILURES = 100;

/** Runs all steps one after another, even if some fail. Then throws the first error, if any. */
export async function runEach(steps: readonly (() => Promise<unknown>)[]): Promise<void> {
  const failures = new SweepFailures(steps.length);
  for (const step of steps) await failures.attempt(step);
  failures.throwFirst();
}

/** The failures of one sweep. */
export class SweepFailures {
  readonly #max: number;
  #count = 0;
  #first: unknown;

  constructor(max = MAX_FAILURES) {
    this.#max = max;
  }

  /**
   * Returns the result of a step, or `undefined` if the step fails. Throws the first error of the
   * sweep once `max` steps have failed.
   */
  async attempt<Result>(step: () => Result | Promise<Result>): Promise<Result | undefined> {
    try {
      return await step();
    } catch (error) {
      this.note(error);
      this.#count += 1;
      if (this.#count >= this.#max) throw this.#first;
      return undefined;
    }
  }

  /** Records an error that must not end the sweep, however often it occurs. */
  note(error: unknown): void {
    this.#first ??= error;
  }

  /** Throws the first error of the sweep if there was an error. */
  throwFirst(): void {
    if (this.#first !== undefined) throw this.#first;
  }
}
