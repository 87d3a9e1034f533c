// Counters, gauges and histograms, and a prom-client registry that reads them at each scrape and
// adds the metrics of the process. Counting changes a plain field and costs about a nanosecond.
// Each node has its own registry; the global registry of prom-client must not be used, because
// tests run several nodes.

import { collectDefaultMetrics, type Metric, Registry } from "prom-client";
import type { EventLoopLag } from "./event-loop-lag.ts";
import type { MetricRow } from "./table.ts";

export class Cell {
  #value = 0;
  #read: (() => number) | undefined;

  add(by = 1): void {
    this.#value += by;
  }

  set(value: number): void {
    this.#value = value;
  }

  from(read: () => number): void {
    this.#read = read;
  }

  get value(): number {
    return this.#read === undefined ? this.#value : this.#read();
  }
}

export class Histogram {
  readonly bounds: readonly number[];
  /** Number of values in each bucket. The last bucket counts values above all bounds. */
  readonly counts: Float64Array;
  #sum = 0;

  constructor(bounds: readonly number[]) {
    this.bounds = bounds;
    this.counts = new Float64Array(bounds.length + 1);
  }

  get sum(): number {
    return this.#sum;
  }

  /** Counts a value. A negative (the clock was set back) or non-finite value counts as 0. */
  observe(seconds: number): void {
    const value = Number.isFinite(seconds) ? Math.max(seconds, 0) : 0;
    let index = 0;
    while (value > (this.bounds[index] ?? Number.POSITIVE_INFINITY)) index++;
    this.counts[index] = (this.counts[index] ?? 0) + 1;
    this.#sum += value;
  }
}

/** Maximum number of series of one metric. Further label values are counted as `other`. */
export const MAX_SERIES = 200;

export class Family<Series> {
  readonly row: MetricRow;
  readonly #make: () => Series;
  readonly #series = new Map<
    string,
    { readonly labels: readonly string[]; readonly series: Series }
  >();

  constructor(row: MetricRow, make: () => Series) {
    this.row = row;
    this.#make = make;
  }

  /** Returns the series of these labels, created on first use. A hot path should keep it. */
  of(...labels: readonly string[]): Series {
    const key = labels.join("\0");
    const entry = this.#series.get(key);
    if (entry !== undefined) return entry.series;
    const otherLabels = this.row.labels.map(() => "other");
    if (this.#series.size >= MAX_SERIES && key !== otherLabels.join("\0"))
      return this.of(...otherLabels);
    const series = this.#make();
    this.#series.set(key, { labels, series });
    return series;
  }

  entries(): Iterable<{
    readonly labels: readonly string[];
    readonly series: Series;
  }> {
    return this.#series.values();
  }
}

/**
 * Gauges of prom-client whose names end like that of a counter, which `promtool check metrics`
 * rejects. Each is the sum of a gauge with the label `type`, which is kept.
 */
const MISNAMED = ["handles", "requests", "resources"].map((name) => `nodejs_active_${name}_total`);

/**
 * Interval of prom-client's event-loop monitor, which cannot be disabled: the maximum delay of a
 * timer, so that the monitor does not wake the process. `EventLoopLag` replaces its gauges.
 */
const NEVER_MS = 2 ** 31 - 1;

export function createRegistry(
  families: Iterable<Family<Cell> | Family<Histogram>>,
  eventLoop: Pick<EventLoopLag, "register">,
): Registry {
  const registry = new Registry();
  for (const family of families) {
    const { name, help, kind } = family.row;
    const source = {
      name,
      help,
      type: kind,
      get: () => ({ name, help, type: kind, values: samplesOf(family) }),
    };
    // The registry only reads name, help, type and get(), but its type requires prom-client's own
    // metric classes.
    registry.registerMetric(source as unknown as Metric);
  }
  collectDefaultMetrics({ register: registry, eventLoopMonitoringPrecision: NEVER_MS });
  eventLoop.register(registry);
  for (const name of MISNAMED) registry.removeSingleMetric(name);
  return registry;
}

type Labels = Readonly<Record<string, string | number>>;
interface Sample {
  readonly labels: Labels;
  readonly value: number;
  readonly metricName?: string;
}

function samplesOf(family: Family<Cell> | Family<Histogram>): readonly Sample[] {
  const { name, labels: names } = family.row;
  return [...family.entries()].flatMap(({ labels: values, series }) => {
    const labels = Object.fromEntries(names.map((label, index) => [label, values[index] ?? ""]));
    return series instanceof Cell
      ? [{ labels, value: series.value }]
      : buckets(name, labels, series);
  });
}

function buckets(
  name: string,
  labels: Labels,
  { bounds, counts, sum }: Histogram,
): readonly Sample[] {
  let total = 0;
  const samples: Sample[] = [];
  for (const [index, count] of counts.entries()) {
    total += count;
    samples.push({
      metricName: `${name}_bucket`,
      labels: { ...labels, le: bounds[index] ?? "+Inf" },
      value: total,
    });
  }
  samples.push({ metricName: `${name}_sum`, labels, value: sum });
  samples.push({ metricName: `${name}_count`, labels, value: total });
  return samples;
}
