// Splits a long job into short slices. The event loop does other work between two slices. If
// several jobs share a `Turns`, one of them continues in each iteration of the event loop.

const STEPS_PER_READ = 4;
const MAX_MS = 5;
/**
 * Length of a slice, before the limits are applied, as a fraction of the time for which the job
 * waited for the slice.
 */
const SHARE = 1 / 4;

export class Turns {
  readonly #waiting: (() => void)[] = [];

  get isBusy(): boolean {
    return this.#waiting.length > 0;
  }

  /**
   * Resolves in a later iteration of the event loop. Each iteration resolves one call, in order.
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

export class TimeSlice {
  readonly #minMs: number;
  readonly #turns: Turns;
  #ms: number;
  #sinceMs = performance.now();
  #steps = 0;

  /**
   * `ms` is the length of the first slice and the minimum length of later slices. Later slices last
   * up to `MAX_MS` if the event loop is busy.
   */
  constructor(ms = 1, turns = new Turns()) {
    this.#minMs = ms;
    this.#ms = ms;
    this.#turns = turns;
  }

  /** Returns true if the job should yield. Must be called before each small step. */
  shouldYield(): boolean {
    this.#steps += 1;
    if (this.#steps % STEPS_PER_READ !== 0) return false;
    return performance.now() - this.#sinceMs >= this.#ms;
  }

  async yield(): Promise<void> {
    const yieldedAtMs = performance.now();
    await this.#turns.next();
    this.#sinceMs = performance.now();
    const share = (this.#sinceMs - yieldedAtMs) * SHARE;
    this.#ms = Math.max(this.#minMs, Math.min(share, MAX_MS));
  }

  /**
   * Calls `step` for each item, in slices. Makes all calls even if some fail, and then rejects with
   * the first error.
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
