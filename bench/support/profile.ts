// `--profile`: where the broker's JavaScript thread spends its time, from the profiles V8 writes
// when the process ends. Pure except for reading.

import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";

/** What `node --cpu-prof` writes, as far as it is read here. */
interface Profile {
  readonly nodes: readonly {
    readonly id: number;
    readonly callFrame: {
      readonly functionName: string;
      readonly url: string;
      readonly lineNumber: number;
    };
  }[];
  readonly samples: readonly number[];
  /** Microseconds since the sample before. */
  readonly timeDeltas: readonly number[];
}

const SHOWN = 25;

/** Node's arguments that make it write a profile into `folder` when it ends by itself. */
export function profilerArgs(folder: string): readonly string[] {
  return ["--cpu-prof", "--cpu-prof-interval=250", `--cpu-prof-dir=${folder}`];
}

/**
 * The functions with the largest share of the busy time (their own, without what they called), as
 * lines of text.
 */
export function hotSpots(folder: string): string {
  const spent = new Map<string, number>();
  for (const file of readdirSync(folder))
    add(spent, JSON.parse(readFileSync(join(folder, file), "utf8")) as Profile);
  spent.delete("(idle)");
  const busy = [...spent.values()].reduce((sum, us) => sum + us, 0);
  const lines = [...spent]
    .sort(([, a], [, b]) => b - a)
    .slice(0, SHOWN)
    .map(([name, us]) => `${((us / busy) * 100).toFixed(1).padStart(5)}%  ${name}`);
  return `share of the busy time (${(busy / 1e6).toFixed(1)} s)\n${lines.join("\n")}\n`;
}

function add(spent: Map<string, number>, profile: Profile): void {
  const names = new Map(profile.nodes.map(({ id, callFrame }) => [id, nameOf(callFrame)]));
  profile.samples.forEach((id, at) => {
    const name = names.get(id) ?? "(unknown)";
    spent.set(name, (spent.get(name) ?? 0) + (profile.timeDeltas[at] ?? 0));
  });
}

function nameOf({ functionName, url, lineNumber }: Profile["nodes"][number]["callFrame"]): string {
  const name = functionName === "" ? "(anonymous)" : functionName;
  if (url === "") return name;
  return `${name} ${url.split("/").slice(-3).join("/")}:${lineNumber + 1}`;
}
