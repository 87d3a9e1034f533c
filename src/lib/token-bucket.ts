// A rate limit with a token bucket: the bucket refills over time, and each use removes tokens.
// There is no timer: a bucket is refilled when it is used.

export interface RateLimit {
  /** Number of tokens that a bucket gains per second. 0 means no limit. */
  readonly perSecond: number;
  readonly burst: number;
  /** Maximum debt. Cost beyond it is not charged. Default: `burst`. */
  readonly maxDebt?: number;
}

export class TokenBucket {
  readonly #limit: RateLimit;
  /** Tokens in the bucket. Negative if there is a debt. */
  #tokens: number;
  #refilledAtMs: number;
  /** Cost of refused uses, at most `burst`. It decreases at the refill rate. */
  #refusedCost = 0;

  constructor(limit: RateLimit, nowMs: number) {
    this.#limit = limit;
    this.#tokens = limit.burst;
    this.#refilledAtMs = nowMs;
  }

  /**
   * Charges the cost, even if the use is refused. Returns 0 if the use is allowed, otherwise the
   * milliseconds until there is one token.
   */
  take(nowMs: number, cost = 1): number {
    const waitMs = this.waitMs(nowMs);
    if (waitMs === 0) this.charge(cost);
    else this.refuse(cost);
    return waitMs === 0 ? 0 : this.waitMs(nowMs);
  }

  /**
   * Returns the milliseconds until the debt from accepted uses, reduced by `excluded` tokens, is
   * paid.
   */
  debtMs(nowMs: number, excluded = 0): number {
    const { perSecond } = this.#limit;
    if (perSecond === 0) return 0;
    this.#refill(nowMs);
    const debt = -(this.#tokens + this.#refusedCost + excluded);
    return debt <= 0 ? 0 : Math.ceil((debt * 1000) / perSecond);
  }

  /**
   * Returns the milliseconds until the bucket has `tokens` tokens. If `tokens` is 0, this is the
   * time until there is no debt.
   */
  waitMs(nowMs: number, tokens = 1): number {
    const { perSecond } = this.#limit;
    if (perSecond === 0) return 0;
    this.#refill(nowMs);
    const missing = tokens - this.#tokens;
    return missing <= 0 ? 0 : Math.ceil((missing * 1000) / perSecond);
  }

  /**
   * Removes the cost of work that was done, which may leave a debt. A negative cost adds tokens.
   * Returns the number of tokens removed.
   */
  charge(cost: number): number {
    const { burst, maxDebt = burst } = this.#limit;
    const before = this.#tokens;
    this.#tokens = Math.max(-maxDebt, Math.min(burst, before - cost));
    return before - this.#tokens;
  }

  refuse(cost: number): void {
    this.charge(cost);
    this.countRefused(cost);
  }

  /** Counts a refused use whose cost was already charged. */
  countRefused(cost: number): void {
    this.#refusedCost = Math.min(this.#limit.burst, this.#refusedCost + cost);
  }

  /**
   * True if the cost of refused uses has reached a whole burst, which means that the caller does
   * not slow down.
   */
  get exhausted(): boolean {
    return this.#limit.perSecond > 0 && this.#refusedCost >= this.#limit.burst;
  }

  /**
   * Returns true if the bucket lacks more than `share` (0 to 1) of a burst. Always false without a
   * limit.
   */
  hasSpent(share: number, nowMs: number): boolean {
    const { perSecond, burst } = this.#limit;
    if (perSecond === 0) return false;
    this.#refill(nowMs);
    return this.#tokens < burst * (1 - share);
  }

  isFull(nowMs: number): boolean {
    this.#refill(nowMs);
    return this.#tokens >= this.#limit.burst || this.#limit.perSecond === 0;
  }

  #refill(nowMs: number): void {
    const { perSecond, burst } = this.#limit;
    const earned = (Math.max(0, nowMs - this.#refilledAtMs) * perSecond) / 1000;
    this.#refilledAtMs = nowMs;
    this.#tokens = Math.min(burst, this.#tokens + earned);
    this.#refusedCost = Math.max(0, this.#refusedCost - earned);
  }
}
