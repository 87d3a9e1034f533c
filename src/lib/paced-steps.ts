// Limits the time that short steps take in one iteration of the event loop, because libuv may
// report the events of thousands of sockets in one iteration. A step runs at once if time is left.
// Otherwise, it runs in a later iteration, in order. Callers limit the number of waiting steps.

import { Fifo } from "./fifo.ts";

export class PacedSteps {
  readonly #maxMs: number;
  readonly #waiting = new Fifo<() => void>();
  #startMs = 0;
  #isCounting = false;

  /**
   * Further steps of an iteration may begin within `maxMs` milliseconds after its first step. This
   * time includes other work of the iteration. A single step may take longer.
   */
  constructor(maxMs: number) {
    this.#maxMs = maxMs;
  }

  /** True if no step is waiting. */
  get isIdle(): boolean {
    return this.#waiting.length === 0;
  }

  /** Runs the step now or later. `step` must not throw, because no later step would run. */
  run(step: () => void): void {
    if (this.#mayRun()) step();
    else this.#waiting.push(step);
  }

  /** Returns `undefined` if a step may run now, otherwise a promise that resolves when it may. */
  turn(): Promise<void> | undefined {
    if (this.#mayRun()) return undefined;
    return new Promise((go) => this.#waiting.push(go));
  }

  /** Returns true if no step is waiting and this iteration has time for another step. */
  #mayRun(): boolean {
    if (this.#waiting.length > 0) return false;
    const nowMs = performance.now();
    if (this.#isCounting) return nowMs - this.#startMs < this.#maxMs;
    this.#isCounting = true;
    this.#startMs = nowMs;
    setImmediate(this.#endTurn);
    return true;
  }

  readonly #endTurn = (): void => {
    if (this.#waiting.length > 0) setImmediate(this.#continue);
    else this.#isCounting = false;
  };

  readonly #continue = async (): Promise<void> => {
    this.#startMs = performance.now();
    while (this.#waiting.length > 0) {
      this.#waiting.shift()?.();
      await undefined; // so that the measured time includes work that continues without I/O
      if (performance.now() - this.#startMs >= this.#maxMs) {
        setImmediate(this.#continue);
        return;
      }
    }
    this.#isCounting = false;
  };
}
