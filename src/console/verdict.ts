// Evaluates the conditions of the alerts with the metrics that the console has read from a node. A
// condition over a period can be evaluated only after the page has been open for the whole period,
// unless its limit is 0.

import { ALERTS, type AlertRule } from "../observe/alerts.ts";
import {
  type Change,
  type Comparison,
  type Figure,
  RECORDED_MINUTES,
} from "../observe/conditions.ts";
import { byteSize, duration, percent } from "./format.ts";
import { p99Of, type Sample, type Series, sampleBefore } from "./metrics.ts";

const MINUTE_MS = 60_000;

interface Reason {
  readonly name: string;
  readonly severity: AlertRule["severity"];
  readonly text: string;
  /** True if the condition has held for less time than the `forMinutes` of the alert. */
  readonly isRecent: boolean;
}

export interface Verdict {
  readonly reasons: readonly Reason[];
  /** Milliseconds until all conditions can be evaluated. 0 if all can be evaluated now. */
  readonly measuringMs: number;
}

export function verdictOn(nodeId: string, samples: readonly Sample[]): Verdict {
  const reasons: Reason[] = [];
  let measuringMs = 0;
  for (const rule of ALERTS) {
    if (typeof rule.when === "string") continue; // PromQL, which the console cannot evaluate
    for (const comparison of rule.when) {
      const { series, missingMs } = evaluate(comparison.figure, samples);
      const failing = series.find((each) => holds(comparison, each.value));
      // If the limit is 0, part of the period is enough: a counter that has grown in part of the
      // period has also grown in the whole period.
      const isCertain = missingMs === 0 || comparison.than === 0;
      if (!isCertain || failing === undefined) {
        measuringMs = Math.max(measuringMs, missingMs);
        continue;
      }
      reasons.push({
        name: rule.name,
        severity: rule.severity,
        text: fillIn(rule.summary, nodeId, failing),
        isRecent: heldMs(comparison, samples) < rule.forMinutes * MINUTE_MS,
      });
      break;
    }
  }
  return { reasons, measuringMs };
}

/**
 * Returns the time for which the comparison has held, in milliseconds, or `Infinity` for a figure
 * over a period, because such a figure is never reported as recent.
 */
function heldMs(comparison: Comparison, samples: readonly Sample[]): number {
  const { kind } = comparison.figure;
  if (kind === "rate" || kind === "increase" || kind === "p99") return Number.POSITIVE_INFINITY;
  const failsAt = samples.findLastIndex((sample) => {
    const { series } = evaluate(comparison.figure, [sample]);
    return !series.some(({ value }) => holds(comparison, value));
  });
  const first = samples[failsAt + 1];
  return first === undefined ? 0 : (samples.at(-1)?.atMs ?? 0) - first.atMs;
}

function holds({ is, than }: Comparison, value: number): boolean {
  switch (is) {
    case ">":
      return value > than;
    case "<":
      return value < than;
    case "==":
      return value === than;
  }
}

interface Result {
  readonly series: readonly Series[];
  /** Length of that part of the period that the samples do not cover yet, in milliseconds. */
  readonly missingMs: number;
}

function evaluate(figure: Figure, samples: readonly Sample[]): Result {
  const last = samples.at(-1);
  switch (figure.kind) {
    case "value":
      return { series: selected(last, figure), missingMs: 0 };
    case "absolute": {
      const series = selected(last, figure);
      return { series: series.map((s) => ({ ...s, value: Math.abs(s.value) })), missingMs: 0 };
    }
    case "ratio": {
      const [of] = last?.series.get(figure.of) ?? [];
      const [to] = last?.series.get(figure.to) ?? [];
      const series = of && to && to.value > 0 ? [{ labels: {}, value: of.value / to.value }] : [];
      return { series, missingMs: 0 };
    }
    case "p99": {
      const { from, missingMs } = windowOf(samples, RECORDED_MINUTES);
      const value = p99Of(figure.histogram, { from, to: last });
      return { series: value === undefined ? [] : [{ labels: {}, value }], missingMs };
    }
    case "rate":
    case "increase": {
      const { from, missingMs } = windowOf(samples, figure.minutes);
      return { series: changes(figure, from, last), missingMs };
    }
  }
}

function windowOf(samples: readonly Sample[], minutes: number) {
  const spanMs = Math.min(minutes, MAX_MINUTES) * MINUTE_MS;
  const [first] = samples;
  const openMs = (samples.at(-1)?.atMs ?? 0) - (first?.atMs ?? 0);
  const from = sampleBefore(samples, spanMs) ?? first;
  return { from, missingMs: Math.max(0, spanMs - openMs) };
}

/**
 * Maximum period of a figure, in minutes. The console keeps each sample for 15 minutes, so the
 * oldest sample may be a little less than 15 minutes old.
 */
const MAX_MINUTES = 14;

function changes(
  figure: Change,
  from: Sample | undefined,
  to: Sample | undefined,
): readonly Series[] {
  if (from === undefined || to === undefined || from === to) return [];
  const seconds = (to.atMs - from.atMs) / 1000;
  const groups = new Map<string, { readonly labels: Series["labels"]; total: number }>();
  for (const [sample, sign] of [
    [to, 1],
    [from, -1],
  ] as const)
    for (const { labels, value } of selected(sample, figure)) {
      const kept = figure.by === undefined ? labels : pick(labels, figure.by);
      const key = JSON.stringify(kept);
      const group = groups.get(key) ?? { labels: kept, total: 0 };
      group.total += sign * value;
      groups.set(key, group);
    }
  return [...groups.values()].map(({ labels, total }) => ({
    labels,
    value: figure.kind === "rate" ? total / seconds : total,
  }));
}

function pick(labels: Series["labels"], names: readonly string[]): Series["labels"] {
  return Object.fromEntries(names.map((name) => [name, labels[name] ?? ""]));
}

function selected(
  sample: Sample | undefined,
  { metric, where }: Pick<Change, "metric" | "where">,
): readonly Series[] {
  const series = sample?.series.get(metric) ?? [];
  if (where === undefined) return series;
  return series.filter(({ labels }) => where.values.includes(labels[where.label] ?? ""));
}

const FORMATS: Readonly<Record<string, (value: number) => string>> = {
  humanize1024: (value) => byteSize(value).replace(/B$/, ""),
  humanizePercentage: percent,
  humanizeDuration: duration,
};

/** Fills in the Prometheus placeholders in an alert's summary. */
function fillIn(summary: string, nodeId: string, { labels, value }: Series): string {
  return summary.replaceAll(/\{\{ (.*?) \}\}/g, (_, placeholder: string) => {
    const [name = "", format = ""] = placeholder.split(" | ");
    if (name === "$labels.instance") return `Node ${nodeId}`;
    if (name.startsWith("$labels.")) return labels[name.slice("$labels.".length)] ?? "";
    return FORMATS[format]?.(value) ?? String(Number(value.toPrecision(3)));
  });
}
