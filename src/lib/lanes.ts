// Lanes keep the order of calls that prepare for different lengths of time: each call goes on in the order it entered, and nobody waits
// for what a call does after its turn. State: the last entrant of each busy lane; a lane that is empty is forgotten.

export class Lanes {
  readonly #last = new Map<string, Promise<unknown>>();
  readonly #followers: "go_on" | "fail";

  /** `followers`: what becomes of those who wait behind a call whose `ready` is rejected. */
  constructor(followers: "go_on" | "fail" = "go_on") {
    this.#followers = followers;
  }

  /** Nobody waits in any lane. */
  get isEmpty(): boolean {
    return this.#last.size === 0;
  }

  /** Somebody waits in lane `key`. */
  isBusy(key: string): boolean {
    return this.#last.has(key);
  }

  /**
   * Waits for `ready` and for the turn of everybody who entered lane `key` before, then gives back what `ready` gave.
   * Whatever the caller does synchronously after the await is in lane order. A rejected `ready` gives up its turn, or takes those who entered
   * before with it.
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
    ready.catch(ignore); // its caller hears of it in its turn
    await before;
    return ready;
  }
}

function ignore(): void {}
