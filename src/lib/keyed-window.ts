// A window per key: tasks begin in order while the size of the key's tasks under way is below a
// bound; keys do not wait for each other. The size of a task is known only once it has begun.
// State: the tasks under way and waiting of each busy key.

export interface Pass {
  /** Resolves when the task may begin. */
  readonly turn: Promise<void>;
  /** Sets the size. Call it at most once, after `turn`. */
  weigh(size: number): void;
  /** Ends the task; one that has not begun is cancelled: `turn` does not resolve. Call it once. */
  leave(): void;
}

interface Flow {
  size: number;
  count: number;
  readonly waiting: Set<() => void>;
}

export class KeyedWindow {
  readonly #max: number;
  readonly #maxWaiting: number;
  /** Tasks begun and without a size: at most two at once. */
  readonly #assumed: number;
  readonly #flows = new Map<string, Flow>();

  /** A task larger than `max` runs alone, or beside one that began before its size was known. */
  constructor(max: number, maxWaiting: number) {
    this.#max = max;
    this.#maxWaiting = maxWaiting;
    this.#assumed = max / 2;
  }

  /** Undefined: too many tasks wait. */
  enter(key: string): Pass | undefined {
    const flow = this.#flows.get(key) ?? newFlow();
    if (flow.waiting.size >= this.#maxWaiting) return undefined;
    this.#flows.set(key, flow);
    flow.count += 1;
    let size = 0;
    const resize = (to: number) => {
      flow.size += to - size;
      size = to;
    };
    let begin = () => {};
    const turn = new Promise<void>((resolve) => {
      begin = () => {
        resize(this.#assumed);
        resolve();
      };
    });
    flow.waiting.add(begin);
    this.#begin(flow);
    return {
      turn,
      weigh: (known) => {
        resize(known);
        this.#begin(flow);
      },
      leave: () => {
        flow.waiting.delete(begin);
        resize(0);
        flow.count -= 1;
        this.#begin(flow);
        if (flow.count === 0) this.#flows.delete(key);
      },
    };
  }

  #begin(flow: Flow): void {
    for (const begin of flow.waiting) {
      if (flow.size >= this.#max) return;
      flow.waiting.delete(begin);
      begin();
    }
  }
}

function newFlow(): Flow {
  return { size: 0, count: 0, waiting: new Set() };
}
