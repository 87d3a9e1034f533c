// The option `--profile`: reports where the broker's JavaScript thread spends its time, from the
// CPU profiles that V8 writes when the process ends.

import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { sourcePlace } from "../../src/observe/source-lines.ts";

/** The fields of a profile of `node --cpu-prof` that are used here. */
interface Profile {
  readonly nodes: readonly {
    readonly id: number;
    readonly callFrame: {
      readonly functionName: string;
      readonly url: string;
      readonly lineNumber: number;
      readonly columnNumber: number;
    };
  }[];
  readonly samples: readonly number[];
  /** Microseconds between each sample and the previous sample. */
  readonly timeDeltas: readonly number[];
}

const MAX_FUNCTIONS = 25;

/** Returns the arguments that make Node.js write a profile into `folder` when it ends normally. */
export function profilerArgs(folder: string): readonly string[] {
  return ["--cpu-prof", "--cpu-prof-interval=250", `--cpu-prof-dir=${folder}`];
}

/**
 * Returns a report of the functions with the largest share of the busy time. The time of a function
 * does not include the functions that it calls.
 */
export function hotSpots(folder: string): string {
  const timeByFunction = new Map<string, number>();
  for (const file of readdirSync(folder))
    add(timeByFunction, JSON.parse(readFileSync(join(folder, file), "utf8")) as Profile);
  timeByFunction.delete("(idle)");
  const busy = [...timeByFunction.values()].reduce((sum, us) => sum + us, 0);
  const lines = [...timeByFunction]
    .sort(([, a], [, b]) => b - a)
    .slice(0, MAX_FUNCTIONS)
    .map(([name, us]) => `${((us / busy) * 100).toFixed(1).padStart(5)}%  ${withSource(name)}`);
  return `share of the busy time (${(busy / 1e6).toFixed(1)} s)\n${lines.join("\n")}\n`;
}

function add(timeByFunction: Map<string, number>, profile: Profile): void {
  const names = new Map(profile.nodes.map(({ id, callFrame }) => [id, nameOf(callFrame)]));
  profile.samples.forEach((id, at) => {
    const name = names.get(id) ?? "(unknown)";
    timeByFunction.set(name, (timeByFunction.get(name) ?? 0) + (profile.timeDeltas[at] ?? 0));
  });
}

function nameOf(frame: Profile["nodes"][number]["callFrame"]): string {
  const { functionName, url, lineNumber, columnNumber } = frame;
  const name = functionName === "" ? "(anonymous)" : functionName;
  return url === "" ? name : `${name} ${url}:${lineNumber + 1}:${columnNumber + 1}`;
}

/** Replaces the location of a bundled function with its location in the sources. */
function withSource(name: string): string {
  return name.replace(/(file:\S+):(\d+):(\d+)$/, (place, url, line, column) => {
    const source = sourcePlace(new URL(url), Number(line), Number(column));
    return source ?? place.split("/").slice(-3).join("/");
  });
}
