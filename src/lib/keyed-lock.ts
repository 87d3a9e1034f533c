// One mutex per key, for rare and slow steps that read before they write. Must not be used for
// every message.

import { deferred } from "./deferred.ts";
import type { MaybePromise } from "./maybe-promise.ts";

export class KeyedLock {
  readonly #last = new Map<string, Promise<void>>();

  /** Runs `step` after all earlier steps of `key` have settled, and returns its result. */
  run<T>(key: string, step: () => Promise<T>): Promise<T>;
  /** Runs `step` at once if no earlier step of `key` is running. */
  run<T>(key: string, step: () => MaybePromise<T>): MaybePromise<T>;
  run<T>(key: string, step: () => MaybePromise<T>): MaybePromise<T> {
    const previous = this.#last.get(key);
    if (previous !== undefined) return this.#hold(key, previous, step);
    let result: MaybePromise<T>;
    try {
      result = step();
    } catch (error) {
      return Promise.reject(error);
    }
    return result instanceof Promise ? this.#hold(key, undefined, () => result) : result;
  }

  async #hold<T>(
    key: string,
    previous: Promise<void> | undefined,
    step: () => MaybePromise<T>,
  ): Promise<T> {
    const turn = deferred();
    this.#last.set(key, turn.promise);
    if (previous !== undefined) await previous;
    try {
      return await step();
    } finally {
      if (this.#last.get(key) === turn.promise) this.#last.delete(key);
      turn.resolve();
    }
  }
}
