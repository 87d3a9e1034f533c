// Measures the two subjects alternately, so that other load on the machine affects both equally.

import type { Bench, Question, Row, Sample, Subject } from "./benchmark.ts";
import { row } from "./stats.ts";

/**
 * Measures both subjects alternately, `plan.rounds` times each. Returns the samples of the baseline
 * and of our build.
 */
export async function alternate<T>(
  bench: Bench,
  measure: (subject: Subject, at: 0 | 1) => Promise<T>,
): Promise<readonly [readonly T[], readonly T[]]> {
  const [baseline, ours] = bench.subjects;
  const samples: readonly [T[], T[]] = [[], []];
  for (let round = 0; round < bench.plan.rounds; round++) {
    samples[0].push(await measure(baseline, 0));
    samples[1].push(await measure(ours, 1));
  }
  return samples;
}

/** Measures two running servers alternately and returns a row of the table. */
export async function compare<S>(
  bench: Bench,
  servers: readonly [S, S],
  question: Question & { readonly measure: (server: S) => Promise<Sample> },
): Promise<Row> {
  const { measure, ...rowQuestion } = question;
  const samples = await alternate(bench, (_, at) => measure(servers[at]));
  return row(rowQuestion, bench.subjects, samples);
}

/** Starts a server for each subject, one after the other. */
export async function startBoth<S>(
  bench: Bench,
  start: (subject: Subject) => Promise<S>,
): Promise<readonly [S, S]> {
  const [baseline, ours] = bench.subjects;
  return [await start(baseline), await start(ours)];
}
