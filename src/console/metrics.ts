// Parses metrics pages in the Prometheus text format, and keeps the last 15 minutes of metrics for
// each node separately, so that the figures of two nodes behind a balancer are never mixed.

const WINDOW_MS = 15 * 60_000;
/** Series that the console needs. Keeping all series would use too much memory. */
const NEEDED =
  /^(jindou_(?!http_request_duration|recvack|work_charged)|process_(resident|cpu_seconds|open_fds|max_fds|start)|nodejs_eventloop_lag_p99)/;

export interface Series {
  readonly labels: Readonly<Record<string, string>>;
  readonly value: number;
}

/** One node's metrics at one time. */
export interface Sample {
  readonly atMs: number;
  readonly series: ReadonlyMap<string, readonly Series[]>;
}

interface MetricsPage {
  readonly nodeId: string;
  readonly sample: Sample;
  readonly help: ReadonlyMap<string, string>;
}

/** Matches a line of a series: name, labels, value. */
const LINE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

export function readMetrics(text: string, atMs: number): MetricsPage {
  const series = new Map<string, Series[]>();
  const help = new Map<string, string>();
  for (const line of text.split("\n")) {
    if (line.startsWith("# HELP ")) {
      const end = line.indexOf(" ", 7);
      help.set(line.slice(7, end), line.slice(end + 1));
      continue;
    }
    const [, name, labels = "", value] = LINE.exec(line) ?? [];
    if (name === undefined || !NEEDED.test(name)) continue;
    const entries = Array.from(labels.matchAll(LABEL), ([, label = "", quoted = ""]) => [
      label,
      quoted.replaceAll(/\\(.)/g, (_, escaped) => (escaped === "n" ? "\n" : escaped)),
    ]);
    const list = series.get(name) ?? [];
    list.push({ labels: Object.fromEntries(entries), value: Number(value) });
    series.set(name, list);
  }
  const nodeId = series.get("jindou_build_info")?.[0]?.labels.node_id ?? "";
  return { nodeId, sample: { atMs, series }, help };
}

export class MetricsHistory {
  readonly #byNode = new Map<string, Sample[]>();
  help: ReadonlyMap<string, string> = new Map();

  add({ nodeId, sample, help }: MetricsPage): void {
    const samples = this.#byNode.get(nodeId) ?? [];
    const kept = samples.filter(({ atMs }) => atMs > sample.atMs - WINDOW_MS);
    // Counters begin at 0 after a restart, so earlier samples are dropped.
    const startedAt = (of: Sample | undefined) => sumOf(of, "process_start_time_seconds");
    const isSameProcess = startedAt(kept.at(-1)) === startedAt(sample);
    this.#byNode.set(nodeId, isSameProcess ? [...kept, sample] : [sample]);
    this.help = help;
  }

  get nodes(): readonly string[] {
    return [...this.#byNode.keys()];
  }

  /** Returns a node's samples, oldest first. */
  of(nodeId: string): readonly Sample[] {
    return this.#byNode.get(nodeId) ?? [];
  }
}

type Labels = Readonly<Record<string, string>>;

function matches(labels: Labels, where: Labels): boolean {
  return Object.entries(where).every(([name, value]) => labels[name] === value);
}

/** Returns the sum of the series with these labels, or `undefined` if there are no such series. */
export function sumOf(
  sample: Sample | undefined,
  metric: string,
  where: Labels = {},
): number | undefined {
  const series = sample?.series.get(metric)?.filter(({ labels }) => matches(labels, where));
  if (series === undefined || series.length === 0) return undefined;
  return series.reduce((sum, { value }) => sum + value, 0);
}

/** Returns the newest sample that is at least `spanMs` older than the last sample. */
export function sampleBefore(samples: readonly Sample[], spanMs: number): Sample | undefined {
  const last = samples.at(-1);
  if (last === undefined) return undefined;
  return samples.findLast(({ atMs }) => atMs <= last.atMs - spanMs);
}

/** Returns the change per second between consecutive samples. */
export function ratesOf(samples: readonly Sample[], metric: string): readonly (number | null)[] {
  return samples.map((sample, index) => {
    const previous = samples[index - 1];
    if (previous === undefined) return null;
    const change = (sumOf(sample, metric) ?? 0) - (sumOf(previous, metric) ?? 0);
    return Math.max(0, change) / ((sample.atMs - previous.atMs) / 1000);
  });
}

interface Span {
  readonly from: Sample | undefined;
  readonly to: Sample | undefined;
}

/** Returns the 99th percentile of the values that a histogram has counted between two samples. */
export function p99Of(
  histogram: string,
  { from, to }: Span,
  where: Labels = {},
): number | undefined {
  const counts = new Map<number, number>();
  for (const [sample, sign] of [
    [to, 1],
    [from, -1],
  ] as const)
    for (const { labels, value } of sample?.series.get(`${histogram}_bucket`) ?? []) {
      if (!matches(labels, where)) continue;
      const bound = labels.le === "+Inf" ? Number.POSITIVE_INFINITY : Number(labels.le);
      counts.set(bound, (counts.get(bound) ?? 0) + sign * value);
    }
  const bounds = [...counts.keys()].sort((a, b) => a - b);
  const total = counts.get(Number.POSITIVE_INFINITY) ?? 0;
  if (total <= 0) return undefined;
  const rank = 0.99 * total;
  let [lower, below] = [0, 0];
  for (const bound of bounds) {
    const count = counts.get(bound) ?? 0;
    if (count >= rank) {
      if (!Number.isFinite(bound)) return lower;
      const inBucket = count - below;
      return inBucket === 0 ? bound : lower + (bound - lower) * ((rank - below) / inBucket);
    }
    [lower, below] = [bound, count];
  }
  return lower;
}
