// How slow the machine is while a test measures a time: bounds on times are relative to it. State:
// a timer for each watch, ended with the test.

import type { Test } from "tap";

const TICK_MS = 10;

export interface Pace {
  /**
   * Milliseconds that this process had to wait for its turn since the watch began: next to none on
   * a free machine, as long as the time itself on a full one.
   */
  lostMs(): number;
}

export function watchPace(t: Pick<Test, "teardown">): Pace {
  let lost = 0;
  let lastMs = performance.now();
  const note = (): void => {
    const nowMs = performance.now();
    lost += Math.max(0, nowMs - lastMs - 2 * TICK_MS);
    lastMs = nowMs;
  };
  const timer = setInterval(note, TICK_MS);
  t.teardown(() => clearInterval(timer));
  return {
    lostMs() {
      note();
      return lost;
    },
  };
}
