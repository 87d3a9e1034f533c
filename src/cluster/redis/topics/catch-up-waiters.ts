// Readers that wait for a line to reach what they have seen in the store. When it takes long the line is repaired, when it takes very long they are
// let go. State: the lines somebody waits for, and when each may be repaired; one timer while there are any.

import type { Sequencer } from "./sequencer.ts";
import type { CatchUpQueue } from "./catch-up-queue.ts";

const TICK_MS = 50;
const BETWEEN_REPAIRS_MS = 500;
/** Nobody waits longer. */
export const MAX_WAIT_MS = 2000;

export class CatchUpWaiters {
  readonly #repairs: CatchUpQueue;
  readonly #repairAt = new Map<Sequencer, number>();
  #timer: NodeJS.Timeout | undefined;

  constructor(repairs: CatchUpQueue) {
    this.#repairs = repairs;
  }

  /** Resolves once the line is through `pub`, or when that takes too long. Never rejects. */
  wait(line: Sequencer, pub: number): Promise<void> {
    const now = performance.now();
    if (!this.#repairAt.has(line)) this.#repairAt.set(line, now + TICK_MS);
    this.#timer ??= setTimeout(() => this.#tick(), TICK_MS);
    return line.wait(pub, now);
  }

  #tick(): void {
    const now = performance.now();
    for (const [line, repairAt] of this.#repairAt) {
      const oldest = line.giveUp(now - MAX_WAIT_MS);
      if (oldest === undefined) this.#repairAt.delete(line);
      else if (now >= repairAt && now >= oldest + TICK_MS) {
        this.#repairAt.set(line, now + BETWEEN_REPAIRS_MS);
        if (line.isNew || this.#repairs.isRepairing(line)) continue; // who opened a new one gives it a position
        void this.#repairs.repair(line);
      }
    }
    const isNeeded = this.#repairAt.size > 0;
    this.#timer = isNeeded
      ? setTimeout(() => this.#tick(), TICK_MS)
      : undefined;
  }
}
