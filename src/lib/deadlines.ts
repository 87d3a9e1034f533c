// Calls back for each item that was not deleted before its deadline. All items wait equally long,
// so they become due in the order in which they were added, and one timer is enough. The timer does
// not keep the process alive.

export class Deadlines<Item> {
  readonly #waitMs: number;
  readonly #onDue: (item: Item) => void;
  /** Time at which each item is due (`performance.now()`), in ascending order. */
  readonly #dueMs = new Map<Item, number>();
  #timer: NodeJS.Timeout | undefined;

  constructor(waitMs: number, onDue: (item: Item) => void) {
    this.#waitMs = waitMs;
    this.#onDue = onDue;
  }

  add(item: Item, nowMs: number): void {
    this.#dueMs.set(item, nowMs + this.#waitMs);
    this.#timer ??= setTimeout(this.#run, this.#waitMs).unref();
  }

  delete(item: Item): void {
    this.#dueMs.delete(item);
  }

  readonly #run = (): void => {
    this.#timer = undefined;
    const nowMs = performance.now();
    for (const [item, dueMs] of this.#dueMs) {
      if (dueMs > nowMs) {
        this.#timer = setTimeout(this.#run, dueMs - nowMs).unref();
        return;
      }
      this.#dueMs.delete(item);
      this.#onDue(item);
    }
  };
}
