// The numbers behind the metrics: plain fields, so that counting costs about a nanosecond. Read only when somebody scrapes.
// A family owns its series and bounds their number; it never forgets one.

import type { MetricRow } from "./table.ts";

/** One counter or gauge. */
export class Cell {
  #value = 0;
  #read: (() => number) | undefined;

  add(by = 1): void {
    this.#value += by;
  }

  set(value: number): void {
    this.#value = value;
  }

  /** From now on the value is asked for at each scrape: for what another room already counts. */
  from(read: () => number): void {
    this.#read = read;
  }

  get value(): number {
    return this.#read === undefined ? this.#value : this.#read();
  }
}

/** A distribution over fixed upper bounds, in seconds. */
export class Histogram {
  readonly bounds: readonly number[];
  /** How many fell under each bound and over the one before; the last counts what is above all. */
  readonly counts: Float64Array;
  #sum = 0;

  constructor(bounds: readonly number[]) {
    this.bounds = bounds;
    this.counts = new Float64Array(bounds.length + 1);
  }

  get sum(): number {
    return this.#sum;
  }

  /** Negative values (a clock that went back) and what is no number count as 0. */
  observe(seconds: number): void {
    const value = Number.isFinite(seconds) ? Math.max(seconds, 0) : 0;
    let index = 0;
    while (value > (this.bounds[index] ?? Number.POSITIVE_INFINITY)) index++;
    this.counts[index] = (this.counts[index] ?? 0) + 1;
    this.#sum += value;
  }
}

/** Series of one metric at most; further label values are counted together under `other`. */
export const MAX_SERIES = 200;

/** All series of one metric, by label values. */
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

  /** The series of these label values, made when it is first asked for. Keep it where the path is hot. */
  of(...labels: readonly string[]): Series {
    const key = labels.join("\0");
    const known = this.#series.get(key);
    if (known !== undefined) return known.series;
    const others = this.row.labels.map(() => "other");
    if (this.#series.size >= MAX_SERIES && key !== others.join("\0"))
      return this.of(...others);
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
