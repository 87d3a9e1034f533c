// A rate limit in two numbers: tokens refill with time up to a burst; each use takes one. Not asked often enough to need a timer.

export class TokenBucket {
  readonly #perMs: number;
  readonly #burst: number;
  #tokens: number;
  #atMs: number;

  /** `perSecond` 0 = no limit. A full bucket holds `burst` uses. */
  constructor(perSecond: number, burst: number, nowMs: number) {
    this.#perMs = perSecond / 1000;
    this.#burst = burst;
    this.#tokens = burst;
    this.#atMs = nowMs;
  }

  /** Takes one use and returns the milliseconds to wait: 0 when it was within the limit. Debt grows no deeper than one burst. */
  take(nowMs: number): number {
    if (this.#perMs === 0) return 0;
    const earned = Math.max(0, nowMs - this.#atMs) * this.#perMs;
    this.#atMs = nowMs;
    const tokens = Math.min(this.#burst, this.#tokens + earned) - 1;
    this.#tokens = Math.max(-this.#burst, tokens);
    return tokens >= 0 ? 0 : Math.ceil(-tokens / this.#perMs);
  }

  /** Whether the debt is as deep as it gets: the caller ignored every request to slow down. */
  get exhausted(): boolean {
    return this.#tokens <= -this.#burst;
  }
}
