// From samples to figures: medians, spread, rows. Pure.

import type { Figure, Question, Row, Sample } from "./benchmark.ts";

/** The middle value; of an even number the mean of the two in the middle. NaN of nothing. */
export function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const high = sorted[Math.floor(sorted.length / 2)];
  const low = sorted[Math.ceil(sorted.length / 2) - 1];
  return high === undefined || low === undefined ? Number.NaN : (high + low) / 2;
}

/** (largest − smallest) ÷ median. */
export function spread(values: readonly number[]): number {
  return (Math.max(...values) - Math.min(...values)) / median(values);
}

export function figure(subject: string, samples: readonly Sample[]): Figure {
  const values = samples.map(({ value }) => value);
  const latencies = samples.flatMap(({ latency }) => latency ?? []);
  const cpu = samples.flatMap(({ cpuUs }) => cpuUs ?? []);
  const of = (key: "p50" | "p99" | "p999" | "max") =>
    median(latencies.map((latency) => latency[key]));
  return {
    subject,
    value: median(values),
    spread: spread(values),
    samples: values,
    ...(latencies.length > 0 && {
      latency: {
        p50: of("p50"),
        p99: of("p99"),
        p999: of("p999"),
        max: of("max"),
      },
    }),
    ...(cpu.length > 0 && { cpuUs: median(cpu) }),
  };
}

/** `samples` of the baseline, then of ours. */
export function row(
  question: Question,
  subjects: readonly [{ readonly name: string }, { readonly name: string }],
  samples: readonly [readonly Sample[], readonly Sample[]],
): Row {
  const baseline = figure(subjects[0].name, samples[0]);
  const ours = figure(subjects[1].name, samples[1]);
  return { ...question, baseline, ours, ratio: ours.value / baseline.value };
}
