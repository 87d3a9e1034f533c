// Splits a long job into short slices, between which the event loop does other work. Jobs that
// share `Turns` take turns: one of them continues in each iteration of the event loop. State: the
// start of the current slice, and the jobs that wait.

/** Number of steps between two reads of the clock. */
const STEPS_PER_READ = 4;
/** Maximum length of a slice. */
const MAX_MS = 10;
/**
 * Fraction of the time of a busy event loop that a slice may use. With a fixed length, the job
 * would hardly proceed when each iteration of the loop takes a long time.
 */
const SHARE = 1 / 4;

/** A queue of jobs that continue one after the other. */
export class Turns {
  readonly #waiting: (() => void)[] = [];

  /** True if a job waits for its turn. */
  get isBusy(): boolean {
    return this.#waiting.length > 0;
  }

  /**
   * Resolves in a later iteration of the event loop. One call resolves in each iteration, in the
   * order of the calls.
   */
  next(): Promise<void> {
    return new Promise((resolve) => {
      if (this.#waiting.push(resolve) === 1) setImmediate(this.#wake);
    });
  }

  readonly #wake = (): void => {
    this.#waiting.shift()?.();
    if (this.#waiting.length > 0) setImmediate(this.#wake);
  };
}

/** The slices of one job. */
export class TimeSlice {
  readonly #minMs: number;
  readonly #turns: Turns;
  #ms: number;
  #sinceMs = performance.now();
  #steps = 0;

  /**
   * Creates the first slice. `ms` is the length of a slice while the event loop is not busy. When
   * it is busy, a slice may last up to `MAX_MS`.
   */
  constructor(ms = 1, turns = new Turns()) {
    this.#minMs = ms;
    this.#ms = ms;
    this.#turns = turns;
  }

  /** Returns true if the slice is used up. Must be called before each small step of the job. */
  shouldYield(): boolean {
    this.#steps += 1;
    if (this.#steps % STEPS_PER_READ !== 0) return false;
    return performance.now() - this.#sinceMs >= this.#ms;
  }

  /** Yields to other work and starts the next slice. */
  async yield(): Promise<void> {
    const yieldedAtMs = performance.now();
    await this.#turns.next();
    this.#sinceMs = performance.now();
    const share = (this.#sinceMs - yieldedAtMs) * SHARE;
    this.#ms = Math.max(this.#minMs, Math.min(share, MAX_MS));
  }

  /**
   * Calls `step` with each item, and yields between the calls when a slice is used up. The calls
   * run concurrently. Returns their results, or rejects with the first error after all have
   * started.
   */
  async each<Item, Result>(
    items: Iterable<Item>,
    step: (item: Item) => Promise<Result>,
  ): Promise<Result[]> {
    const results: Promise<Result>[] = [];
    for (const item of items) {
      if (this.shouldYield()) await this.yield();
      const result = step(item);
      result.catch(handledBelow);
      results.push(result);
    }
    return Promise.all(results);
  }
}

function handledBelow(): void {}
