// Overview page: whether the chosen node is healthy, how close it is to its limits, and its recent
// load, all computed from the node's metrics. Also shows the cluster's nodes, and the recent errors
// of the node that replies.

import { useEffect, useRef, useState } from "preact/hooks";
import { MAX_ATTEMPTS } from "./api.ts";
import { Chart } from "./chart.tsx";
import { byteSize, clockTime, duration, number, percent } from "./format.ts";
import { type Loaded, linkTo, useApi, useLoaded, whileVisible } from "./hooks.ts";
import {
  MetricsHistory,
  p99Of,
  ratesOf,
  readMetrics,
  type Sample,
  sampleBefore,
  sumOf,
} from "./metrics.ts";
import {
  Card,
  Empty,
  ErrorNote,
  Figure,
  FigureHead,
  PageHead,
  Scroll,
  UserLink,
} from "./parts.tsx";
import { type ClosedPage, DEVICE_NAMES, type ErrorsPage, type NodeRow } from "./replies.ts";
import { type Verdict, verdictOn } from "./verdict.ts";

const POLL_MS = 5000;
const SHOWN_ERRORS = 8;
const MINUTE_MS = 60_000;

interface Metrics {
  readonly history: MetricsHistory;
  readonly error: Error | undefined;
  /** Node whose metrics are shown: the chosen node, or the first node that replied. */
  readonly node: string | undefined;
  choose(node: string): void;
}

/**
 * Reads the metrics while the console is open, even on its other pages. Behind a balancer, makes up
 * to `MAX_ATTEMPTS` calls until the chosen node replies. Also stores the metrics of the other nodes
 * that reply.
 */
export function useMetrics(): Metrics {
  const api = useApi();
  const [history] = useState(() => new MetricsHistory());
  const [state, setState] = useState<{ readonly error?: Error; readonly node?: string }>({});
  const isReading = useRef(false);
  const chosen = useRef<string | undefined>(undefined);
  const readNow = useRef(() => {});
  useEffect(() => {
    const read = async () => {
      if (isReading.current) return;
      isReading.current = true;
      try {
        for (let attempt = 1; attempt <= MAX_ATTEMPTS; attempt += 1) {
          const page = readMetrics(await api.text("/metrics"), Date.now());
          history.add(page);
          chosen.current ??= page.nodeId;
          if (page.nodeId === chosen.current) break;
        }
        setState(chosen.current === undefined ? {} : { node: chosen.current });
      } catch (error) {
        setState((old) => ({ ...old, error: error as Error }));
      }
      isReading.current = false;
    };
    readNow.current = () => void read();
    readNow.current();
    return whileVisible(() => void read(), POLL_MS);
  }, [api, history]);
  const choose = (node: string) => {
    chosen.current = node;
    setState({ node });
    readNow.current();
  };
  return { history, error: state.error, node: state.node, choose };
}

export function Overview({ metrics }: { readonly metrics: Metrics }) {
  const { history, error, node, choose } = metrics;
  const api = useApi();
  const nodes = useLoaded("nodes", () => api.get<readonly NodeRow[]>("/cluster/nodes"), POLL_MS);
  const ids = new Set([...(nodes.data ?? []).map(({ id }) => id), ...history.nodes]);
  const samples = node === undefined ? [] : history.of(node);
  const help = (name: string) => history.help.get(name) ?? "";
  return (
    <>
      <PageHead title="Overview" json="/varz">
        {ids.size > 1 && (
          <label class="inline">
            Node{" "}
            <select
              aria-label="Node"
              value={node ?? ""}
              onChange={(event) => choose(event.currentTarget.value)}
            >
              {[...ids].sort().map((id) => (
                <option key={id}>{id}</option>
              ))}
            </select>
          </label>
        )}
      </PageHead>
      <ErrorNote error={error} />
      {node !== undefined && samples.length > 0 && (
        <>
          <VerdictBanner
            node={node}
            verdict={verdictOn(node, samples)}
            atMs={samples.at(-1)?.atMs ?? 0}
          />
          <Limits samples={samples} help={help} />
          <Charts samples={samples} help={help} />
        </>
      )}
      <div class="columns">
        <Nodes nodes={nodes} />
        <LoggedErrors />
        <Troubles samples={samples} />
      </div>
    </>
  );
}

function VerdictBanner(props: {
  readonly node: string;
  readonly verdict: Verdict;
  readonly atMs: number;
}) {
  const { node, verdict, atMs } = props;
  const { reasons, measuringMs } = verdict;
  const level = levelOf(reasons);
  const text = {
    bad: `Node ${node} needs action now`,
    warn: `Node ${node} works, but needs attention today`,
    watch: `Node ${node} works. A figure has recently left its normal range`,
    good: `Node ${node} is healthy`,
  }[level];
  return (
    <section class={`verdict ${level}`} aria-live="polite">
      <p class="verdict-text">
        <span class="dot" aria-hidden="true" />
        {text}
      </p>
      <p class="muted">
        As of {clockTime(atMs)}.{" "}
        {measuringMs > 0 &&
          `Measuring: conditions over longer periods can be evaluated in ${duration(Math.ceil(measuringMs / 1000))}.`}
      </p>
      {reasons.length > 0 && (
        <ul class="reasons">
          {reasons.map(({ name, severity, text: reason, isRecent }) => (
            <li key={name}>
              <span class={`badge ${severity}`}>{severity}</span> {reason}{" "}
              <span class="muted">
                ({isRecent && "the alert has not fired yet; "}
                {name} in docs/operations.md)
              </span>
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}

/**
 * Returns the level of the verdict. A recent warning results only in `watch`. A critical condition
 * results in `bad` even if it is recent, because it may be the reason why the operator opened the
 * page.
 */
function levelOf(reasons: Verdict["reasons"]): "bad" | "warn" | "watch" | "good" {
  if (reasons.some(({ severity }) => severity === "critical")) return "bad";
  if (reasons.some(({ severity, isRecent }) => severity === "warning" && !isRecent)) return "warn";
  return reasons.some(({ severity }) => severity === "warning") ? "watch" : "good";
}

interface PartProps {
  readonly samples: readonly Sample[];
  readonly help: (metric: string) => string;
}

function Limits({ samples, help }: PartProps) {
  const last = samples.at(-1);
  const value = (metric: string) => sumOf(last, metric);
  const shareOf = (part: number | undefined, whole: number | undefined) =>
    part === undefined || whole === undefined || whole <= 0 ? undefined : part / whole;
  const sockets = value("jindou_sockets");
  const socketsMax = value("jindou_sockets_max");
  const descriptors = value("process_open_fds");
  const descriptorsMax = value("process_max_fds");
  const memory = value("process_resident_memory_bytes");
  const memoryMax = value("jindou_memory_limit_bytes");
  const free = value("jindou_store_free_bytes");
  const disk = value("jindou_store_disk_bytes");
  const cpu = ratesOf(samples.slice(-2), "process_cpu_seconds_total").at(-1);
  const lag = value("nodejs_eventloop_lag_p99_seconds");
  const redis = value("jindou_redis_up");
  const startedAt = value("process_start_time_seconds");
  const up = startedAt === undefined ? undefined : (last?.atMs ?? 0) / 1000 - startedAt;
  const text = (figure: number | undefined, format = number) =>
    figure === undefined ? undefined : format(figure);
  const used = free === undefined || disk === undefined ? undefined : disk - free;
  return (
    <div class="figures">
      <Figure
        label="Sessions"
        value={text(value("jindou_sessions"))}
        help={help("jindou_sessions")}
        note={devicesOf(last)}
      />
      <Figure
        label="Sockets"
        value={text(sockets)}
        help={help("jindou_sockets")}
        note={socketsMax === undefined ? undefined : `of ${number(socketsMax)}`}
        share={shareOf(sockets, socketsMax)}
      />
      <Figure
        label="Descriptors"
        value={text(descriptors)}
        help={help("process_open_fds")}
        note={descriptorsMax === undefined ? undefined : `of ${number(descriptorsMax)}`}
        share={shareOf(descriptors, descriptorsMax)}
      />
      <Figure
        label="Memory"
        value={text(memory, byteSize)}
        help={help("process_resident_memory_bytes")}
        note={memoryMax === undefined ? undefined : `of ${byteSize(memoryMax)}`}
        share={shareOf(memory, memoryMax)}
      />
      {free !== undefined && (
        <Figure
          label="Disk, free"
          value={byteSize(free)}
          help={help("jindou_store_free_bytes")}
          note={disk === undefined ? undefined : `of ${byteSize(disk)}`}
          share={shareOf(used, disk)}
        />
      )}
      {redis !== undefined && (
        <Figure
          label="Redis"
          value={redis === 1 ? "up" : "down"}
          help={help("jindou_redis_up")}
          note={`${text(value("jindou_redis_commands_in_flight")) ?? "–"} commands in flight`}
        />
      )}
      <Figure
        label="CPU"
        value={cpu === undefined || cpu === null ? undefined : percent(cpu)}
        help={`${help("process_cpu_seconds_total")} Shown as a share of one core.`}
        note="of one core"
        share={cpu ?? undefined}
      />
      <Figure
        label="Event loop, p99"
        value={text(lag, duration)}
        help={help("nodejs_eventloop_lag_p99_seconds")}
        note="delay"
      />
      <Figure
        label="Up for"
        value={up === undefined ? undefined : duration(Math.max(0, Math.floor(up)))}
        help={help("process_start_time_seconds")}
        note={versionOf(last)}
      />
    </div>
  );
}

function versionOf(sample: Sample | undefined): string {
  const labels = sample?.series.get("jindou_build_info")?.[0]?.labels;
  return `version ${labels?.version ?? "–"}, Node.js ${labels?.node_version ?? "–"}`;
}

function devicesOf(sample: Sample | undefined): string {
  return DEVICE_NAMES.map(
    (device) =>
      `${number(sumOf(sample, "jindou_sessions", { device_flag: device }) ?? 0)} ${device}`,
  ).join(" · ");
}

const perSecond = (value: number) => `${number(value)}/s`;

function Charts({ samples, help }: PartProps) {
  const times = samples.map(({ atMs }) => atMs / 1000);
  const values = (metric: string, where?: Readonly<Record<string, string>>) =>
    samples.map((sample) => sumOf(sample, metric, where) ?? null);
  const p99 = (source: string) =>
    samples.map((_, index) => {
      const until = samples.slice(0, index + 1);
      const span = { from: sampleBefore(until, MINUTE_MS) ?? samples[0], to: until.at(-1) };
      return p99Of("jindou_send_duration_seconds", span, { source }) ?? null;
    });
  return (
    <div class="charts">
      <Chart
        title="Messages"
        help={`${help("jindou_messages_accepted_total")}. ${help("jindou_deliveries_total")}.`}
        times={times}
        format={perSecond}
        lines={[
          { label: "accepted", values: ratesOf(samples, "jindou_messages_accepted_total") },
          { label: "delivered", values: ratesOf(samples, "jindou_deliveries_total") },
        ]}
      />
      <Chart
        title="Sessions"
        help={help("jindou_sessions")}
        times={times}
        format={number}
        lines={[{ label: "sessions", values: values("jindou_sessions") }]}
      />
      <Chart
        title="Time until a message is durable, p99"
        help={`${help("jindou_send_duration_seconds")}. 99th percentile of the last minute.`}
        times={times}
        format={duration}
        lines={[
          { label: "from sockets", values: p99("socket") },
          { label: "over HTTP", values: p99("http") },
        ]}
      />
      <Chart
        title="HTTP requests"
        help={help("jindou_http_requests_total")}
        times={times}
        format={perSecond}
        lines={[{ label: "requests", values: ratesOf(samples, "jindou_http_requests_total") }]}
      />
      <Chart
        title="Connections"
        help={`${help("jindou_connections_opened_total")}. ${help("jindou_connections_ended_total")}.`}
        times={times}
        format={perSecond}
        lines={[
          { label: "opened", values: ratesOf(samples, "jindou_connections_opened_total") },
          { label: "ended", values: ratesOf(samples, "jindou_connections_ended_total") },
        ]}
      />
      <Chart
        title="Stream events"
        help={`${help("jindou_event_deliveries_total")}. ${help("jindou_streams_active")}.`}
        times={times}
        format={number}
        lines={[
          {
            label: "delivered per second",
            values: ratesOf(samples, "jindou_event_deliveries_total"),
          },
          { label: "active streams", values: values("jindou_streams_active") },
        ]}
      />
    </div>
  );
}

function Nodes({ nodes }: { readonly nodes: Loaded<readonly NodeRow[]> }) {
  const { data, error } = nodes;
  return (
    <Card
      title="Nodes"
      json="/cluster/nodes"
      help="Live nodes of the cluster. The load is the share of one core that the process used recently."
    >
      <ErrorNote error={error} />
      <Scroll label="Nodes">
        <table>
          <thead>
            <tr>
              <th>Node</th>
              <th>Version</th>
              <FigureHead label="Sessions" help="Sessions of the node, as it last reported them." />
              <FigureHead label="Load" help="Share of one core that the process used recently." />
              <FigureHead label="Up" help="Time since the process started." />
              <th>State</th>
            </tr>
          </thead>
          <tbody>
            {data?.map((node) => (
              <tr key={node.id}>
                <td>{node.id}</td>
                <td>{node.version}</td>
                <td class="right">{number(node.sessions)}</td>
                <td class="right">{percent(node.load)}</td>
                <td class="right">{duration(node.uptime)}</td>
                <td>
                  <span class={`badge ${node.draining ? "warning" : "fine"}`}>
                    {node.draining ? "draining" : "serving"}
                  </span>
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
    </Card>
  );
}

const TROUBLES: readonly (readonly [metric: string, label: string, text: string])[] = [
  ["jindou_requests_refused_total", "code", "requests refused"],
  ["jindou_connections_ended_total", "reason", "connections ended"],
  ["jindou_sockets_refused_total", "reason", "sockets refused"],
];

function LoggedErrors() {
  const api = useApi();
  const path = "/admin/errors";
  const { data, error } = useLoaded("errors", () => api.get<ErrorsPage>(path), POLL_MS);
  return (
    <Card
      title={data === undefined ? "Errors of the node" : `Errors of node ${data.node_id}`}
      json={path}
      help="Newest warnings and errors in the log of the node that replies, since it started. Repeated entries are shown once, with a count."
    >
      <ErrorNote error={error} />
      {data?.errors.length === 0 && <Empty>The node has not logged any warnings or errors.</Empty>}
      <ul class="events">
        {data?.errors.slice(0, SHOWN_ERRORS).map(({ time, level, message, reason, count }) => (
          <li key={`${level} ${message} ${reason}`}>
            <time class="muted">{clockTime(Date.parse(time))}</time>
            <span>
              <span class={`badge ${level === "warn" ? "warning" : "critical"}`}>{level}</span>{" "}
              {message}
              {reason !== "" && <span class="muted">: {reason}</span>}
              {count > 1 && <strong> ×{number(count)}</strong>}
            </span>
          </li>
        ))}
      </ul>
    </Card>
  );
}

/**
 * Shows how many requests, connections and sockets were refused or ended in the period that the
 * samples cover. Also shows the clients that were disconnected or refused last.
 */
function Troubles({ samples }: { readonly samples: readonly Sample[] }) {
  const api = useApi();
  const path = "/connz?state=closed&limit=8";
  const { data, error } = useLoaded("troubles", () => api.get<ClosedPage>(path), POLL_MS);
  const counted = TROUBLES.flatMap(([metric, label, text]) =>
    growthOf(samples, metric, label).map((g) => ({ ...g, text })),
  );
  return (
    <Card
      title="Refused and disconnected"
      json={path}
      help="Refusals and ended connections on the node that replies, counted while this page is open (at most the last 15 minutes), and the node's latest closed sessions and refused connects."
    >
      <ErrorNote error={error} />
      {counted.length > 0 && (
        <ul class="counts">
          {counted.map(({ name, count, text }) => (
            <li key={`${text} ${name}`}>
              <strong>{number(count)}</strong> {text}: <code>{name}</code>
            </li>
          ))}
        </ul>
      )}
      {data !== undefined && data.connections.length === 0 && counted.length === 0 && (
        <Empty>Nothing was refused, and no client was disconnected.</Empty>
      )}
      {data !== undefined && data.connections.length > 0 && (
        <ul class="events">
          {data.connections.map((closed) => (
            <li key={`${closed.id} ${closed.ended}`}>
              <time class="muted">{clockTime(Date.parse(closed.ended))}</time>
              <span>
                {closed.uid === "" ? <em>unknown client</em> : <UserLink uid={closed.uid} />}{" "}
                <span class={`badge ${closed.refused ? "warning" : "plain"}`}>
                  {closed.refused ? (closed.error ?? closed.reason) : closed.reason}
                </span>
                <span class="muted"> {closed.ip}</span>
              </span>
            </li>
          ))}
        </ul>
      )}
      <p class="more">
        <a href={linkTo("sessions", { state: "closed" })}>
          All closed sessions of the last 24 hours
        </a>
      </p>
    </Card>
  );
}

function growthOf(samples: readonly Sample[], metric: string, label: string) {
  const [first] = samples;
  const last = samples.at(-1);
  const names = new Set(last?.series.get(metric)?.map(({ labels }) => labels[label] ?? ""));
  return [...names]
    .map((name) => {
      const where = { [label]: name };
      return {
        name,
        count: (sumOf(last, metric, where) ?? 0) - (sumOf(first, metric, where) ?? 0),
      };
    })
    .filter(({ count, name }) => count > 0 && name !== "goodbye");
}
