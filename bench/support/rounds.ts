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

/** Steps of `compare` for a server of type `S`. */
interface Contest<S> {
  start(subject: Subject): Promise<S>;
  stop(server: S): Promise<void>;
  /** Each question becomes a row of the table. */
  readonly questions: readonly (Question & { measure(server: S): Promise<Sample> })[];
}

/**
 * Measures both subjects alternately and returns a row for each question. Each round starts a new
 * server, for two reasons. The compiled code of two processes of the same build may differ in speed
 * by 10 %, which further rounds in the same process would not show. In addition, a server that
 * waited for its turn would also use the measured core.
 */
export async function compare<S>(
  bench: Bench,
  { start, stop, questions }: Contest<S>,
): Promise<readonly Row[]> {
  const [baseline, ours] = await alternate(bench, async (subject) => {
    const server = await start(subject);
    const samples = new Map<object, Sample>();
    for (const question of questions) samples.set(question, await question.measure(server));
    await stop(server);
    return samples;
  });
  return questions.map((question) => {
    const { measure, ...rowQuestion } = question;
    const samplesOf = (rounds: typeof ours) => rounds.flatMap((round) => round.get(question) ?? []);
    return row(rowQuestion, bench.subjects, [samplesOf(baseline), samplesOf(ours)]);
  });
}
