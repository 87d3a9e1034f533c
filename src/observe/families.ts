// Counters, gauges and histograms, grouped in families. Counting changes a plain field, which takes
// about a nanosecond. The metrics page reads the fields at each scrape.

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

  /**
   * Counts a value. A negative value (after the clock was set back) or a non-finite value counts as
   * 0.
   */
  observe(seconds: number): void {
    const value = Number.isFinite(seconds) ? Math.max(seconds, 0) : 0;
    let index = 0;
    while (value > (this.bounds[index] ?? Number.POSITIVE_INFINITY)) index++;
    this.counts[index] = (this.counts[index] ?? 0) + 1;
    this.#sum += value;
  }
}

/**
 * Maximum number of series of a metric whose row sets no other limit. Further label values are
 * counted as `other`.
 */
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

  /**
   * Returns the series with these label values, and creates it on first use. A hot path should keep
   * the result.
   */
  of(...labels: readonly string[]): Series {
    const key = labels.join("\0");
    const entry = this.#series.get(key);
    if (entry !== undefined) return entry.series;
    const otherLabels = this.row.labels.map(() => "other");
    const { maxSeries = MAX_SERIES } = this.row;
    if (this.#series.size >= maxSeries && key !== otherLabels.join("\0"))
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
