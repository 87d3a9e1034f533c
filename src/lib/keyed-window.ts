// Work of each key begins in the order it came, while what is under way of that key is below a
// bound; keys do not wait for each other. The size of the work is known only once it has begun.
// State: the work under way and waiting of each busy key.

export interface Pass {
  /** Resolves when the work may begin. */
  readonly turn: Promise<void>;
  /** The work is that large. To be called at most once, after `turn`. */
  weigh(size: number): void;
  /** It is over; work that has not begun never will: `turn` does not resolve. To be called once. */
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
  /** Of work that has begun and is not weighed: two at once. */
  readonly #assumed: number;
  readonly #flows = new Map<string, Flow>();

  /** Work larger than `max` is done alone, or beside one other that began before it was weighed. */
  constructor(max: number, maxWaiting: number) {
    this.#max = max;
    this.#maxWaiting = maxWaiting;
    this.#assumed = max / 2;
  }

  /** Undefined: too much waits. */
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
