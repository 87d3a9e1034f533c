// Frames of one channel that came before their turn, by their number. All lines of a node share one budget of bytes: over it frames are given up,
// which is remembered, and the store is read for them. State: the frames.

import {
  kindOf,
  MESSAGE_FRAME,
  messageIdOf,
  messageSeqOf,
  REMOVAL_FRAME,
} from "../../../redis/wire.ts";

/** Bytes that kept frames of all lines take, and may take. */
export interface BufferedBytes {
  used: number;
  readonly max: number;
}

/** About what a frame costs beside its bytes. */
const OVERHEAD_BYTES = 200;

export class ReorderBuffer {
  readonly #budget: BufferedBytes;
  readonly #frames = new Map<number, Buffer>();
  /** How many of them are messages that no store has. */
  #unstored = 0;
  #bytes = 0;
  /** A frame was given up since it was last asked, or may be the wrong one. */
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

  /** The lowest number that is kept; Infinity: none. */
  get lowest(): number {
    let lowest = Number.POSITIVE_INFINITY;
    for (const pub of this.#frames.keys()) if (pub < lowest) lowest = pub;
    return lowest;
  }

  /** Keeps a copy: what Redis' client gives is part of a larger buffer. */
  keep(pub: number, frame: Buffer): void {
    const found = this.#frames.get(pub);
    if (found !== undefined) {
      if (!found.equals(frame)) this.#hasLost = true; // one of them is not the channel's
      return;
    }
    const bytes = frame.length + OVERHEAD_BYTES;
    if (this.#budget.used + bytes > this.#budget.max) {
      this.clear();
      this.#hasLost = true;
      return;
    }
    this.#frames.set(pub, Buffer.from(frame));
    if (isUnstored(frame)) this.#unstored += 1;
    this.#charge(bytes);
  }

  /** Hands the frame out and forgets it. */
  take(pub: number): Buffer | undefined {
    const frame = this.#frames.get(pub);
    if (frame === undefined) return undefined;
    this.#frames.delete(pub);
    if (isUnstored(frame)) this.#unstored -= 1;
    this.#charge(-frame.length - OVERHEAD_BYTES);
    return frame;
  }

  /** Hands all out in order and forgets them. */
  takeAll(): readonly Buffer[] {
    const all = [...this.#frames].sort(([a], [b]) => a - b);
    this.clear();
    return all.map(([, frame]) => frame);
  }

  /** The frame of the message with this id. */
  message(messageId: number): Buffer | undefined {
    for (const frame of this.#frames.values())
      if (kindOf(frame) === MESSAGE_FRAME && messageIdOf(frame) === messageId)
        return frame;
    return undefined;
  }

  /** Hands out, in order, and forgets those that no store has and that come before the message with this id. */
  unstoredBefore(messageId: number): readonly Buffer[] {
    if (this.#unstored === 0) return [];
    const before = [...this.#frames]
      .filter(([, one]) => isUnstored(one) && messageIdOf(one) < messageId)
      .sort(([a], [b]) => a - b);
    return before.flatMap(([pub]) => this.take(pub) ?? []);
  }

  /** Forgets everything through `pub`; hands out, in order, those that no store has. */
  passThrough(pub: number): readonly Buffer[] {
    const passed = [...this.#frames.keys()]
      .filter((one) => one <= pub)
      .sort((a, b) => a - b);
    return passed.flatMap((one) => {
      const frame = this.take(one);
      if (frame === undefined) return [];
      const isRemoval = kindOf(frame) === REMOVAL_FRAME;
      return isRemoval || isUnstored(frame) ? [frame] : [];
    });
  }

  /** Whether frames were given up since this was last asked. */
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

/** A message that is not kept. */
export function isUnstored(frame: Buffer): boolean {
  return kindOf(frame) === MESSAGE_FRAME && messageSeqOf(frame) === 0;
}
