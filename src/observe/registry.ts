// Turns the families into Prometheus text through prom-client, beside its metrics of the process (memory, CPU, event-loop
// lag, garbage collection). Owns one registry per node, never prom-client's global one.

import { collectDefaultMetrics, type Metric, Registry } from "prom-client";
import { Cell, type Family, type Histogram } from "./cells.ts";

type Labels = Readonly<Record<string, string | number>>;
interface Sample {
  readonly labels: Labels;
  readonly value: number;
  readonly metricName?: string;
}

/** A registry that asks the families for their samples at each scrape. */
export function createRegistry(
  families: Iterable<Family<Cell> | Family<Histogram>>,
): Registry {
  const registry = new Registry();
  for (const family of families) {
    const { name, help, kind } = family.row;
    const source = {
      name,
      help,
      type: kind,
      get: () => ({ name, help, type: kind, values: samplesOf(family) }),
    };
    // Library edge: a registry only reads name, help, type and get(), but its type asks for one of its own classes.
    registry.registerMetric(source as unknown as Metric);
  }
  collectDefaultMetrics({ register: registry });
  return registry;
}

function samplesOf(
  family: Family<Cell> | Family<Histogram>,
): readonly Sample[] {
  const { name, labels: names } = family.row;
  return [...family.entries()].flatMap(({ labels: values, series }) => {
    const labels = Object.fromEntries(
      names.map((label, index) => [label, values[index] ?? ""]),
    );
    return series instanceof Cell
      ? [{ labels, value: series.value }]
      : buckets(name, labels, series);
  });
}

function buckets(
  name: string,
  labels: Labels,
  { bounds, counts, sum }: Histogram,
): readonly Sample[] {
  let total = 0;
  const samples: Sample[] = [];
  for (const [index, count] of counts.entries()) {
    total += count;
    samples.push({
      metricName: `${name}_bucket`,
      labels: { ...labels, le: bounds[index] ?? "+Inf" },
      value: total,
    });
  }
  samples.push({ metricName: `${name}_sum`, labels, value: sum });
  samples.push({ metricName: `${name}_count`, labels, value: total });
  return samples;
}
