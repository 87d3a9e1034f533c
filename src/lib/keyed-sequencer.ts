// Keeps the calls for a key in order even if their preparations take different amounts of time.
// Each call waits until the preparations of the earlier calls have finished, but not for the work
// that those calls do afterwards.

export class KeyedSequencer {
  readonly #last = new Map<string, Promise<unknown>>();
  readonly #followers: "go_on" | "fail";

  constructor(followers: "go_on" | "fail" = "go_on") {
    this.#followers = followers;
  }

  get isEmpty(): boolean {
    return this.#last.size === 0;
  }

  isBusy(key: string): boolean {
    return this.#last.has(key);
  }

  /**
   * Waits for `ready`, and for the `ready` promises of earlier calls for the key. The code directly
   * after `await enter(…)` runs in the order of the calls. With `followers` = `fail`, the call
   * rejects if the `ready` promise of an earlier call rejects.
   */
  async enter<T>(key: string, ready: Promise<T>): Promise<T> {
    const previous = this.#last.get(key);
    const ordered = previous === undefined ? ready : this.#after(previous, ready);
    const turn = this.#followers === "fail" ? ordered : ordered.then(ignore, ignore);
    this.#last.set(key, turn);
    try {
      return await ordered;
    } finally {
      if (this.#last.get(key) === turn) this.#last.delete(key);
    }
  }

  async #after<T>(previous: Promise<unknown>, ready: Promise<T>): Promise<T> {
    ready.catch(ignore); // the caller receives the rejection after `previous` has settled
    await previous;
    return ready;
  }
}

function ignore(): void {}
