// Gives message ids: the first of the current millisecond, or the one after the last. State: the last id given and the
// reservation below which ids are promised not to come again after a restart. Must never give an id that is not greater than all before.

import { firstMessageId } from "../../../broker/model.ts";

/** How far a reservation is set ahead: a second's worth of ids that no stored message carries costs one WAL record. */
const RESERVED_AHEAD = 4_096_000;

export class MessageIds {
  #last: number;
  #reserved: number;

  /** `last`: no id up to here is given again. */
  constructor(last: number) {
    this.#last = last;
    this.#reserved = last;
  }

  /** The greatest id given, or promised not to be given again. */
  get floor(): number {
    return Math.max(this.#last, this.#reserved);
  }

  next(nowMs: number): number {
    const fresh = firstMessageId(nowMs);
    this.#last = fresh > this.#last ? fresh : this.#last + 1;
    return this.#last;
  }

  /** A reservation to log before `id`, which no stored record carries, may be shown; undefined while an earlier one covers it. */
  reservationFor(id: number): number | undefined {
    return id <= this.#reserved ? undefined : id + RESERVED_AHEAD;
  }

  /** The reservation goes into the WAL with the batch under way. */
  reservationKept(reservation: number): void {
    this.#reserved = reservation;
  }

  /** The batch under way failed: whatever reservation it held must be written again. */
  reservationLost(): void {
    this.#reserved = 0;
  }
}
