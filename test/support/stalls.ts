// Measures how long this process had to wait for the processor during a test, so that the test can
// extend its time limit on a busy machine. Owns one timer per meter, which ends with the test.

import type { Test } from "tap";

const TICK_MS = 10;

export interface StallMeter {
  /**
   * Returns the milliseconds by which the timer has been late since the meter was started. The
   * value is close to 0 on an idle machine, and close to the elapsed time on an overloaded machine.
   */
  totalMs(): number;
}

/** Starts a meter that runs until the end of the test. */
export function measureStalls(t: Pick<Test, "teardown">): StallMeter {
  let stalledMs = 0;
  let lastMs = performance.now();
  const addDelay = (): void => {
    const nowMs = performance.now();
    stalledMs += Math.max(0, nowMs - lastMs - 2 * TICK_MS);
    lastMs = nowMs;
  };
  const timer = setInterval(addDelay, TICK_MS);
  t.teardown(() => clearInterval(timer));
  return {
    totalMs() {
      addDelay();
      return stalledMs;
    },
  };
}
