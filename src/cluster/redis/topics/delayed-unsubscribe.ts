// Delayed release of items, cancelled if an item is wanted again. Over the limit the oldest is released at
// once. State: waiting items with their deadlines, one timer.

export class DelayedUnsubscribe<Item> {
  readonly #lingerMs: number;
  readonly #max: number;
  readonly #forget: (item: Item) => void;
  /** Deadlines, in order. */
  readonly #ends = new Map<Item, number>();
  #timer: NodeJS.Timeout | undefined;

  constructor(parts: {
    readonly lingerMs: number;
    readonly max: number;
    readonly forget: (item: Item) => void;
  }) {
    this.#lingerMs = parts.lingerMs;
    this.#max = parts.max;
    this.#forget = parts.forget;
  }

  /** No effect on a waiting item. */
  add(item: Item): void {
    if (this.#ends.has(item)) return;
    this.#ends.set(item, performance.now() + this.#lingerMs);
    if (this.#ends.size > this.#max) this.#end(this.#oldest?.[0]);
    this.#arm();
  }

  delete(item: Item): void {
    this.#ends.delete(item);
  }

  /** Releases nothing any more. */
  close(): void {
    clearTimeout(this.#timer);
    this.#ends.clear();
  }

  get #oldest(): readonly [Item, number] | undefined {
    return this.#ends.entries().next().value;
  }

  #arm(): void {
    const oldest = this.#oldest;
    if (this.#timer !== undefined || oldest === undefined) return;
    const leftMs = Math.max(0, oldest[1] - performance.now());
    this.#timer = setTimeout(() => {
      this.#timer = undefined;
      const now = performance.now();
      for (const [item, endsAt] of this.#ends)
        if (endsAt <= now) this.#end(item);
        else break;
      this.#arm();
    }, leftMs).unref();
  }

  #end(item: Item | undefined): void {
    if (item === undefined) return;
    this.#ends.delete(item);
    this.#forget(item);
  }
}
