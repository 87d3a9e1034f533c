// The words of the benches: what a benchmark is, what it measures and what it reports. Types and
// one rule, no state. Ratios are the figures that travel between machines; absolute ones are only
// true where and when they were taken.

import type { Latency } from "./load.ts";
import type { Workbench } from "./workbench.ts";

/**
 * Something to be measured: the bare server, or a build of the broker in a directory with `dist/`
 * and `node_modules/`.
 */
export type Subject =
  | { readonly kind: "raw"; readonly name: string }
  | {
      readonly kind: "broker";
      readonly name: string;
      readonly directory: string;
      /** Where to write profiles of the process; they cost it some speed. */
      readonly profileFolder?: string;
    };

/** How long and how often. */
export interface Plan {
  /** A smoke run: seconds, small numbers, figures that mean nothing. */
  readonly isQuick: boolean;
  /** How often each subject is measured, in turn. */
  readonly rounds: number;
  readonly warmupS: number;
  readonly seconds: number;
  /** Connected users, where there are many. */
  readonly sessions: number;
}

export interface Bench {
  /** What to compare with, and ours; measured alternately. */
  readonly subjects: readonly [Subject, Subject];
  readonly plan: Plan;
  readonly workbench: Workbench;
}

/** One measurement. */
export interface Sample {
  readonly value: number;
  readonly latency?: Latency;
  /** Processor time of the server, microseconds for each operation. */
  readonly cpuUs?: number;
}

/** What a figure has to reach. */
export type Target =
  | { readonly kind: "ratio"; readonly atLeast: number }
  | { readonly kind: "value"; readonly atMost: number };

export interface Question {
  readonly title: string;
  readonly unit: string;
  /** Only meant against the raw server. */
  readonly target?: Target;
}

/** The median of all rounds. */
export interface Figure {
  readonly subject: string;
  readonly value: number;
  /** (largest − smallest) ÷ median of the rounds' values. */
  readonly spread: number;
  readonly samples: readonly number[];
  readonly latency?: Latency;
  readonly cpuUs?: number;
}

export interface Row extends Question {
  readonly baseline: Figure;
  readonly ours: Figure;
  /** Ours ÷ baseline, of the medians. */
  readonly ratio: number;
}

export interface Benchmark {
  readonly name: string;
  /** The one question it answers, for a reader of the table. */
  readonly question: string;
  /** One server at a time is measured, on a core of its own. */
  readonly isPinned?: boolean;
  run(bench: Bench): Promise<readonly Row[]>;
}

/** Whether a row reached its target; undefined when it has none. */
export function reached(row: Row): boolean | undefined {
  if (row.target === undefined) return undefined;
  if (row.target.kind === "ratio") return row.ratio >= row.target.atLeast;
  return row.ours.value <= row.target.atMost;
}
