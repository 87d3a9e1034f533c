// A queue that is fair between keys (deficit round robin): each key with waiting items gets the
// same share of the work, no matter how many items it has queued.

import { Fifo } from "./fifo.ts";
import { LinkedMap } from "./linked-map.ts";

interface Sized {
  readonly size: number;
  readonly bytes: number;
}

interface Flow<Item> {
  readonly items: Fifo<Item>;
  size: number;
  bytes: number;
  credit: number;
}

/** Credit that a key gets per turn, in units of `size`. A larger item waits for several turns. */
const QUANTUM = 500;

export class FairQueue<Item extends Sized> {
  readonly #max: Sized;
  readonly #flows = new LinkedMap<string, Flow<Item>>();
  #size = 0;
  #bytes = 0;

  /** `max` limits the items of all keys together. */
  constructor(max: Sized) {
    this.#max = max;
  }

  /**
   * Returns true if the key must not queue more items. A key can fill at most half of the queue.
   */
  isFull(key: string): boolean {
    const { size, bytes } = this.#flows.get(key) ?? { size: 0, bytes: 0 };
    return size >= this.#max.size - this.#size || bytes >= this.#max.bytes - this.#bytes;
  }

  push(key: string, item: Item): void {
    let flow = this.#flows.get(key);
    if (flow === undefined) {
      flow = { items: new Fifo(), size: 0, bytes: 0, credit: QUANTUM };
      this.#flows.set(key, flow);
    }
    flow.items.push(item);
    this.#count(flow, item, 1);
  }

  /**
   * Removes and returns the next item. Returns `undefined` if no item is waiting or the next item
   * exceeds `maxSize`.
   */
  take(maxSize = Number.POSITIVE_INFINITY): Item | undefined {
    const { oldest } = this.#flows;
    if (oldest === undefined) return undefined;
    let { key, value: flow } = oldest;
    let rounds = roundsOf(flow);
    if (rounds > 0)
      for (const [candidateKey, candidate] of this.#flows) {
        const candidateRounds = roundsOf(candidate);
        if (candidateRounds >= rounds) continue;
        key = candidateKey;
        flow = candidate;
        rounds = candidateRounds;
        if (rounds === 0) break;
      }
    const item = flow.items.first;
    if (item === undefined) return undefined;
    this.#advance(flow, rounds);
    if (item.size > maxSize) return undefined;
    this.#remove(key, flow, item);
    return item;
  }

  /**
   * Removes and returns items out of turn. Their total size is at most `maxSize`, and each key has
   * enough credit for its items.
   */
  takeSmall(maxSize: number): Item[] {
    const items: Item[] = [];
    let freeSize = maxSize;
    for (const [key, flow] of this.#flows)
      for (;;) {
        const item = flow.items.first;
        if (item === undefined || item.size > Math.min(freeSize, flow.credit)) break;
        this.#remove(key, flow, item);
        freeSize -= item.size;
        items.push(item);
      }
    return items;
  }

  #remove(key: string, flow: Flow<Item>, item: Item): void {
    flow.items.shift();
    flow.credit -= item.size;
    this.#count(flow, item, -1);
    if (flow.items.length === 0) this.#flows.delete(key);
  }

  /**
   * Adds the credit of `rounds` turns to every key. Keys before `next` get one more turn and move
   * to the end.
   */
  #advance(next: Flow<Item>, rounds: number): void {
    if (rounds > 0) for (const [, flow] of this.#flows) flow.credit += rounds * QUANTUM;
    for (;;) {
      const { oldest } = this.#flows;
      if (oldest === undefined || oldest.value === next) return;
      oldest.value.credit += QUANTUM;
      this.#flows.renew(oldest.key, oldest.value);
    }
  }

  #count(flow: Flow<Item>, { size, bytes }: Sized, sign: 1 | -1): void {
    flow.size += sign * size;
    flow.bytes += sign * bytes;
    this.#size += sign * size;
    this.#bytes += sign * bytes;
  }
}

function roundsOf<Item extends Sized>(flow: Flow<Item>): number {
  const size = flow.items.first?.size ?? 0;
  return Math.max(0, Math.ceil((size - flow.credit) / QUANTUM));
}
