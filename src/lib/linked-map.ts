// A map that keeps its entries in the order in which they were added or renewed, and returns the
// oldest entry in constant time. A `Map` needs much longer if its oldest entries are often deleted,
// because each new iterator skips all entries that were deleted since the table was last rebuilt (9
// µs in a full cache of 20,000 entries).

interface Entry<Key, Value> {
  readonly key: Key;
  value: Value;
  older: Entry<Key, Value> | undefined;
  newer: Entry<Key, Value> | undefined;
}

export class LinkedMap<Key, Value> {
  readonly #entries = new Map<Key, Entry<Key, Value>>();
  #oldest: Entry<Key, Value> | undefined;
  #newest: Entry<Key, Value> | undefined;

  get size(): number {
    return this.#entries.size;
  }

  /** Entry that was added or renewed least recently. `undefined` if the map is empty. */
  get oldest(): { readonly key: Key; readonly value: Value } | undefined {
    return this.#oldest;
  }

  has(key: Key): boolean {
    return this.#entries.has(key);
  }

  get(key: Key): Value | undefined {
    return this.#entries.get(key)?.value;
  }

  /** Sets the value of a key. A new key becomes the newest. An existing key keeps its age. */
  set(key: Key, value: Value): void {
    const existing = this.#entries.get(key);
    if (existing !== undefined) {
      existing.value = value;
      return;
    }
    const older = this.#newest;
    const entry: Entry<Key, Value> = { key, value, older, newer: undefined };
    if (older === undefined) this.#oldest = entry;
    else older.newer = entry;
    this.#newest = entry;
    this.#entries.set(key, entry);
  }

  /** Sets the value of a key and makes the key the newest. */
  renew(key: Key, value: Value): void {
    this.delete(key);
    this.set(key, value);
  }

  delete(key: Key): boolean {
    const entry = this.#entries.get(key);
    if (entry === undefined) return false;
    const { older, newer } = entry;
    if (older === undefined) this.#oldest = newer;
    else older.newer = newer;
    if (newer === undefined) this.#newest = older;
    else newer.older = older;
    // A deleted entry must not keep other entries alive until the old generation is collected.
    entry.older = undefined;
    entry.newer = undefined;
    return this.#entries.delete(key);
  }

  clear(): void {
    this.#entries.clear();
    this.#oldest = undefined;
    this.#newest = undefined;
  }

  /** Yields the entries, oldest first. Entries may be changed during the iteration. */
  *[Symbol.iterator](): IterableIterator<readonly [Key, Value]> {
    for (const [key, { value }] of this.#entries) yield [key, value];
  }
}
