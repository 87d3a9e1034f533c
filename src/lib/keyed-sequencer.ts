// Keeps calls of one key in order although their preparations take different times: each call
// continues in the order in which it entered, without waiting for what earlier calls do next.
// State: the last call per key.

export class KeyedSequencer {
  readonly #last = new Map<string, Promise<unknown>>();
  readonly #followers: "go_on" | "fail";

  /** `followers`: whether calls behind a rejected `ready` continue or fail too. */
  constructor(followers: "go_on" | "fail" = "go_on") {
    this.#followers = followers;
  }

  /** No call waits. */
  get isEmpty(): boolean {
    return this.#last.size === 0;
  }

  /** A call waits for `key`. */
  isBusy(key: string): boolean {
    return this.#last.has(key);
  }

  /**
   * Waits for `ready` and for the turns of earlier calls of `key`, then returns the result of
   * `ready`. Code that runs synchronously after the await is in order. After a rejected `ready` the
   * following calls continue or fail, as `followers` says.
   */
  async enter<T>(key: string, ready: Promise<T>): Promise<T> {
    const before = this.#last.get(key);
    const mine = before === undefined ? ready : this.#after(before, ready);
    const turn = this.#followers === "fail" ? mine : mine.then(ignore, ignore);
    this.#last.set(key, turn);
    try {
      return await mine;
    } finally {
      if (this.#last.get(key) === turn) this.#last.delete(key);
    }
  }

  async #after<T>(before: Promise<unknown>, ready: Promise<T>): Promise<T> {
    ready.catch(ignore); // reported to its caller in its turn
    await before;
    return ready;
  }
}

function ignore(): void {}
