// Gives message ids: the first of the current millisecond, or the one after the last. State: the last id given and the
// ceiling below which ids are promised not to come again after a restart. Must never give an id that is not greater than all before.

import { firstMessageId } from "../../broker/model.ts";

/** How far a ceiling is set ahead: a second's worth of ids that no stored message carries costs one WAL record. */
const CEILING_AHEAD = 4_096_000;

export class MessageIds {
  #last: number;
  #ceiling: number;

  /** `last`: no id up to here is given again. */
  constructor(last: number) {
    this.#last = last;
    this.#ceiling = last;
  }

  /** The greatest id given, or promised not to be given again. */
  get floor(): number {
    return Math.max(this.#last, this.#ceiling);
  }

  next(nowMs: number): number {
    const fresh = firstMessageId(nowMs);
    this.#last = fresh > this.#last ? fresh : this.#last + 1;
    return this.#last;
  }

  /** A ceiling to log before `id`, which no stored record carries, may be shown; undefined while an earlier one covers it. */
  ceilingFor(id: number): number | undefined {
    return id <= this.#ceiling ? undefined : id + CEILING_AHEAD;
  }

  /** The ceiling goes into the WAL with the batch under way. */
  ceilingKept(ceiling: number): void {
    this.#ceiling = ceiling;
  }

  /** The batch under way failed: whatever ceiling it held must be written again. */
  ceilingLost(): void {
    this.#ceiling = 0;
  }
}
