// Stops calls to a failing service. When `failuresInRow` calls in a row or half of the last
// `window` calls have failed, the circuit opens, and no calls are made for `openMs`. Then one trial
// call is made. If it succeeds, the circuit closes again.

interface BreakerLimits {
  /** Number of consecutive failures after which the circuit opens. */
  readonly failuresInRow: number;
  /** The circuit opens if at least half of the last `window` calls have failed. */
  readonly window: number;
  readonly openMs: number;
}

export type CircuitState = "closed" | "open" | "half_open";

export class CircuitBreaker {
  readonly #limits: BreakerLimits;
  /** Returns the time in milliseconds, from a clock that is never set back. */
  readonly #now: () => number;
  readonly #onOpened: () => void;
  #state: CircuitState = "closed";
  /** Increases when the state changes, so that results of earlier calls are ignored. */
  #period = 0;
  #openUntilMs = 0;
  #failuresInRow = 0;
  /**
   * Ring buffer with the results of the last calls: true for a failure. The next result is stored
   * at index `#next`.
   */
  #failed: boolean[] = [];
  #next = 0;
  #failures = 0;

  constructor(limits: BreakerLimits, now: () => number, onOpened: () => void) {
    this.#limits = limits;
    this.#now = now;
    this.#onOpened = onOpened;
  }

  get state(): CircuitState {
    return this.#state;
  }

  /**
   * Admits a call to the service. Returns a function that records whether this call failed, and
   * that must be called exactly once. Returns `undefined` if the call must not be made.
   */
  admit(): ((hasFailed: boolean) => void) | undefined {
    if (this.#state === "half_open") return undefined; // the trial has not ended
    if (this.#state === "open") {
      if (this.#now() < this.#openUntilMs) return undefined;
      this.#enter("half_open");
    }
    const period = this.#period;
    return (hasFailed) => {
      if (period === this.#period) this.#record(hasFailed);
    };
  }

  #record(hasFailed: boolean): void {
    if (this.#state === "half_open") return this.#enter(hasFailed ? "open" : "closed");
    const { failuresInRow, window } = this.#limits;
    this.#failuresInRow = hasFailed ? this.#failuresInRow + 1 : 0;
    this.#failures += (hasFailed ? 1 : 0) - (this.#failed[this.#next] ? 1 : 0);
    this.#failed[this.#next] = hasFailed;
    this.#next = (this.#next + 1) % window;
    const isHalfFailed = this.#failed.length === window && this.#failures * 2 >= window;
    if (this.#failuresInRow >= failuresInRow || isHalfFailed) this.#enter("open");
  }

  #enter(state: CircuitState): void {
    this.#state = state;
    this.#period += 1;
    this.#failuresInRow = 0;
    this.#failed = [];
    this.#next = 0;
    this.#failures = 0;
    if (state !== "open") return;
    this.#openUntilMs = this.#now() + this.#limits.openMs;
    this.#onOpened();
  }
}
