// A mutex per key. State: the last step of each busy key. For rare, slow steps that read before
// they write; never for the message path.

export class KeyedLock {
  readonly #last = new Map<string, Promise<void>>();

  /** Runs `step` after every earlier step of `key` has settled, and returns its result. */
  async run<T>(key: string, step: () => Promise<T>): Promise<T> {
    const before = this.#last.get(key);
    let done = noop;
    const turn = new Promise<void>((resolve) => {
      done = resolve;
    });
    this.#last.set(key, turn);
    await before;
    try {
      return await step();
    } finally {
      if (this.#last.get(key) === turn) this.#last.delete(key);
      done();
    }
  }
}

function noop(): void {}
