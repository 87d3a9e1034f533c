// Callers that wait until a sequencer has delivered what they saw in the store. After a short wait the
// sequencer catches up; after a long one the callers are released. State: awaited sequencers, one timer.

import type { CatchUpQueue } from "./catch-up-queue.ts";
import type { Sequencer } from "./sequencer.ts";

const TICK_MS = 50;
const BETWEEN_REPAIRS_MS = 500;
/** Longest wait. */
export const MAX_WAIT_MS = 2000;

export class CatchUpWaiters {
  readonly #catchUpQueue: CatchUpQueue;
  readonly #repairAt = new Map<Sequencer, number>();
  #timer: NodeJS.Timeout | undefined;

  constructor(catchUpQueue: CatchUpQueue) {
    this.#catchUpQueue = catchUpQueue;
  }

  /** Resolves when publications through `pub` are delivered, or after the longest wait. Never rejects. */
  wait(sequencer: Sequencer, pub: number): Promise<void> {
    const now = performance.now();
    if (!this.#repairAt.has(sequencer))
      this.#repairAt.set(sequencer, now + TICK_MS);
    this.#timer ??= setTimeout(() => this.#tick(), TICK_MS);
    return sequencer.wait(pub, now);
  }

  #tick(): void {
    const now = performance.now();
    for (const [sequencer, repairAt] of this.#repairAt) {
      const oldest = sequencer.giveUp(now - MAX_WAIT_MS);
      if (oldest === undefined) this.#repairAt.delete(sequencer);
      else if (now >= repairAt && now >= oldest + TICK_MS) {
        this.#repairAt.set(sequencer, now + BETWEEN_REPAIRS_MS);
        if (sequencer.isNew || this.#catchUpQueue.isCatchingUp(sequencer))
          continue; // a new one gets its position from the caller that opened it
        void this.#catchUpQueue.catchUp(sequencer);
      }
    }
    const isNeeded = this.#repairAt.size > 0;
    this.#timer = isNeeded
      ? setTimeout(() => this.#tick(), TICK_MS)
      : undefined;
  }
}
