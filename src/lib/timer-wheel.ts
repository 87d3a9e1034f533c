// Calls back for each item at its own time, or up to two seconds later. One timer ticks every
// second for all items, because a timer for each of tens of thousands of sessions would cost too
// much. The timer does not keep the process alive.

const TICK_MS = 1000;

export class TimerWheel<Item> {
  readonly #onDue: (item: Item) => void;
  /** Tick at which each item is due. Ticks are whole seconds of `performance.now()`. */
  readonly #ticks = new Map<Item, number>();
  readonly #slots = new Map<number, Set<Item>>();
  #lastTick = 0;
  #timer: NodeJS.Timeout | undefined;

  constructor(onDue: (item: Item) => void) {
    this.#onDue = onDue;
  }

  get size(): number {
    return this.#ticks.size;
  }

  /** Sets the time until an item is due. The callback may be up to two seconds late. */
  set(item: Item, waitMs: number): void {
    this.delete(item);
    const nowMs = performance.now();
    if (this.#timer === undefined) {
      this.#lastTick = Math.floor(nowMs / TICK_MS);
      this.#timer = setInterval(this.#tick, TICK_MS).unref();
    }
    const tick = Math.max(Math.ceil((nowMs + waitMs) / TICK_MS), this.#lastTick + 1);
    const slot = this.#slots.get(tick) ?? new Set();
    this.#slots.set(tick, slot.add(item));
    this.#ticks.set(item, tick);
  }

  delete(item: Item): void {
    const tick = this.#ticks.get(item);
    if (tick === undefined) return;
    this.#ticks.delete(item);
    const slot = this.#slots.get(tick);
    slot?.delete(item);
    if (slot?.size === 0) this.#slots.delete(tick);
    if (this.#ticks.size > 0) return;
    clearInterval(this.#timer);
    this.#timer = undefined;
  }

  readonly #tick = (): void => {
    const now = Math.floor(performance.now() / TICK_MS);
    while (this.#lastTick < now) {
      this.#lastTick += 1;
      for (const item of this.#slots.get(this.#lastTick) ?? []) {
        this.delete(item);
        this.#onDue(item);
      }
    }
  };
}
