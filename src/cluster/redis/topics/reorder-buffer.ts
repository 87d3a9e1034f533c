// Reorder buffer of one channel: frames ahead of their turn, by publication number. All buffers of
// a node share one byte budget; frames over it are dropped and read from the store. State: the
// frames.

import {
  kindOf,
  MESSAGE_FRAME,
  messageIdOf,
  messageSeqOf,
  REMOVAL_FRAME,
} from "../../../redis/wire.ts";

/** Bytes of all buffered frames of the node, and their limit. */
export interface BufferedBytes {
  used: number;
  readonly max: number;
}

/** Approximate memory of a frame in addition to its bytes. */
const OVERHEAD_BYTES = 200;

export class ReorderBuffer {
  readonly #budget: BufferedBytes;
  readonly #frames = new Map<number, Buffer>();
  /** How many of them are messages that no store has. */
  #unstored = 0;
  #bytes = 0;
  /** A frame was dropped or contradicted since the last `hasLost`. */
  #hasLost = false;

  constructor(budget: BufferedBytes) {
    this.#budget = budget;
  }

  get size(): number {
    return this.#frames.size;
  }

  get numbers(): readonly number[] {
    return [...this.#frames.keys()];
  }

  /** Lowest buffered number; Infinity if empty. */
  get lowest(): number {
    let lowest = Number.POSITIVE_INFINITY;
    for (const publicationSeq of this.#frames.keys())
      if (publicationSeq < lowest) lowest = publicationSeq;
    return lowest;
  }

  /** Buffers a copy: the client's frame is a slice of a larger buffer. */
  keep(publicationSeq: number, frame: Buffer): void {
    const found = this.#frames.get(publicationSeq);
    if (found !== undefined) {
      if (!found.equals(frame)) this.#hasLost = true; // one of them is forged
      return;
    }
    const bytes = frame.length + OVERHEAD_BYTES;
    if (this.#budget.used + bytes > this.#budget.max) {
      this.clear();
      this.#hasLost = true;
      return;
    }
    this.#frames.set(publicationSeq, Buffer.from(frame));
    if (isUnstored(frame)) this.#unstored += 1;
    this.#charge(bytes);
  }

  get(publicationSeq: number): Buffer | undefined {
    return this.#frames.get(publicationSeq);
  }

  /** Removes and returns the frame. */
  take(publicationSeq: number): Buffer | undefined {
    const frame = this.#frames.get(publicationSeq);
    if (frame === undefined) return undefined;
    this.#frames.delete(publicationSeq);
    if (isUnstored(frame)) this.#unstored -= 1;
    this.#charge(-frame.length - OVERHEAD_BYTES);
    return frame;
  }

  /** Frame of the message with this id. */
  message(messageId: number): Buffer | undefined {
    for (const frame of this.#frames.values())
      if (kindOf(frame) === MESSAGE_FRAME && messageIdOf(frame) === messageId) return frame;
    return undefined;
  }

  /**
   * Hands out, in order, and forgets those that no store has and that come before the message with
   * this id.
   */
  unstoredBefore(messageId: number): readonly Buffer[] {
    if (this.#unstored === 0) return [];
    const before = [...this.#frames]
      .filter(([, one]) => isUnstored(one) && messageIdOf(one) < messageId)
      .sort(([a], [b]) => a - b);
    return before.flatMap(([publicationSeq]) => this.take(publicationSeq) ?? []);
  }

  /**
   * Removes frames through `publicationSeq`; returns, in order, those that are not in the store.
   */
  passThrough(publicationSeq: number): readonly Buffer[] {
    const passed = [...this.#frames.keys()]
      .filter((one) => one <= publicationSeq)
      .sort((a, b) => a - b);
    return passed.flatMap((one) => {
      const frame = this.take(one);
      if (frame === undefined) return [];
      const isRemoval = kindOf(frame) === REMOVAL_FRAME;
      return isRemoval || isUnstored(frame) ? [frame] : [];
    });
  }

  /** Whether frames were dropped since the last call. */
  hasLost(): boolean {
    const has = this.#hasLost;
    this.#hasLost = false;
    return has;
  }

  clear(): void {
    this.#frames.clear();
    this.#unstored = 0;
    this.#charge(-this.#bytes);
  }

  #charge(bytes: number): void {
    this.#bytes += bytes;
    this.#budget.used += bytes;
  }
}

/** A message that the store does not keep (`no_persist`). */
export function isUnstored(frame: Buffer): boolean {
  return kindOf(frame) === MESSAGE_FRAME && messageSeqOf(frame) === 0;
}
