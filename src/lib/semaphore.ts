// A semaphore: a fixed number of tasks run concurrently, and further tasks wait in order. The
// number of waiting tasks is not limited here, so callers must limit it.

export class Semaphore {
  #free: number;
  #waiting: (() => void)[] | undefined;

  constructor(permits: number) {
    this.#free = permits;
  }

  async run<T>(step: () => Promise<T> | T): Promise<T> {
    if (this.#free > 0) this.#free -= 1;
    else await this.#turn();
    try {
      return await step();
    } finally {
      const next = this.#waiting?.shift();
      if (next === undefined) this.#free += 1;
      else next(); // hands the permit over, so that it does not become free
    }
  }

  #turn(): Promise<void> {
    return new Promise((go) => {
      this.#waiting ??= [];
      this.#waiting.push(go);
    });
  }
}
