// How far this node's clock is from Redis', which every node can ask: compared at each heartbeat.
// State: how far it was at the last one, and when that was last complained of.

interface ClockCheckParts {
  /** Unix milliseconds. */
  readonly clock: () => number;
  /**
   * The clocks are further apart than the cluster is built for; said again each minute while it
   * lasts.
   */
  readonly onApart: (offsetMs: number) => void;
}

/** What nodes' clocks may differ by. */
const MAX_OFFSET_MS = 1000;
const SAID_AGAIN_MS = 60_000;

export class ClockCheck {
  readonly #parts: ClockCheckParts;
  #offsetMs = 0;
  #saidAt = Number.NEGATIVE_INFINITY;

  constructor(parts: ClockCheckParts) {
    this.#parts = parts;
  }

  /**
   * By so much this node's clock is ahead of Redis', negative: behind, as precisely as a round trip
   * shows.
   */
  get offsetMs(): number {
    return this.#offsetMs;
  }

  /** Before Redis is asked for its time; what it gives takes the answer. */
  asks(): (redisMs: number) => void {
    const { clock } = this.#parts;
    const sentMs = clock();
    return (redisMs) => this.#compare(redisMs, sentMs, clock());
  }

  /** Clocks that agree show Redis' time between those of sending and hearing. */
  #compare(redisMs: number, sentMs: number, heardMs: number): void {
    const aheadMs = Math.max(0, sentMs - redisMs);
    const behindMs = Math.max(0, redisMs - heardMs);
    this.#offsetMs = aheadMs - behindMs;
    const now = performance.now();
    const isApart = Math.abs(this.#offsetMs) > MAX_OFFSET_MS;
    if (!isApart || now - this.#saidAt < SAID_AGAIN_MS) return;
    this.#saidAt = now;
    this.#parts.onApart(this.#offsetMs);
  }
}
