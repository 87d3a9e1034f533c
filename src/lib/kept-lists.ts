// A cache of lists. A list is read when it is needed, and kept until it changes. The total length
// of all lists is limited. A list that changes while it is being read is not kept.

import { LinkedMap } from "./linked-map.ts";
import type { MaybePromise } from "./maybe-promise.ts";

export class KeptLists<Item> {
  readonly #maxLength: number;
  /** The least recently used list comes first. */
  readonly #lists = new LinkedMap<string, readonly Item[]>();
  #length = 0;
  readonly #reads = new Map<string, Read>();

  /** `maxLength` limits the number of items in all lists plus the number of lists. */
  constructor(maxLength: number) {
    this.#maxLength = maxLength;
  }

  /**
   * Returns the kept list. If no list is kept for the key, calls `read`. Concurrent calls for one
   * key may each call `read`.
   */
  get(key: string, read: () => MaybePromise<readonly Item[]>): MaybePromise<readonly Item[]> {
    const kept = this.#lists.get(key);
    if (kept !== undefined) {
      this.#lists.renew(key, kept);
      return kept;
    }
    const list = read();
    if (list instanceof Promise) return this.#keepUnlessChanged(key, list);
    this.#keep(key, list);
    return list;
  }

  async #keepUnlessChanged(
    key: string,
    reading: Promise<readonly Item[]>,
  ): Promise<readonly Item[]> {
    const current = this.#reads.get(key) ?? { count: 0, hasChanged: false };
    this.#reads.set(key, current);
    current.count++;
    try {
      const list = await reading;
      if (!current.hasChanged) this.#keep(key, list);
      return list;
    } finally {
      if (--current.count === 0 && this.#reads.get(key) === current) this.#reads.delete(key);
    }
  }

  /** Drops the list of a key. Must be called after the list has changed. */
  forget(key: string): void {
    const current = this.#reads.get(key);
    if (current !== undefined) current.hasChanged = true;
    this.#reads.delete(key); // a read that begins now sees the change
    this.#drop(key);
  }

  /** Drops all lists. Must be called after a change that may affect every list. */
  clear(): void {
    for (const read of this.#reads.values()) read.hasChanged = true;
    this.#reads.clear();
    this.#lists.clear();
    this.#length = 0;
  }

  #keep(key: string, list: readonly Item[]): void {
    this.#drop(key);
    // Unlike a list that was filled item by item, a copy has no spare capacity.
    this.#lists.set(key, list.slice());
    this.#length += list.length + 1;
    while (this.#length > this.#maxLength && this.#lists.oldest !== undefined)
      this.#drop(this.#lists.oldest.key);
  }

  #drop(key: string): void {
    const list = this.#lists.get(key);
    if (list === undefined) return;
    this.#lists.delete(key);
    this.#length -= list.length + 1;
  }
}

interface Read {
  count: number;
  /** True if the list changed after one of the `count` reads began. */
  hasChanged: boolean;
}
