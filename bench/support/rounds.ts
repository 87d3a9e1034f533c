// Measures subjects alternately, so that other load on the machine affects all of them equally.

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
  const measureAt = (subject: Subject, at: number) => measure(subject, at === 0 ? 0 : 1);
  const [baseline = [], ours = []] = await takeTurns(bench, bench.subjects, measureAt);
  return [baseline, ours];
}

/**
 * Measures all subjects in turn, `plan.rounds` times each. Returns the samples of each subject, in
 * the order of the subjects.
 */
export async function takeTurns<S, T>(
  { plan }: Pick<Bench, "plan">,
  subjects: readonly S[],
  measure: (subject: S, at: number) => Promise<T>,
): Promise<readonly (readonly T[])[]> {
  const samples: readonly T[][] = subjects.map(() => []);
  for (let round = 0; round < plan.rounds; round++)
    for (const [at, subject] of subjects.entries()) samples[at]?.push(await measure(subject, at));
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
