// The reference for the times in message ids: Redis' clock, or the time in the store's newest
// message id if that is later. After the clock was set back, the times in ids stay ahead of it.
// State: the time in the newest id that the store has confirmed.

import { messageTimeMs } from "../../../broker/model.ts";
import type { Clock } from "../../../broker/ports.ts";

export class StoreTime {
  readonly #clock: Clock;
  #confirmedMs = 0;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  readonly now: Clock = () => Math.max(this.#clock(), this.#confirmedMs);

  /** Records the newest id of a message id counter. 0 means that the counter was never used. */
  confirm(messageId: number): void {
    if (messageId > 0) this.#confirmedMs = Math.max(this.#confirmedMs, messageTimeMs(messageId));
  }
}
