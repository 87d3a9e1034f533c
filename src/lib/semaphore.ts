// A semaphore: a fixed number of tasks run concurrently, and further tasks wait in order. Callers
// must limit the number of waiting tasks.

import type { MaybePromise } from "./maybe-promise.ts";

export class Semaphore {
  #free: number;
  #waiting: (() => void)[] | undefined;

  constructor(permits: number) {
    this.#free = permits;
  }

  async run<T>(step: () => MaybePromise<T>): Promise<T> {
    if (this.#free === 0) await this.#turn();
    else this.#free -= 1;
    try {
      return await step();
    } finally {
      this.leave();
    }
  }

  /** Waits for a free permit and takes it. Must be followed by one call to `leave`. */
  enter(): MaybePromise<void> {
    if (this.#free === 0) return this.#turn();
    this.#free -= 1;
  }

  leave(): void {
    const next = this.#waiting?.shift();
    if (next === undefined) this.#free += 1;
    else next(); // passes the permit on
  }

  #turn(): Promise<void> {
    return new Promise((go) => {
      this.#waiting ??= [];
      this.#waiting.push(go);
    });
  }
}
