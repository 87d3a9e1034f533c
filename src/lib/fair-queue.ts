// A queue that serves its keys in turn: each key with waiting items gets the same share of the
// work, however much it queues (deficit round robin). An item's size is its share of the work.
// State: the waiting items of each key, in the order of the keys' turns.

interface Sized {
  readonly size: number;
  readonly bytes: number;
}

interface Flow<Item> {
  /** Items before `head` are taken. */
  readonly items: (Item | undefined)[];
  head: number;
  size: number;
  bytes: number;
  /** Work left in this turn. */
  credit: number;
}

/** Work of one key's turn. A larger item waits for several turns. */
const QUANTUM = 500;
/** Taken items are removed in bulk, at least so many: `shift` of a long array moves all of it. */
const MIN_CUT = 64;

export class FairQueue<Item extends Sized> {
  readonly #max: Sized;
  readonly #flows = new Map<string, Flow<Item>>();
  #size = 0;
  #bytes = 0;

  /** `max`: of all keys together. */
  constructor(max: Sized) {
    this.#max = max;
  }

  /** A key may queue as much as is free, so that a single one takes half of the queue. */
  isFull(key: string): boolean {
    const { size, bytes } = this.#flows.get(key) ?? { size: 0, bytes: 0 };
    return size >= this.#max.size - this.#size || bytes >= this.#max.bytes - this.#bytes;
  }

  push(key: string, item: Item): void {
    let flow = this.#flows.get(key);
    if (flow === undefined) {
      flow = { items: [], head: 0, size: 0, bytes: 0, credit: QUANTUM };
      this.#flows.set(key, flow);
    }
    flow.items.push(item);
    this.#count(flow, item, 1);
  }

  /** The next item in turn; undefined when it is larger than `maxSize`, or the queue is empty. */
  take(maxSize = Number.POSITIVE_INFINITY): Item | undefined {
    let key = "";
    let flow: Flow<Item> | undefined;
    let rounds = Number.POSITIVE_INFINITY;
    for (const [itsKey, one] of this.#flows) {
      const itsRounds = roundsOf(one);
      if (itsRounds >= rounds) continue;
      key = itsKey;
      flow = one;
      rounds = itsRounds;
      if (rounds === 0) break;
    }
    const item = flow?.items[flow.head];
    if (flow === undefined || item === undefined) return undefined;
    this.#advance(flow, rounds);
    if (item.size > maxSize) return undefined;
    this.#remove(key, flow, item);
    return item;
  }

  /** Items that fit into the rest of their keys' turns, out of turn, at most `maxSize` in all. */
  takeSmall(maxSize: number): Item[] {
    const taken: Item[] = [];
    let left = maxSize;
    for (const [key, flow] of this.#flows)
      for (;;) {
        const item = flow.items[flow.head];
        if (item === undefined || item.size > Math.min(left, flow.credit)) break;
        this.#remove(key, flow, item);
        left -= item.size;
        taken.push(item);
      }
    return taken;
  }

  /** Takes out the first item of a key. */
  #remove(key: string, flow: Flow<Item>, item: Item): void {
    flow.items[flow.head] = undefined;
    flow.head += 1;
    flow.credit -= item.size;
    this.#count(flow, item, -1);
    if (flow.head === flow.items.length) this.#flows.delete(key);
    else if (flow.head >= MIN_CUT && flow.head * 2 >= flow.items.length) {
      flow.items.splice(0, flow.head);
      flow.head = 0;
    }
  }

  /** Advances to the turn of `next`, which is `rounds` full rounds away. */
  #advance(next: Flow<Item>, rounds: number): void {
    if (rounds > 0) for (const flow of this.#flows.values()) flow.credit += rounds * QUANTUM;
    for (const [key, flow] of this.#flows) {
      if (flow === next) return;
      flow.credit += QUANTUM;
      this.#flows.delete(key); // behind the others
      this.#flows.set(key, flow);
    }
  }

  #count(flow: Flow<Item>, { size, bytes }: Sized, sign: 1 | -1): void {
    flow.size += sign * size;
    flow.bytes += sign * bytes;
    this.#size += sign * size;
    this.#bytes += sign * bytes;
  }
}

/** Turns the first item must wait. */
function roundsOf<Item extends Sized>(flow: Flow<Item>): number {
  const size = flow.items[flow.head]?.size ?? 0;
  return Math.max(0, Math.ceil((size - flow.credit) / QUANTUM));
}
