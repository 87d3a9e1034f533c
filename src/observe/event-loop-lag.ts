// Measures how late event-loop timers fire. Replaces prom-client's monitor, whose timer wakes an
// idle process 100 times per second.

import { createHistogram, performance, type RecordableHistogram } from "node:perf_hooks";

const BUSY_INTERVAL_MS = 10;
/**
 * Interval while the event loop is idle. A loop iteration that is longer than this interval delays
 * the timer, and is therefore still measured.
 */
const IDLE_INTERVAL_MS = 250;
const BUSY_SHARE = 0.1;
/**
 * Duration of a window in milliseconds. The gauges report the current and the previous window, so
 * that a scrape does not hide a delay from other scrapers.
 */
const WINDOW_MS = 30_000;
const NS_PER_MS = 1e6;
const NS_PER_S = 1e9;
const PREFIX = "nodejs_eventloop_lag_";

interface LagGauge {
  readonly name: string;
  readonly help: string;
  readonly read: () => number;
}

export class EventLoopLag {
  readonly #windowMs: number;
  #delays = createHistogram();
  #previousDelays = createHistogram();
  #windowEndMs = 0;
  #newestNs = 0;
  #timer: NodeJS.Timeout | undefined;
  #dueMs = 0;
  #utilization = performance.eventLoopUtilization();
  /** Gauge values at the last scrape, in seconds, by the middle part of the gauge's name. */
  #scraped: ReadonlyMap<string, number> = new Map();

  constructor(windowMs = WINDOW_MS) {
    this.#windowMs = windowMs;
  }

  start(): void {
    this.#windowEndMs = performance.now() + this.#windowMs;
    this.#schedule(BUSY_INTERVAL_MS);
  }

  stop(): void {
    clearTimeout(this.#timer);
  }

  /** Returns gauges with the same names as prom-client's. Reading the first gauge updates all. */
  gauges(): readonly LagGauge[] {
    const newest = {
      name: `${PREFIX}seconds`,
      help: "Latest delay of an event-loop timer.",
      read: () => {
        this.#scraped = valuesOf(this.#delays, this.#previousDelays);
        return this.#newestNs / NS_PER_S;
      },
    };
    const others = [...valuesOf().keys()].map((part) => ({
      name: `${PREFIX}${part}_seconds`,
      help: `Delays of event-loop timers in the last 30 to 60 seconds: ${part}.`,
      read: () => this.#scraped.get(part) ?? 0,
    }));
    return [newest, ...others];
  }

  #schedule(intervalMs: number): void {
    this.#dueMs = performance.now() + intervalMs;
    this.#timer = setTimeout(this.#measure, intervalMs).unref();
  }

  readonly #measure = (): void => {
    const nowMs = performance.now();
    if (nowMs >= this.#windowEndMs) {
      [this.#delays, this.#previousDelays] = [this.#previousDelays, this.#delays];
      this.#delays.reset();
      this.#windowEndMs = nowMs + this.#windowMs;
    }
    const delayMs = nowMs - this.#dueMs;
    this.#newestNs = Math.max(1, Math.round(delayMs * NS_PER_MS)); // the minimum of a histogram is 1
    this.#delays.record(this.#newestNs);
    const utilization = performance.eventLoopUtilization();
    const { utilization: share } = performance.eventLoopUtilization(utilization, this.#utilization);
    this.#utilization = utilization;
    this.#schedule(share > BUSY_SHARE ? BUSY_INTERVAL_MS : IDLE_INTERVAL_MS);
  };
}

function valuesOf(...windows: readonly RecordableHistogram[]): ReadonlyMap<string, number> {
  const delays = createHistogram();
  for (const window of windows) delays.add(window);
  const seconds = (ns: number) => (delays.count === 0 ? 0 : ns / NS_PER_S);
  return new Map([
    ["min", seconds(delays.min)],
    ["max", seconds(delays.max)],
    ["mean", seconds(delays.mean)],
    ["stddev", seconds(delays.stddev)],
    ["p50", seconds(delays.percentile(50))],
    ["p90", seconds(delays.percentile(90))],
    ["p99", seconds(delays.percentile(99))],
  ]);
}
