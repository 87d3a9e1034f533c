// Semaphore: a fixed number of tasks run at once, further ones wait in order. State: free permits,
// waiting tasks. The queue has no limit of its own; callers must limit it.

export class Semaphore {
  #free: number;
  #waiting: (() => void)[] | undefined;

  constructor(places: number) {
    this.#free = places;
  }

  /** Runs `step` as soon as a permit is free, and returns its result. */
  async run<T>(step: () => Promise<T> | T): Promise<T> {
    if (this.#free > 0) this.#free -= 1;
    else await this.#turn();
    try {
      return await step();
    } finally {
      const next = this.#waiting?.shift();
      if (next === undefined) this.#free += 1;
      else next(); // passes the permit on
    }
  }

  #turn(): Promise<void> {
    return new Promise((go) => {
      this.#waiting ??= [];
      this.#waiting.push(go);
    });
  }
}
