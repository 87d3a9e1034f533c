// A semaphore: at most a fixed number of tasks run concurrently, and further tasks wait in order.
// Callers must limit the number of waiting tasks.

import type { MaybePromise } from "./maybe-promise.ts";
import type { PacedSteps } from "./paced-steps.ts";

export class Semaphore {
  readonly #pace: PacedSteps | undefined;
  #free: number;
  #waiting: (() => void)[] | undefined;

  /**
   * With `pace`, a task starts when the iteration of the event loop has time for another task.
   * Without `pace`, a task starts as soon as a permit is free, so that many short tasks may run in
   * one iteration.
   */
  constructor(permits: number, pace?: PacedSteps) {
    this.#free = permits;
    this.#pace = pace;
  }

  async run<T>(step: () => MaybePromise<T>): Promise<T> {
    const turn = this.enter();
    if (turn !== undefined) await turn;
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
    return this.#pace?.turn();
  }

  leave(): void {
    const isWaitedFor = this.#waiting !== undefined && this.#waiting.length > 0;
    if (this.#pace === undefined || !isWaitedFor) this.#release();
    else this.#pace.run(this.#release);
  }

  readonly #release = (): void => {
    const next = this.#waiting?.shift();
    if (next === undefined) this.#free += 1;
    else next(); // passes the permit on
  };

  #turn(): Promise<void> {
    return new Promise((go) => {
      this.#waiting ??= [];
      this.#waiting.push(go);
    });
  }
}
