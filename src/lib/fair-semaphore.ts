// A semaphore that is fair between keys: a number of steps run at once, and the next permit goes
// round among the keys that wait, however many steps each of them has waiting. A permit is released
// in the next turn of the event loop, so that steps which end at once do not fill one. State: the
// free permits, and the waiting steps by key.

export class FairSemaphore {
  readonly #maxWaiting: number;
  readonly #full: () => Error;
  #free: number;
  /** The key whose turn is next comes first. */
  readonly #waiting = new Map<string, (() => void)[]>();

  /** Of one key `maxWaiting` steps wait at most; further ones reject with what `full` makes. */
  constructor(places: number, maxWaiting: number, full: () => Error) {
    this.#free = places;
    this.#maxWaiting = maxWaiting;
    this.#full = full;
  }

  /**
   * Runs `step` when it is its turn, at once where there is a place now, and gives back what it
   * gives.
   */
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
    const line = this.#waiting.get(key) ?? [];
    if (line.length >= this.#maxWaiting) throw this.#full();
    this.#waiting.set(key, line);
    return new Promise((go) => line.push(go));
  }

  #release(): void {
    const next = this.#waiting.entries().next();
    if (next.done) {
      this.#free += 1;
      return;
    }
    const [key, line] = next.value;
    this.#waiting.delete(key);
    const go = line.shift();
    if (line.length > 0) this.#waiting.set(key, line); // behind all others
    go?.(); // has this one's place
  }
}
