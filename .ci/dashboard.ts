// Builds the Grafana dashboard in config/observability/dashboard.json, in the classic model that
// Grafana 11 and newer import. `npm run config:docs` writes the file.

import { METRICS, type MetricKey } from "../src/observe/table.ts";

/** Schema of the file. Grafana migrates older schemas and refuses schemas newer than its own. */
const SCHEMA_VERSION = 39;
const COLUMNS = 24;
const HEIGHT = 8;

/** Selects the series of the nodes chosen in the dashboard. */
const NODES = '{job=~"$job",instance=~"$instance"}';
const DATA_SOURCE = { type: "prometheus", uid: `\${datasource}` };

interface Panel {
  readonly title: string;
  /** Grafana unit, such as `short`, `s`, `bytes`, `percentunit` or `cps` (counts per second). */
  readonly unit: string;
  /** Expressions by their legend. */
  readonly lines: Readonly<Record<string, string>>;
  /** Metric whose help text describes the panel. */
  readonly about?: MetricKey;
  readonly kind?: "stat" | "timeseries";
}

interface Section {
  readonly title: string;
  readonly panels: readonly Panel[];
}

const series = (key: MetricKey) => `${METRICS[key].name}${NODES}`;
const current = (key: MetricKey, by = "instance") => `sum by (${by}) (${series(key)})`;
const rate = (key: MetricKey, by = "instance") =>
  `sum by (${by}) (rate(${series(key)}[$__rate_interval]))`;
const percentile = (share: number, key: MetricKey, by: string) =>
  `histogram_quantile(${share}, sum by (${by}) (rate(${METRICS[key].name}_bucket${NODES}[$__rate_interval])))`;

function gauge(title: string, key: MetricKey, unit = "short"): Panel {
  return { title, unit, lines: { "{{instance}}": current(key) }, about: key };
}

/** Returns a panel that shows the growth of a counter per second, by node or by another label. */
function counts(title: string, key: MetricKey, label = "instance", unit = "cps"): Panel {
  return { title, unit, lines: { [`{{${label}}}`]: rate(key, label) }, about: key };
}

function durations(title: string, key: MetricKey, label?: string): Panel {
  const by = label === undefined ? "le" : `${label}, le`;
  const name = label === undefined ? "" : `{{${label}}} `;
  return {
    title,
    unit: "s",
    lines: {
      [`${name}p50`]: percentile(0.5, key, by),
      [`${name}p99`]: percentile(0.99, key, by),
    },
    about: key,
  };
}

const SECTIONS: readonly Section[] = [
  {
    title: "Health",
    panels: [
      { ...gauge("Ready nodes", "ready"), kind: "stat" },
      {
        title: "Versions",
        unit: "short",
        lines: {
          "{{version}} on Node.js {{node_version}}": current("build", "version, node_version"),
        },
        about: "build",
        kind: "stat",
      },
      {
        title: "Transport",
        unit: "short",
        lines: { "{{driver}}": current("transport", "driver") },
        about: "transport",
        kind: "stat",
      },
      {
        title: "Running since",
        unit: "dateTimeFromNow",
        lines: { "{{instance}}": `process_start_time_seconds${NODES} * 1000` },
        kind: "stat",
      },
      counts("Refused requests", "requestsRefused", "code"),
      counts("Log lines dropped", "logLinesDropped"),
    ],
  },
  {
    title: "Messages",
    panels: [
      counts("Accepted messages", "messagesAccepted", "source"),
      counts("Events of clients", "clientEvents", "channel_type"),
      durations("Time until a message is durable", "sendDuration", "source"),
      counts("Deliveries", "deliveries"),
      durations("Time until a receiver acknowledges", "recvackDelay"),
      counts("Pushes encoded", "fanouts"),
      counts("Retries", "messagesDuplicate"),
    ],
  },
  {
    title: "Clients",
    panels: [
      {
        ...gauge("Sessions", "sessions"),
        lines: { "{{device_flag}}": current("sessions", "device_flag") },
      },
      {
        title: "Sockets and their limit",
        unit: "short",
        lines: {
          "{{instance}} open": current("sockets"),
          "{{instance}} limit": current("socketsMax"),
          "{{instance}} of clients": current("connections"),
        },
        about: "sockets",
      },
      counts("Accepted connections", "connectionsOpened"),
      counts("Connections ended by the server", "connectionsEnded", "reason"),
      counts("JWTs refused", "tokensRefused", "reason"),
      gauge("Age of the JWKS", "jwksAge", "s"),
      counts("Failed reads of the JWKS", "jwksFailures"),
      counts("Calls of hooks", "hookRequests", "outcome"),
      durations("Time of hooks", "hookDuration", "hook"),
      gauge("Calls that wait for hooks", "hookPending"),
      gauge("Hooks that are not called", "hookCircuitOpen"),
      counts("Connections refused", "socketsRefused", "reason"),
      counts("Silent connections closed", "socketsDisplaced"),
      counts("Frames received", "framesReceived"),
      counts("Bytes received", "bytesReceived", "instance", "Bps"),
      counts("Work charged to clients", "workCharged", "operation"),
      gauge("Catch-ups in progress", "sessionsJoining"),
      {
        title: "Catching up",
        unit: "cps",
        lines: {
          ranges: rate("resumeRuns", "job"),
          messages: rate("resumeMessages", "job"),
          streams: rate("streamCatchUps", "job"),
        },
        about: "resumeMessages",
      },
    ],
  },
  {
    title: "Streams and commands",
    panels: [
      gauge("Active streams", "streamsActive"),
      gauge("Memory of active streams", "streamsActiveBytes", "bytes"),
      gauge("Readers of Durable Streams", "logReaders"),
      counts("Gaps in producers' numbers", "logProducerGaps"),
      {
        title: "Events",
        unit: "cps",
        lines: { pushed: rate("eventFanouts", "job"), delivered: rate("eventDeliveries", "job") },
        about: "eventDeliveries",
      },
      {
        title: "Commands",
        unit: "cps",
        lines: {
          pushed: rate("commandsPushed", "job"),
          acknowledged: rate("commandsAcknowledged", "job"),
          dropped: rate("commandsDropped", "job"),
        },
        about: "commandsPushed",
      },
    ],
  },
  {
    title: "Event feed and webhooks",
    panels: [
      { ...gauge("Event feed", "eventsOn"), kind: "stat" },
      gauge("Size of the event feed", "eventsBytes", "bytes"),
      counts("Events removed from the feed", "eventsRemoved"),
      {
        ...gauge("Events on demand", "eventsDemand"),
        lines: { "{{kind}}": current("eventsDemand", "kind") },
      },
      counts("Users who went offline", "eventsOffline"),
      {
        ...gauge("Age of the oldest undelivered event", "webhookOldest", "s"),
        lines: { "{{webhook}}": current("webhookOldest", "webhook") },
      },
      {
        ...gauge("Events that wait", "webhookLag"),
        lines: { "{{webhook}}": current("webhookLag", "webhook") },
      },
      counts("Requests of webhooks", "webhookAttempts", "outcome"),
      counts("Events delivered", "webhookEvents", "webhook"),
      durations("Time of a request", "webhookDuration"),
      {
        ...gauge("Parked events", "webhookParked"),
        lines: { "{{webhook}}": current("webhookParked", "webhook") },
      },
      counts("Endpoints disabled", "webhookDisabled", "webhook"),
      counts("Events lost", "webhookLost", "webhook"),
      gauge("Lag of the push decisions", "pushLag", "s"),
      counts("Messages decided", "pushDecided"),
      counts("Users who need a push", "pushUsers"),
    ],
  },
  {
    title: "HTTP",
    panels: [
      counts("Calls by route", "httpRequests", "route"),
      counts("Calls by status", "httpRequests", "status"),
      durations("Time of a call", "httpDuration", "route"),
      counts("Heads refused", "headsRefused", "reason"),
      gauge("Partially received bodies", "bodiesPending", "bytes"),
      counts("Logins of managers", "logins", "outcome"),
      { ...gauge("Open import", "importOpen"), kind: "stat" },
      counts("Lines of an import", "importLines", "result"),
    ],
  },
  {
    title: "Embedded store",
    panels: [
      counts("Stored messages", "storeAppends"),
      {
        title: "Free space of the disk",
        unit: "bytes",
        lines: {
          "{{instance}} free": current("storeFreeBytes"),
          "{{instance}} size": current("storeDiskBytes"),
        },
        about: "storeFreeBytes",
      },
      {
        title: "WAL and memtable",
        unit: "bytes",
        lines: {
          "{{instance}} WAL": current("storeWalBytes"),
          "{{instance}} memtable": current("storeMemtableBytes"),
        },
        about: "storeWalBytes",
      },
      gauge("Records in the memtable", "storeMemtableRecords"),
      counts("Checkpoints", "storeCheckpoints"),
      gauge("Logs with a head in memory", "logsOpen"),
      gauge("Changes of logs in memory", "logsActiveBytes", "bytes"),
      { ...gauge("Invalid clock", "clockInvalid"), kind: "stat" },
    ],
  },
  {
    title: "Redis",
    panels: [
      { ...gauge("Redis reachable", "redisUp"), kind: "stat" },
      gauge("Commands that wait for Redis", "redisInFlight"),
      gauge("Clock offset", "clusterClockOffset", "s"),
      {
        title: "Lost publications and subscriptions",
        unit: "cps",
        lines: {
          "channels read": rate("clusterRepairs", "job"),
          "topics subscribed again": rate("clusterResubscribed", "job"),
        },
        about: "clusterRepairs",
      },
      counts("Publications dropped", "clusterRejected", "reason"),
      {
        title: "Lost and unreadable data",
        unit: "cps",
        lines: {
          emptied: rate("redisDataLost", "job"),
          unreadable: rate("storeUnreadable", "job"),
        },
        about: "storeUnreadable",
      },
    ],
  },
  {
    title: "Process",
    panels: [
      {
        title: "Processor time",
        unit: "percentunit",
        lines: { "{{instance}}": `rate(process_cpu_seconds_total${NODES}[$__rate_interval])` },
      },
      {
        title: "Memory",
        unit: "bytes",
        lines: {
          "{{instance}} resident": `process_resident_memory_bytes${NODES}`,
          "{{instance}} heap": `nodejs_heap_size_used_bytes${NODES}`,
          "{{instance}} limit": current("memoryLimit"),
        },
      },
      {
        title: "Event-loop lag, 99th percentile",
        unit: "s",
        lines: { "{{instance}}": `nodejs_eventloop_lag_p99_seconds${NODES}` },
      },
      {
        title: "Garbage collection",
        unit: "percentunit",
        lines: {
          "{{kind}}": `sum by (kind) (rate(nodejs_gc_duration_seconds_sum${NODES}[$__rate_interval]))`,
        },
      },
      {
        title: "Open files",
        unit: "short",
        lines: {
          "{{instance}} open": `process_open_fds${NODES}`,
          "{{instance}} limit": `process_max_fds${NODES}`,
        },
      },
    ],
  },
];

/** Returns the text of the file. */
export function dashboardFile(): string {
  let id = 0;
  let y = 0;
  const panels: unknown[] = [];
  for (const { title, panels: sectionPanels } of SECTIONS) {
    id += 1;
    panels.push({ id, type: "row", title, gridPos: { h: 1, w: COLUMNS, x: 0, y }, panels: [] });
    y += 1;
    for (const [index, panel] of sectionPanels.entries()) {
      id += 1;
      const isLeft = index % 2 === 0;
      const x = isLeft ? 0 : COLUMNS / 2;
      panels.push(panelJson(panel, id, { h: HEIGHT, w: COLUMNS / 2, x, y }));
      if (!isLeft || index === sectionPanels.length - 1) y += HEIGHT;
    }
  }
  return `${JSON.stringify({ ...FRAME, panels }, null, 2)}\n`;
}

function panelJson(
  { title, unit, lines, about, kind = "timeseries" }: Panel,
  id: number,
  gridPos: Readonly<Record<"h" | "w" | "x" | "y", number>>,
) {
  return {
    id,
    type: kind,
    title,
    ...(about !== undefined && { description: METRICS[about].help }),
    datasource: DATA_SOURCE,
    gridPos,
    targets: Object.entries(lines).map(([legendFormat, expr], index) => ({
      refId: String.fromCharCode("A".charCodeAt(0) + index),
      datasource: DATA_SOURCE,
      expr,
      legendFormat,
    })),
    fieldConfig: { defaults: { unit, ...(kind === "timeseries" && { min: 0 }) }, overrides: [] },
    options:
      kind === "stat"
        ? {
            reduceOptions: { calcs: ["lastNotNull"], fields: "", values: false },
            textMode: "value_and_name",
          }
        : { legend: { displayMode: "list", placement: "bottom" }, tooltip: { mode: "multi" } },
  };
}

function variable(name: string, query: string) {
  return {
    ...{ type: "query", name, label: name, datasource: DATA_SOURCE, refresh: 2, sort: 1 },
    ...{ multi: true, includeAll: true, allValue: ".+", current: { text: "All", value: "$__all" } },
    query: { query, refId: "variable" },
  };
}

const FRAME = {
  uid: "jindou",
  title: "Jindou",
  tags: ["jindou"],
  schemaVersion: SCHEMA_VERSION,
  version: 1,
  editable: true,
  refresh: "30s",
  time: { from: "now-1h", to: "now" },
  timezone: "",
  graphTooltip: 1,
  templating: {
    list: [
      { type: "datasource", name: "datasource", label: "Data source", query: "prometheus" },
      variable("job", `label_values(${METRICS.build.name}, job)`),
      variable("instance", `label_values(${METRICS.build.name}{job=~"$job"}, instance)`),
    ],
  },
  annotations: { list: [] },
  links: [],
};
