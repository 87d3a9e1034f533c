// Computes medians, spreads and rows of results from samples. Pure.

import type { Figure, Question, Row, Sample } from "./benchmark.ts";

/**
 * Returns the median. For an even number of values, this is the mean of the two middle values.
 * Returns NaN if there are no values.
 */
export function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const high = sorted[Math.floor(sorted.length / 2)];
  const low = sorted[Math.ceil(sorted.length / 2) - 1];
  return high === undefined || low === undefined ? Number.NaN : (high + low) / 2;
}

/** Returns the range of the values divided by their median. */
export function spread(values: readonly number[]): number {
  return (Math.max(...values) - Math.min(...values)) / median(values);
}

export function figure(subject: string, samples: readonly Sample[]): Figure {
  const values = samples.map(({ value }) => value);
  const latencies = samples.flatMap(({ latency }) => latency ?? []);
  const cpu = samples.flatMap(({ cpuUs }) => cpuUs ?? []);
  const medianOf = (key: "p50" | "p99" | "p999" | "max") =>
    median(latencies.map((latency) => latency[key]));
  return {
    subject,
    value: median(values),
    spread: spread(values),
    samples: values,
    ...(latencies.length > 0 && {
      latency: {
        p50: medianOf("p50"),
        p99: medianOf("p99"),
        p999: medianOf("p999"),
        max: medianOf("max"),
      },
    }),
    ...(cpu.length > 0 && { cpuUs: median(cpu) }),
  };
}

/** Returns a row. `samples` are those of the baseline and then those of our build. */
export function row(
  question: Question,
  subjects: readonly [{ readonly name: string }, { readonly name: string }],
  samples: readonly [readonly Sample[], readonly Sample[]],
): Row {
  const baseline = figure(subjects[0].name, samples[0]);
  const ours = figure(subjects[1].name, samples[1]);
  return { ...question, baseline, ours, ratio: ours.value / baseline.value };
}
