// The frames of one push, encoded once for all sessions with the same wire format.

import type { Frames } from "../protocol/protocol.ts";

export class SharedFrames {
  #firstKey: string | undefined;
  #first: Frames | undefined;
  /** Created for the second key, because the receivers of most pushes have the same wire format. */
  #others: Map<string, Frames> | undefined;

  get(key: string): Frames | undefined {
    return key === this.#firstKey ? this.#first : this.#others?.get(key);
  }

  set(key: string, frames: Frames): void {
    if (this.#firstKey === undefined || this.#firstKey === key) {
      this.#firstKey = key;
      this.#first = frames;
    } else {
      this.#others ??= new Map();
      this.#others.set(key, frames);
    }
  }
}
