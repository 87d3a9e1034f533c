// Reorder buffer of one channel: frames that arrived too early, by publication number. All of a
// node's buffers share one byte budget. If a new frame would exceed the budget, the channel's
// buffer drops all frames, and the channel is read from the store instead. Owns the frames.

import {
  kindOf,
  MESSAGE_FRAME,
  messageIdOf,
  messageSeqOf,
  REMOVAL_FRAME,
} from "../../../redis/wire.ts";

export interface BufferedBytes {
  used: number;
  readonly max: number;
}

const OVERHEAD_BYTES = 200;

export class ReorderBuffer {
  readonly #budget: BufferedBytes;
  readonly #frames = new Map<number, Buffer>();
  #unstoredCount = 0;
  #bytes = 0;
  /**
   * True if, since the last `consumeLost`, frames were dropped or two different frames had the same
   * number.
   */
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

  get lowest(): number {
    let lowest = Number.POSITIVE_INFINITY;
    for (const publicationSeq of this.#frames.keys())
      if (publicationSeq < lowest) lowest = publicationSeq;
    return lowest;
  }

  /** Stores a copy of the frame, because the frame itself is a slice of a larger buffer. */
  add(publicationSeq: number, frame: Buffer): void {
    const existing = this.#frames.get(publicationSeq);
    if (existing !== undefined) {
      if (!existing.equals(frame)) this.#hasLost = true; // one of the two is outdated or forged
      return;
    }
    const bytes = frame.length + OVERHEAD_BYTES;
    if (this.#budget.used + bytes > this.#budget.max) {
      this.clear();
      this.#hasLost = true;
      return;
    }
    this.#frames.set(publicationSeq, Buffer.from(frame));
    if (isUnstored(frame)) this.#unstoredCount += 1;
    this.#charge(bytes);
  }

  get(publicationSeq: number): Buffer | undefined {
    return this.#frames.get(publicationSeq);
  }

  remove(publicationSeq: number): Buffer | undefined {
    const frame = this.#frames.get(publicationSeq);
    if (frame === undefined) return undefined;
    this.#frames.delete(publicationSeq);
    if (isUnstored(frame)) this.#unstoredCount -= 1;
    this.#charge(-frame.length - OVERHEAD_BYTES);
    return frame;
  }

  messageFrame(messageId: number): Buffer | undefined {
    for (const frame of this.#frames.values())
      if (kindOf(frame) === MESSAGE_FRAME && messageIdOf(frame) === messageId) return frame;
    return undefined;
  }

  removeUnstoredBefore(messageId: number): readonly Buffer[] {
    if (this.#unstoredCount === 0) return [];
    const entries = [...this.#frames]
      .filter(([, frame]) => isUnstored(frame) && messageIdOf(frame) < messageId)
      .sort(([a], [b]) => a - b);
    return entries.flatMap(([publicationSeq]) => this.remove(publicationSeq) ?? []);
  }

  /** Removes the frames up to a number. Returns, in order, the frames that are not in the store. */
  removeThrough(publicationSeq: number): readonly Buffer[] {
    const numbers = [...this.#frames.keys()]
      .filter((seq) => seq <= publicationSeq)
      .sort((a, b) => a - b);
    return numbers.flatMap((seq) => {
      const frame = this.remove(seq);
      if (frame === undefined) return [];
      const isRemoval = kindOf(frame) === REMOVAL_FRAME;
      return isRemoval || isUnstored(frame) ? [frame] : [];
    });
  }

  consumeLost(): boolean {
    const hadLost = this.#hasLost;
    this.#hasLost = false;
    return hadLost;
  }

  clear(): void {
    this.#frames.clear();
    this.#unstoredCount = 0;
    this.#charge(-this.#bytes);
  }

  #charge(bytes: number): void {
    this.#bytes += bytes;
    this.#budget.used += bytes;
  }
}

export function isUnstored(frame: Buffer): boolean {
  return kindOf(frame) === MESSAGE_FRAME && messageSeqOf(frame) === 0;
}
