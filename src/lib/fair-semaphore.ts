// A semaphore that is fair between keys: a fixed number of tasks run at once, and permits go round
// robin to the keys with waiting tasks. A permit is released in the next turn of the event loop, so
// that tasks which end at once do not fill one turn. State: free permits, waiting tasks by key.

export class FairSemaphore {
  readonly #maxWaiting: number;
  readonly #full: () => Error;
  #free: number;
  /** In the order of their turns. */
  readonly #waiting = new Map<string, (() => void)[]>();

  /** At most `maxWaiting` tasks of one key wait; further ones reject with the error of `full`. */
  constructor(places: number, maxWaiting: number, full: () => Error) {
    this.#free = places;
    this.#maxWaiting = maxWaiting;
    this.#full = full;
  }

  /** Runs `step` in its key's turn, at once if a permit is free, and returns its result. */
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
    const next = this.#waiting.entries().next();
    if (next.done) {
      this.#free += 1;
      return;
    }
    const [key, queue] = next.value;
    this.#waiting.delete(key);
    const go = queue.shift();
    if (queue.length > 0) this.#waiting.set(key, queue); // behind all others
    go?.(); // passes the permit on
  }
}
