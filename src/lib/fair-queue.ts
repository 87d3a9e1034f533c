// A queue that serves its keys in turn: each key with waiting items gets the same share of the work, however much it queues (deficit round robin).
// An item's size is its share of the work. State: the waiting items of each key, in the order of the keys' turns.

export interface Sized {
  readonly size: number;
  readonly bytes: number;
}

interface Flow<Item> {
  readonly items: Item[];
  size: number;
  bytes: number;
  /** Work that it may still do in this turn. */
  credit: number;
}

/** Work of one key's turn. An item that is larger waits for as many turns as it takes. */
const QUANTUM = 500;

export class FairQueue<Item extends Sized> {
  readonly #max: Sized;
  readonly #flows = new Map<string, Flow<Item>>();
  #size = 0;
  #bytes = 0;

  /** `max`: of all keys together. */
  constructor(max: Sized) {
    this.#max = max;
  }

  /** What is free is left to keys that queue less: a key may queue as much as is free, alone half of the queue. */
  isFull(key: string): boolean {
    const { size, bytes } = this.#flows.get(key) ?? { size: 0, bytes: 0 };
    return (
      size >= this.#max.size - this.#size ||
      bytes >= this.#max.bytes - this.#bytes
    );
  }

  push(key: string, item: Item): void {
    let flow = this.#flows.get(key);
    if (flow === undefined) {
      flow = { items: [], size: 0, bytes: 0, credit: QUANTUM };
      this.#flows.set(key, flow);
    }
    flow.items.push(item);
    this.#count(flow, item, 1);
  }

  /** The item whose turn it is, if it is no larger than `maxSize`; undefined: it is, or none waits. */
  take(maxSize = Number.POSITIVE_INFINITY): Item | undefined {
    for (const [key, flow] of this.#flows) {
      const [item] = flow.items;
      if (item === undefined) return undefined; // a flow without items is removed
      if (item.size > flow.credit) {
        flow.credit += QUANTUM;
        this.#flows.delete(key); // the loop comes to it again, behind the others
        this.#flows.set(key, flow);
        continue;
      }
      if (item.size > maxSize) return undefined;
      flow.items.shift();
      flow.credit -= item.size;
      this.#count(flow, item, -1);
      if (flow.items.length === 0) this.#flows.delete(key);
      return item;
    }
    return undefined;
  }

  #count(flow: Flow<Item>, { size, bytes }: Sized, sign: 1 | -1): void {
    flow.size += sign * size;
    flow.bytes += sign * bytes;
    this.#size += sign * size;
    this.#bytes += sign * bytes;
  }
}
