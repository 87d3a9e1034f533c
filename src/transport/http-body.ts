// Collects the body of one HTTP request, up to a limit and within the budget of all. State: the blocks so far of a body that did not come in one
// piece, and what they take of the budget. Copies every byte once more than the kernel did when it comes in one piece, twice else.

import type { HttpResponse } from "uWebSockets.js";
import type { BodyBudget } from "./body-budget.ts";

/** Owner of a body. Its methods are called in native callbacks, each at most once, and only one of the last two. */
export interface BodyOwner {
  /** The last byte came, also after `discard`; called before `collected`. */
  ended(): void;
  /** Only a part came; called once. */
  partial(): void;
  collected(body: Uint8Array): void;
  /** It is longer than the limit, or there is no room for it beside the others. */
  givenUp(why: "too_large" | "no_room"): void;
}

/** Smallest and largest block: a body that trickles must neither cost an object for each byte nor hold much more than it sent. */
const MIN_BLOCK_BYTES = 1024;
const MAX_BLOCK_BYTES = 64 * 1024;

const NO_BLOCKS: Buffer[] = [];

export class BodyCollector {
  readonly #budget: BodyBudget;
  readonly #maxBytes: number;
  #blocks: Buffer[] = NO_BLOCKS;
  /** Of the last block. */
  #filled = 0;
  #size = 0;
  #charged = 0;
  #isPartial = false;
  #isOver = false;

  constructor(budget: BodyBudget, maxBytes: number) {
    this.#budget = budget;
    this.#maxBytes = maxBytes;
  }

  collect(res: HttpResponse, owner: BodyOwner): void {
    res.onData((chunk, isLast) => {
      if (isLast) owner.ended();
      if (this.#isOver) return; // refused, and the peer has not noticed yet
      if (this.#size + chunk.byteLength > this.#maxBytes) {
        this.discard();
        return owner.givenUp("too_large");
      }
      if (isLast && this.#size === 0) {
        this.#isOver = true;
        return owner.collected(Buffer.from(new Uint8Array(chunk)));
      }
      if (!this.#add(new Uint8Array(chunk))) {
        this.discard();
        return owner.givenUp("no_room");
      }
      if (isLast) return owner.collected(this.#whole());
      if (this.#isPartial) return;
      this.#isPartial = true;
      owner.partial();
    });
  }

  /** Gives up what was collected, and what is still to come. Safe to call twice. */
  discard(): void {
    this.#isOver = true;
    this.#blocks = NO_BLOCKS;
    this.#budget.give(this.#charged);
    this.#charged = 0;
  }

  #add(bytes: Uint8Array): boolean {
    const last = this.#blocks.at(-1);
    const room = last === undefined ? 0 : last.length - this.#filled;
    const fitting = bytes.subarray(0, room);
    const rest = bytes.subarray(fitting.length);
    last?.set(fitting, this.#filled);
    this.#filled += fitting.length;
    this.#size += bytes.length;
    if (rest.length === 0) return true;
    const length = Math.max(rest.length, this.#nextBlockBytes());
    if (!this.#budget.take(length)) return false;
    this.#charged += length;
    const block = Buffer.allocUnsafeSlow(length);
    block.set(rest);
    if (this.#blocks === NO_BLOCKS) this.#blocks = [];
    this.#blocks.push(block);
    this.#filled = rest.length;
    return true;
  }

  #nextBlockBytes(): number {
    return Math.min(Math.max(this.#size, MIN_BLOCK_BYTES), MAX_BLOCK_BYTES);
  }

  #whole(): Uint8Array {
    const body = Buffer.concat(this.#blocks, this.#size);
    this.discard();
    return body;
  }
}
