// Measures by how much the timers of the event loop are late. Replaces the monitor of prom-client,
// whose timer wakes an idle process 100 times a second.

import { createHistogram, performance } from "node:perf_hooks";
import { Gauge, type Registry } from "prom-client";

const BUSY_INTERVAL_MS = 10;
/** Interval while the loop is idle. No turn of the loop that takes longer is missed. */
const IDLE_INTERVAL_MS = 250;
/** Fraction of an interval above which the loop counts as busy. */
const BUSY_SHARE = 0.1;
const NS_PER_MS = 1e6;
const NS_PER_S = 1e9;
const PREFIX = "nodejs_eventloop_lag_";

export class EventLoopLag {
  readonly #delays = createHistogram();
  #newestNs = 0;
  #timer: NodeJS.Timeout | undefined;
  #dueMs = 0;
  #utilization = performance.eventLoopUtilization();
  /** Values of the gauges at the last scrape, in seconds, by the middle part of their names. */
  #scraped: ReadonlyMap<string, number> = new Map();

  start(): void {
    this.#schedule(BUSY_INTERVAL_MS);
  }

  stop(): void {
    clearTimeout(this.#timer);
  }

  /** Registers gauges under the names that prom-client uses, in place of the gauges there. */
  register(registry: Registry): void {
    const add = (name: string, help: string, collect: (gauge: Gauge) => void) => {
      registry.removeSingleMetric(name);
      const collectThis = function (this: Gauge) {
        collect(this);
      };
      new Gauge({ name, help, registers: [registry], collect: collectThis });
    };
    // The first gauge is collected before the others, which show the values of the same moment.
    add(`${PREFIX}seconds`, "Newest delay of a timer of the event loop.", (gauge) => {
      this.#scrape();
      gauge.set(this.#newestNs / NS_PER_S);
    });
    for (const part of this.#values().keys())
      add(
        `${PREFIX}${part}_seconds`,
        `Delays of the timers of the event loop since the last scrape: ${part}.`,
        (gauge) => gauge.set(this.#scraped.get(part) ?? 0),
      );
  }

  #scrape(): void {
    this.#scraped = this.#values();
    this.#delays.reset();
  }

  #values(): ReadonlyMap<string, number> {
    const delays = this.#delays;
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

  #schedule(intervalMs: number): void {
    this.#dueMs = performance.now() + intervalMs;
    this.#timer = setTimeout(this.#measure, intervalMs).unref();
  }

  readonly #measure = (): void => {
    const delayMs = performance.now() - this.#dueMs;
    this.#newestNs = Math.max(1, Math.round(delayMs * NS_PER_MS)); // a histogram starts at 1
    this.#delays.record(this.#newestNs);
    const utilization = performance.eventLoopUtilization();
    const { utilization: share } = performance.eventLoopUtilization(utilization, this.#utilization);
    this.#utilization = utilization;
    this.#schedule(share > BUSY_SHARE ? BUSY_INTERVAL_MS : IDLE_INTERVAL_MS);
  };
}
