// The metrics page: a prom-client registry that reads the families at each scrape and adds the
// process metrics. Each node has its own registry; prom-client's global registry must not be used,
// because tests run several nodes.

import { promises, statSync } from "node:fs";
import { collectDefaultMetrics, Gauge, type Metric, Registry } from "prom-client";
import { andThen, type MaybePromise } from "../lib/maybe-promise.ts";
import type { EventLoopLag } from "./event-loop-lag.ts";
import { Cell, type Family, type Histogram } from "./families.ts";

/**
 * Gauges from prom-client that are removed, because `promtool check metrics` rejects gauges named
 * like counters. Each of them is only the sum of another gauge, which has the label `type` and is
 * kept.
 */
const MISNAMED = ["handles", "requests", "resources"].map((name) => `nodejs_active_${name}_total`);

/**
 * Interval of prom-client's event-loop monitor, which cannot be disabled. In effect, it never runs.
 */
const NEVER_MS = 2 ** 31 - 1;

const OPEN_FILES = "process_open_fds";
const OPEN_FILES_FOLDER = "/proc/self/fd";

export function createRegistry(
  families: Iterable<Family<Cell> | Family<Histogram>>,
  eventLoop: Pick<EventLoopLag, "gauges">,
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
    // The registry reads only name, help, type and get(), but its type requires prom-client
    // classes.
    registry.registerMetric(source as unknown as Metric);
  }
  collectDefaultMetrics({ register: registry, eventLoopMonitoringPrecision: NEVER_MS });
  for (const name of MISNAMED) registry.removeSingleMetric(name);
  for (const gauge of eventLoop.gauges()) replaceGauge(registry, gauge);
  // prom-client lists a folder with an entry for each socket. With 10,000 clients, this would block
  // the event loop for 11 ms at each scrape.
  const openFilesGauge = { name: OPEN_FILES, help: "Number of open file descriptors." };
  if (process.platform === "linux") replaceGauge(registry, { ...openFilesGauge, read: openFiles });
  return registry;
}

/** A gauge whose value is read at each scrape. It keeps its value if `read` returns `undefined`. */
interface ReadGauge {
  readonly name: string;
  readonly help: string;
  read(): MaybePromise<number | undefined>;
}

/** Replaces prom-client's gauge of the same name. */
function replaceGauge(registry: Registry, { name, help, read }: ReadGauge): void {
  registry.removeSingleMetric(name);
  const collect = function (this: Gauge) {
    return andThen(read(), (value) => {
      if (value !== undefined) this.set(value);
    });
  };
  new Gauge({ name, help, registers: [registry], collect });
}

/**
 * Returns the number of open files of this process, or `undefined` in a sandbox that hides /proc.
 * Linux 6.2 and later report the number as the size of the folder. Earlier versions report 0, so
 * the entries are counted, but not on the event loop.
 */
function openFiles(): MaybePromise<number | undefined> {
  try {
    const { size } = statSync(OPEN_FILES_FOLDER);
    return size > 0 ? size : countOpenFiles();
  } catch {
    return undefined;
  }
}

async function countOpenFiles(): Promise<number | undefined> {
  try {
    return (await promises.readdir(OPEN_FILES_FOLDER)).length - 1; // readdir itself opens one file
  } catch {
    return undefined;
  }
}

type Labels = Readonly<Record<string, string | number>>;
interface Sample {
  readonly labels: Labels;
  readonly value: number;
  readonly metricName?: string;
}

function samplesOf(family: Family<Cell> | Family<Histogram>): readonly Sample[] {
  const { name, labels: names } = family.row;
  return [...family.entries()].flatMap(({ labels: values, series }) => {
    const labels = Object.fromEntries(names.map((label, index) => [label, values[index] ?? ""]));
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
