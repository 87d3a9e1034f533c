// Compares two results of the overview. A difference within the noise of the two runs is marked as
// such. Pure.

import { markdownTable, valueText } from "./report.ts";
import type { OverviewResult } from "./results.ts";

export interface Difference {
  readonly id: string;
  readonly peer: string;
  readonly before: number;
  readonly after: number;
  /** Relative change in value: 0.1 means 10 % more. */
  readonly change: number;
  /** The larger spread of the two results, where the spread is (largest − smallest) ÷ median. */
  readonly noise: number;
  readonly isWithinNoise: boolean;
}

/** Returns the differences for all figures that both results contain. */
export function differences(a: OverviewResult, b: OverviewResult): readonly Difference[] {
  return b.rows.flatMap(({ id, figures }) =>
    figures.flatMap(({ peer, value, spread }) => {
      const before = a.rows
        .find((row) => row.id === id)
        ?.figures.find((figure) => figure.peer === peer);
      if (before === undefined) return [];
      const change = value / before.value - 1;
      const noise = Math.max(spread, before.spread);
      const isWithinNoise = Math.abs(change) <= noise;
      return [{ id, peer, before: before.value, after: value, change, noise, isWithinNoise }];
    }),
  );
}

export function comparison(a: OverviewResult, b: OverviewResult): string {
  const rows = differences(a, b).map(
    ({ id, peer, before, after, change, noise, isWithinNoise }) => [
      ...[id, peer, valueText(before), valueText(after)],
      `${change < 0 ? "−" : "+"}${(Math.abs(change) * 100).toFixed(0)} %`,
      `${(noise * 100).toFixed(0)} %`,
      isWithinNoise ? "within the noise" : change > 0 ? "higher" : "lower",
    ],
  );
  const head = ["work", "peer", "before", "after", "change", "noise", ""];
  const machines =
    JSON.stringify(a.machine) === JSON.stringify(b.machine)
      ? ""
      : "\nThe machines differ, so only ratios can be compared.\n";
  return `${markdownTable(head, rows)}\nBefore: ${a.commit}, ${a.at}. After: ${b.commit}, ${b.at}.\n${machines}`;
}
