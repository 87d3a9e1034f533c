// Types of the benches: benchmarks, samples and rows of results. Only ratios are comparable between
// machines; absolute values depend on the machine and its load.

import type { Latency } from "./load.ts";
import type { Workbench } from "./workbench.ts";

/**
 * A program to measure: the raw server, or a build of the broker in a directory with `dist/` and
 * `node_modules/`.
 */
export type Subject =
  | { readonly kind: "raw"; readonly name: string }
  | {
      readonly kind: "broker";
      readonly name: string;
      readonly directory: string;
      /** Value of `transport.driver`. Absent for the default of the build. */
      readonly transport?: "uws" | "portable";
      /**
       * Folder for CPU profiles of the process. Profiling makes the process slower. Absent if no
       * profile is written.
       */
      readonly profileFolder?: string;
    };

/** Length and number of the measurements. */
export interface Plan {
  /** True if the run is a smoke test, which takes seconds and has meaningless results. */
  readonly isQuick: boolean;
  /** Number of measurements of each subject. The subjects are measured alternately. */
  readonly rounds: number;
  readonly warmupS: number;
  readonly seconds: number;
  /** Number of connected users in the benches with many sessions. */
  readonly sessions: number;
}

export interface Bench {
  /** The baseline, and our build. */
  readonly subjects: readonly [Subject, Subject];
  readonly plan: Plan;
  readonly workbench: Workbench;
}

/** Result of one measurement. */
export interface Sample {
  readonly value: number;
  readonly latency?: Latency;
  /** CPU time of the server for each operation, microseconds. */
  readonly cpuUs?: number;
}

/** Target of a row: a minimum or maximum of the ratio, or a maximum of our value. */
export type Target =
  | { readonly kind: "ratio"; readonly atLeast: number }
  | { readonly kind: "slowdown"; readonly atMost: number }
  | { readonly kind: "value"; readonly atMost: number };

export interface Question {
  readonly title: string;
  readonly unit: string;
  /** Target for comparisons with the raw server. */
  readonly target?: Target;
}

/** Medians of all rounds of one subject. */
export interface Figure {
  readonly subject: string;
  readonly value: number;
  /** Range of the rounds' values divided by their median. */
  readonly spread: number;
  readonly samples: readonly number[];
  readonly latency?: Latency;
  readonly cpuUs?: number;
}

export interface Row extends Question {
  readonly baseline: Figure;
  readonly ours: Figure;
  /** Median of `ours` divided by the median of `baseline`. */
  readonly ratio: number;
}

export interface Benchmark {
  readonly name: string;
  /** Question that the benchmark answers. Printed above its table. */
  readonly question: string;
  /** True if measured servers run on the first core, and everything else on the other cores. */
  readonly isPinned?: boolean;
  run(bench: Bench): Promise<readonly Row[]>;
}

/** Returns whether the row reached its target, or `undefined` if it has no target. */
export function reached(row: Row): boolean | undefined {
  if (row.target === undefined) return undefined;
  switch (row.target.kind) {
    case "ratio":
      return row.ratio >= row.target.atLeast;
    case "slowdown":
      return row.ratio <= row.target.atMost;
    case "value":
      return row.ours.value <= row.target.atMost;
  }
}
