// A rate limit in two numbers: tokens refill with time up to a burst; each use takes what it costs.
// Not asked often enough to need a timer.

/** The two numbers, shared by all buckets of a kind. */
export interface RateLimit {
  /** 0 = no limit. */
  readonly perSecond: number;
  /** What a full bucket holds. */
  readonly burst: number;
}

export class TokenBucket {
  readonly #limit: RateLimit;
  /** Below 0: debt, at most one burst. */
  #tokens: number;
  #atMs: number;
  /** Refused and not refilled since, at most one burst. */
  #refused = 0;

  constructor(limit: RateLimit, nowMs: number) {
    this.#limit = limit;
    this.#tokens = limit.burst;
    this.#atMs = nowMs;
  }

  /**
   * Takes `cost` and returns 0 if there is any token; a greater cost leaves a debt. Otherwise takes
   * nothing, deepens the debt and returns the milliseconds to wait.
   */
  take(nowMs: number, cost = 1): number {
    const waitMs = this.waitMs(nowMs);
    if (waitMs === 0) this.charge(cost);
    else this.refuse(cost);
    return waitMs === 0 ? 0 : this.waitMs(nowMs);
  }

  /** Milliseconds until there are so many tokens; with 0: until no debt is left. */
  waitMs(nowMs: number, tokens = 1): number {
    const { perSecond } = this.#limit;
    if (perSecond === 0) return 0;
    this.#refill(nowMs);
    const missing = tokens - this.#tokens;
    return missing <= 0 ? 0 : Math.ceil((missing * 1000) / perSecond);
  }

  /** Takes the cost of work done, also into debt. Negative: gives back. */
  charge(cost: number): void {
    const { burst } = this.#limit;
    const tokens = Math.min(burst, this.#tokens - cost);
    this.#tokens = Math.max(-burst, tokens);
  }

  /** Counts a refused use, which lengthens the wait. */
  refuse(cost: number): void {
    this.charge(cost);
    this.#refused = Math.min(this.#limit.burst, this.#refused + cost);
  }

  /** A whole burst was refused: the caller ignores requests to slow down. */
  get exhausted(): boolean {
    return this.#limit.perSecond > 0 && this.#refused >= this.#limit.burst;
  }

  /** Full, like a new bucket. */
  isFull(nowMs: number): boolean {
    this.#refill(nowMs);
    return this.#tokens >= this.#limit.burst || this.#limit.perSecond === 0;
  }

  #refill(nowMs: number): void {
    const { perSecond, burst } = this.#limit;
    const earned = (Math.max(0, nowMs - this.#atMs) * perSecond) / 1000;
    this.#atMs = nowMs;
    this.#tokens = Math.min(burst, this.#tokens + earned);
    this.#refused = Math.max(0, this.#refused - earned);
  }
}
