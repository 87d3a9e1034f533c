// Compares this node's clock with Redis' clock at each heartbeat, and reports a large difference.
// Owns the last measured difference and the time of the last report.

interface ClockCheckPorts {
  readonly clock: () => number;
  /** Called at most once a minute while the clocks differ by more than `MAX_OFFSET_MS`. */
  readonly onLargeOffset: (offsetMs: number) => void;
}

/** Largest difference between the clocks that is not reported. */
const MAX_OFFSET_MS = 1000;
const REPORT_INTERVAL_MS = 60_000;

export class ClockCheck {
  readonly #ports: ClockCheckPorts;
  #offsetMs = 0;
  #reportedAt = Number.NEGATIVE_INFINITY;

  constructor(ports: ClockCheckPorts) {
    this.#ports = ports;
  }

  /**
   * Smallest possible difference between the clocks, in milliseconds. Positive if this node's clock
   * is ahead of Redis' clock, negative if it is behind, and 0 if Redis' time lies between the start
   * and the end of the heartbeat.
   */
  get offsetMs(): number {
    return this.#offsetMs;
  }

  /**
   * Starts a comparison before a heartbeat. When the heartbeat is confirmed, the returned function
   * must be called with Redis' time.
   */
  startComparison(): (redisMs: number) => void {
    const { clock } = this.#ports;
    const sentMs = clock();
    return (redisMs) => this.#compare(redisMs, sentMs, clock());
  }

  #compare(redisMs: number, sentMs: number, receivedMs: number): void {
    const aheadMs = Math.max(0, sentMs - redisMs);
    const behindMs = Math.max(0, redisMs - receivedMs);
    this.#offsetMs = aheadMs - behindMs;
    const now = performance.now();
    const isApart = Math.abs(this.#offsetMs) > MAX_OFFSET_MS;
    if (!isApart || now - this.#reportedAt < REPORT_INTERVAL_MS) return;
    this.#reportedAt = now;
    this.#ports.onLargeOffset(this.#offsetMs);
  }
}
