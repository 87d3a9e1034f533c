// Results of the overview: their types, and functions that read and write them. All reports, tables
// and pictures are generated from results.json in their folder.

import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { Latency } from "../support/load.ts";

export interface PeerFigure {
  readonly peer: string;
  /** Median of the samples. */
  readonly value: number;
  /** Range of the samples divided by their median. */
  readonly spread: number;
  readonly samples: readonly number[];
  /** Latencies in microseconds. */
  readonly latency?: Latency;
  /** Processor time of the server for each operation, microseconds. */
  readonly cpuUs?: number;
  /** Value divided by that of the raw server. Absent if no raw server was measured. */
  readonly ratio?: number;
  /** `cpuUs` divided by that of the raw server. Affected less by other load than `ratio`. */
  readonly cpuRatio?: number;
}

export interface OverviewRow {
  /** Id that is unique in a result, such as `fanout-1000`. */
  readonly id: string;
  readonly title: string;
  readonly unit: string;
  readonly isLowerBetter: boolean;
  /**
   * Way in which messages are sent, such as `closed loop, 16 in flight`. Empty if no messages are
   * sent.
   */
  readonly loop: string;
  readonly figures: readonly PeerFigure[];
}

export interface OverviewPeer {
  readonly name: string;
  readonly title: string;
  readonly lacks: readonly string[];
}

export interface Machine {
  readonly cpu: string;
  readonly cores: number;
  readonly memoryGiB: number;
  readonly node: string;
  readonly system: string;
}

export interface OverviewResult {
  /** Start time [ISO 8601]. */
  readonly at: string;
  readonly command: string;
  /** Commit of the working tree, with `+` if it has changes. */
  readonly commit: string;
  readonly machine: Machine;
  /** One-minute load averages before and after the run. */
  readonly load: { readonly before: number; readonly after: number };
  readonly rounds: number;
  readonly seconds: number;
  readonly payloadBytes: number;
  readonly peers: readonly OverviewPeer[];
  /** Peers that were not measured, with the reason. */
  readonly missing: readonly { readonly name: string; readonly reason: string }[];
  readonly rows: readonly OverviewRow[];
}

const FILE = "results.json";

/** Reads a result from its folder, or from a file. Throws if it is not a result. */
export function readResult(path: string): OverviewResult {
  const file = path.endsWith(".json") ? path : join(path, FILE);
  const result = JSON.parse(readFileSync(file, "utf8")) as OverviewResult;
  if (!Array.isArray(result.rows) || !Array.isArray(result.peers))
    throw new Error(`${file} is not a result of npm run bench.`);
  return result;
}

/** Creates the folder and writes the files into it. Keys are the names of the files. */
export function writeFiles(folder: string, files: Readonly<Record<string, string>>): void {
  mkdirSync(folder, { recursive: true });
  for (const [name, text] of Object.entries(files)) writeFileSync(join(folder, name), text);
}

export function resultText(result: OverviewResult): string {
  return `${JSON.stringify(result, undefined, 2)}\n`;
}
