// Collects the body of one HTTP request, up to the size limit and within a budget that many
// requests share. Each byte is copied once if the body arrives in one piece, otherwise twice.

import { bytesOf, type DriverResponse } from "./driver.ts";

/** Memory budget for partial bodies, shared by all calls on one or more of a node's listeners. */
export class BodyBudget {
  readonly #maxBytes: number;
  #bytes = 0;

  constructor(maxBytes: number) {
    this.#maxBytes = maxBytes;
  }

  get bytes(): number {
    return this.#bytes;
  }

  reserve(bytes: number): boolean {
    if (this.#bytes + bytes > this.#maxBytes) return false;
    this.#bytes += bytes;
    return true;
  }

  release(bytes: number): void {
    this.#bytes -= bytes;
  }
}

/**
 * Callbacks for the events of one body. Each is called at most once, and only one of `collected`
 * and `rejected` is called.
 */
export interface BodyOwner {
  /** Called when the last byte has arrived, even after `discard`. Called before `collected`. */
  ended(): void;
  /** Called after the first piece if the body arrives in several pieces. */
  partial(): void;
  collected(body: Uint8Array): void;
  rejected(why: "too_large" | "no_room"): void;
}

/** Minimum size of a block. Without it, a slow body would need a block for every few bytes. */
const MIN_BLOCK_BYTES = 1024;
/**
 * Maximum size of a block, unless a chunk needs more. Larger blocks would reserve far more memory
 * than the peer has sent.
 */
const MAX_BLOCK_BYTES = 64 * 1024;

const NO_BLOCKS: Buffer[] = [];

export class BodyCollector {
  readonly #budget: BodyBudget;
  readonly #maxBytes: number;
  #blocks: Buffer[] = NO_BLOCKS;
  #filled = 0;
  #size = 0;
  #charged = 0;
  #isPartial = false;
  #isOver = false;

  constructor(budget: BodyBudget, maxBytes: number) {
    this.#budget = budget;
    this.#maxBytes = maxBytes;
  }

  collect(res: DriverResponse, owner: BodyOwner): void {
    res.onData((chunk, isLast) => {
      if (isLast) owner.ended();
      if (this.#isOver) return;
      if (this.#size + chunk.byteLength > this.#maxBytes) {
        this.discard();
        return owner.rejected("too_large");
      }
      if (isLast && this.#size === 0) {
        this.#isOver = true;
        return owner.collected(Buffer.from(bytesOf(chunk)));
      }
      if (!this.#add(bytesOf(chunk))) {
        this.discard();
        return owner.rejected("no_room");
      }
      if (isLast) return owner.collected(this.#finish());
      if (this.#isPartial) return;
      this.#isPartial = true;
      owner.partial();
    });
  }

  discard(): void {
    this.#isOver = true;
    this.#blocks = NO_BLOCKS;
    this.#budget.release(this.#charged);
    this.#charged = 0;
  }

  #add(bytes: Uint8Array): boolean {
    const last = this.#blocks.at(-1);
    const room = last === undefined ? 0 : last.length - this.#filled;
    const fitting = bytes.subarray(0, room);
    const remainder = bytes.subarray(fitting.length);
    last?.set(fitting, this.#filled);
    this.#filled += fitting.length;
    this.#size += bytes.length;
    if (remainder.length === 0) return true;
    const length = Math.max(remainder.length, this.#nextBlockBytes());
    if (!this.#budget.reserve(length)) return false;
    this.#charged += length;
    const block = Buffer.allocUnsafeSlow(length);
    block.set(remainder);
    if (this.#blocks === NO_BLOCKS) this.#blocks = [];
    this.#blocks.push(block);
    this.#filled = remainder.length;
    return true;
  }

  #nextBlockBytes(): number {
    return Math.min(Math.max(this.#size, MIN_BLOCK_BYTES), MAX_BLOCK_BYTES);
  }

  #finish(): Uint8Array {
    const body = Buffer.concat(this.#blocks, this.#size);
    this.discard();
    return body;
  }
}
