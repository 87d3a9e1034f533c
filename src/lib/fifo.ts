// A first-in, first-out queue. Unlike `shift` on a long array, taking an item rarely moves the
// other items.

/**
 * Minimum number of empty slots that are deleted together, because each deletion moves all items.
 */
const MIN_CUT = 64;

export class Fifo<Item> {
  /** The slots before index `#head` are empty. */
  readonly #items: (Item | undefined)[] = [];
  #head = 0;

  get length(): number {
    return this.#items.length - this.#head;
  }

  /** The item that is taken next, or `undefined` if the queue is empty. */
  get first(): Item | undefined {
    return this.#items[this.#head];
  }

  push(item: Item): void {
    this.#items.push(item);
  }

  /** Removes and returns the first item. Returns `undefined` if the queue is empty. */
  shift(): Item | undefined {
    if (this.length === 0) return undefined;
    const item = this.#items[this.#head];
    this.#items[this.#head] = undefined;
    this.#head += 1;
    if (this.#head >= MIN_CUT && this.#head * 2 >= this.#items.length) {
      this.#items.splice(0, this.#head);
      this.#head = 0;
    }
    return item;
  }
}
