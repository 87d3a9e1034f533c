// Conditions on a node's metrics. The table in `alerts.ts` uses them for the Prometheus alerts and
// for the console's verdict, which is computed in the browser (`src/console/verdict.ts`). Pure
// functions, which also run in browsers.

/** Name of the scrape job in Prometheus. The dashboard lets users select a different job. */
export const JOB = "jindou";

interface Selector {
  /** Name of the metric, including the prefix. */
  readonly metric: string;
  readonly where?: { readonly label: string; readonly values: readonly string[] };
}

/** Change over the last `minutes`, per second (`rate`) or in total (`increase`). */
export interface Change extends Selector {
  readonly kind: "rate" | "increase";
  readonly minutes: number;
  /**
   * Labels, besides `job` and `instance`, by which the changes are summed. Without `by`, the
   * changes of the series are not summed.
   */
  readonly by?: readonly string[];
}

/** A number that is computed from the metrics of one node, separately for each series. */
export type Figure =
  | ({ readonly kind: "value" | "absolute" } & Selector)
  | Change
  | { readonly kind: "ratio"; readonly of: string; readonly to: string }
  /** 99th percentile of a histogram over 5 minutes. In Prometheus, a recording rule provides it. */
  | { readonly kind: "p99"; readonly histogram: string };

export interface Comparison {
  readonly figure: Figure;
  readonly is: ">" | "<" | "==";
  readonly than: number;
}

/** Period over which the recording rules compute rates and percentiles, in minutes. */
export const RECORDED_MINUTES = 5;

export function value(name: string): Figure {
  return { kind: "value", metric: fullName(name) };
}

export function rate(name: string, options: Omit<Change, "kind" | "metric">): Figure {
  return { kind: "rate", metric: fullName(name), ...options };
}

export function increase(name: string, options: Omit<Change, "kind" | "metric">): Figure {
  return { kind: "increase", metric: fullName(name), ...options };
}

export function fullName(name: string): string {
  return name.startsWith("nodejs_") || name.startsWith("process_") ? name : `jindou_${name}`;
}

/** Returns the name of a histogram's recording rule. */
export function recordedP99(histogram: string): string {
  return `instance:${histogram}:p99_${RECORDED_MINUTES}m`;
}

export function promqlOf(comparisons: readonly Comparison[]): string {
  return comparisons
    .map(({ figure, is, than }) => `${figureExpression(figure)} ${is} ${than}`)
    .join(" or ");
}

function figureExpression(figure: Figure): string {
  switch (figure.kind) {
    case "value":
      return selector(figure);
    case "absolute":
      return `abs(${selector(figure)})`;
    case "ratio":
      return `${selector({ metric: figure.of })} / ${selector({ metric: figure.to })}`;
    case "p99":
      return recordedP99(figure.histogram);
    case "rate":
    case "increase": {
      const { kind, minutes, by } = figure;
      const range = minutes % 60 === 0 ? `${minutes / 60}h` : `${minutes}m`;
      const change = `${kind}(${selector(figure)}[${range}])`;
      return by === undefined
        ? change
        : `sum by (${["job", "instance", ...by].join(", ")}) (${change})`;
    }
  }
}

/** Returns the PromQL selector for the series of the metric in the job, limited by `where`. */
export function selector({ metric, where }: Selector): string {
  if (where === undefined) return `${metric}{job="${JOB}"}`;
  const { label, values } = where;
  const matcher = values.length === 1 ? `="${values[0]}"` : `=~"${values.join("|")}"`;
  return `${metric}{job="${JOB}",${label}${matcher}}`;
}
