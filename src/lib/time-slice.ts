// Long work in short slices: tells when a slice of the event loop is used up and yields to other
// work. Slices that share `Turns` alternate, one per iteration of the event loop. State: the start
// of the slice; the waiting slices.

/** Steps between two reads of the clock. */
const STEPS_PER_READ = 4;
/**
 * The longest slice, and the share of a busy event loop that a slice may take: with a fixed length
 * the work would all but stop there.
 */
const MAX_MS = 10;
const SHARE = 1 / 4;

export class Turns {
  readonly #waiting: (() => void)[] = [];

  /** Slices wait. */
  get isBusy(): boolean {
    return this.#waiting.length > 0;
  }

  /**
   * Resolves in a later iteration of the event loop: one caller per iteration, in the order of the
   * calls.
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
  readonly #leastMs: number;
  readonly #turns: Turns;
  #ms: number;
  #sinceMs = performance.now();
  #steps = 0;

  /**
   * `ms`: how long the work may hold an event loop that is not busy at a time; a busy one for up
   * to MAX_MS.
   */
  constructor(ms = 1, turns = new Turns()) {
    this.#leastMs = ms;
    this.#ms = ms;
    this.#turns = turns;
  }

  /** Ask it before each small step; if true, `rest` before going on. */
  isUsedUp(): boolean {
    this.#steps += 1;
    if (this.#steps % STEPS_PER_READ !== 0) return false;
    return performance.now() - this.#sinceMs >= this.#ms;
  }

  async rest(): Promise<void> {
    const restMs = performance.now();
    await this.#turns.next();
    this.#sinceMs = performance.now();
    const share = (this.#sinceMs - restMs) * SHARE;
    this.#ms = Math.max(this.#leastMs, Math.min(share, MAX_MS));
  }

  /**
   * Begins `step` with each item, resting in between. Resolves when all have ended; rejects with
   * the first failure once all have begun.
   */
  async each<Item, Result>(
    items: Iterable<Item>,
    step: (item: Item) => Promise<Result>,
  ): Promise<Result[]> {
    const begun: Promise<Result>[] = [];
    for (const item of items) {
      if (this.isUsedUp()) await this.rest();
      const one = step(item);
      one.catch(handledBelow);
      begun.push(one);
    }
    return Promise.all(begun);
  }
}

function handledBelow(): void {}
