// Long work in short slices: says when a slice of the event loop is used up and lets everything else run. Slices that share `Turns` alternate:
// one of them per iteration of the event loop, however many wait. State: when the slice began; the slices that wait.

/** Steps between two reads of the clock. */
const STEPS_PER_READ = 4;

export class Turns {
  readonly #waiting: (() => void)[] = [];

  /** Slices wait. */
  get isBusy(): boolean {
    return this.#waiting.length > 0;
  }

  /** Resolves in a later iteration of the event loop: one caller per iteration, in the order of the calls. */
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
  readonly #ms: number;
  readonly #turns: Turns;
  #sinceMs = performance.now();
  #steps = 0;

  /** `ms`: how long the work may hold the event loop at a time. */
  constructor(ms = 1, turns = new Turns()) {
    this.#ms = ms;
    this.#turns = turns;
  }

  /** To be asked before each small step; when it says yes, `rest` before going on. */
  isUsedUp(): boolean {
    this.#steps += 1;
    if (this.#steps % STEPS_PER_READ !== 0) return false;
    return performance.now() - this.#sinceMs >= this.#ms;
  }

  async rest(): Promise<void> {
    await this.#turns.next();
    this.#sinceMs = performance.now();
  }

  /** Begins `step` with each item, resting in between. Resolves when all have ended; rejects with the first failure once all have begun. */
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
