// Long work in short stretches: says when a stretch of the event loop is used up and lets everything else have its turn. State: when the
// stretch began.

import { setImmediate as nextTurn } from "node:timers/promises";

const STRETCH_MS = 1;
/** Steps between looks at the time. */
const LOOK_EVERY = 16;

export class Pace {
  #since = performance.now();
  #steps = 0;

  /** To be asked before each small step; when it says yes, `rest` before going on. */
  isUsedUp(): boolean {
    if (++this.#steps % LOOK_EVERY !== 0) return false;
    return performance.now() - this.#since >= STRETCH_MS;
  }

  async rest(): Promise<void> {
    await nextTurn();
    this.#since = performance.now();
  }
}
