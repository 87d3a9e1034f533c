// A map with a maximum size. A new entry in a full map replaces the oldest entry. `renew` makes an
// entry the newest; `set` on an existing entry does not change its age.

import { LinkedMap } from "./linked-map.ts";

export class BoundedMap<Key, Value> extends LinkedMap<Key, Value> {
  readonly #max: number;

  /** `max` must be at least 1. */
  constructor(max: number) {
    super();
    this.#max = max;
  }

  override set(key: Key, value: Value): void {
    super.set(key, value);
    const { oldest, size } = this;
    if (size > this.#max && oldest !== undefined) this.delete(oldest.key);
  }
}
