// Collects the body of one HTTP request, up to its limit and within the budget of all. State: the
// blocks received so far, and their share of the budget. Copies every byte once when the body
// arrives in one piece, else twice.

import type { HttpResponse } from "uWebSockets.js";

/** Memory for the partial bodies of all calls; shared by the listeners of a node. */
export class BodyBudget {
  readonly #maxBytes: number;
  #bytes = 0;

  constructor(maxBytes: number) {
    this.#maxBytes = maxBytes;
  }

  /** Bytes in use. */
  get bytes(): number {
    return this.#bytes;
  }

  /** False: `bytes` do not fit, and nothing was taken. */
  take(bytes: number): boolean {
    if (this.#bytes + bytes > this.#maxBytes) return false;
    this.#bytes += bytes;
    return true;
  }

  give(bytes: number): void {
    this.#bytes -= bytes;
  }
}

/** Its methods are called in native callbacks, each at most once, and one of the last two only. */
export interface BodyOwner {
  /** The last byte arrived, also after `discard`; called before `collected`. */
  ended(): void;
  /** The body did not arrive in one piece. */
  partial(): void;
  collected(body: Uint8Array): void;
  /** The body exceeds its limit or the budget. */
  rejected(why: "too_large" | "no_room"): void;
}

/** Block sizes: a slow body must neither cost an object per byte nor hold far more than it sent. */
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
      if (this.#isOver) return; // refused before
      if (this.#size + chunk.byteLength > this.#maxBytes) {
        this.discard();
        return owner.rejected("too_large");
      }
      if (isLast && this.#size === 0) {
        this.#isOver = true;
        return owner.collected(Buffer.from(new Uint8Array(chunk)));
      }
      if (!this.#add(new Uint8Array(chunk))) {
        this.discard();
        return owner.rejected("no_room");
      }
      if (isLast) return owner.collected(this.#whole());
      if (this.#isPartial) return;
      this.#isPartial = true;
      owner.partial();
    });
  }

  /** Drops what was collected and ignores the rest. Safe to call twice. */
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
