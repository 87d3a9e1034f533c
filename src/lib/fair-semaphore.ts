// A semaphore that is fair between keys: a fixed number of tasks run concurrently, and free permits
// go to the keys with waiting tasks in round-robin order. A permit is released with `setImmediate`,
// so that many short tasks do not all run in one iteration of the event loop.

import { LinkedMap } from "./linked-map.ts";

export class FairSemaphore {
  readonly #maxWaiting: number;
  readonly #full: () => Error;
  #free: number;
  /** Waiting tasks by key, in the order in which the keys get the next permits. */
  readonly #waiting = new LinkedMap<string, (() => void)[]>();

  /**
   * `run` rejects with the error that `full` creates if `maxWaiting` tasks for the key are already
   * waiting.
   */
  constructor(permits: number, maxWaiting: number, full: () => Error) {
    this.#free = permits;
    this.#maxWaiting = maxWaiting;
    this.#full = full;
  }

  async run<T>(key: string, step: () => Promise<T> | T): Promise<T> {
    if (this.#free > 0) this.#free -= 1;
    else await this.#turn(key);
    try {
      return await step();
    } finally {
      setImmediate(() => this.#release());
    }
  }

  #turn(key: string): Promise<void> {
    const queue = this.#waiting.get(key) ?? [];
    if (queue.length >= this.#maxWaiting) throw this.#full();
    this.#waiting.set(key, queue);
    return new Promise((go) => queue.push(go));
  }

  #release(): void {
    const { oldest } = this.#waiting;
    if (oldest === undefined) {
      this.#free += 1;
      return;
    }
    const { key, value: queue } = oldest;
    const go = queue.shift();
    if (queue.length > 0) this.#waiting.renew(key, queue);
    else this.#waiting.delete(key);
    go?.(); // passes the permit on
  }
}
