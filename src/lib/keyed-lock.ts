// A mutex per key, for rare and slow steps that read before they write. It must not be used for
// every message.

import { deferred } from "./deferred.ts";

export class KeyedLock {
  readonly #last = new Map<string, Promise<void>>();

  /** Runs `step` after every earlier step of `key` has settled, and returns its result. */
  async run<T>(key: string, step: () => Promise<T>): Promise<T> {
    const previous = this.#last.get(key);
    const turn = deferred();
    this.#last.set(key, turn.promise);
    await previous;
    try {
      return await step();
    } finally {
      if (this.#last.get(key) === turn.promise) this.#last.delete(key);
      turn.resolve();
    }
  }
}
