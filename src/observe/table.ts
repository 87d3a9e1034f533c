// The table of metrics: name, kind, labels, help; and the documentation page made from it. No
// state. Labels have low cardinality: never an id.

export interface MetricRow {
  readonly kind: "counter" | "gauge" | "histogram";
  readonly name: `jindou_${string}`;
  readonly help: string;
  readonly labels: readonly string[];
}

/** From 100 µs to 10 s: an ack takes about 1 ms, a slow disk or a distant client much longer. */
export const DURATION_BOUNDS_S: readonly number[] = [
  0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10,
];

function counter<const Name extends string>(
  name: Name,
  help: string,
  labels: readonly string[] = [],
) {
  return { kind: "counter", name: `jindou_${name}`, help, labels } as const;
}

function gauge<const Name extends string>(
  name: Name,
  help: string,
  labels: readonly string[] = [],
) {
  return { kind: "gauge", name: `jindou_${name}`, help, labels } as const;
}

function histogram<const Name extends string>(
  name: Name,
  help: string,
  labels: readonly string[] = [],
) {
  return { kind: "histogram", name: `jindou_${name}`, help, labels } as const;
}

export const METRICS = {
  build: gauge("build_info", "Always 1; the labels are the running versions", [
    "version",
    "node_version",
  ]),

  sockets: gauge(
    "sockets",
    "Open sockets of both listeners: HTTP, client sockets, and connections without a request yet",
  ),
  socketsMax: gauge(
    "sockets_max",
    "Limit of sockets of this node: sockets.max, or what the limit of open files leaves",
  ),
  socketsRefused: counter(
    "sockets_refused_total",
    "Connections closed as soon as they were accepted (max: the node is full; address: too many unauthenticated ones of one address; descriptors: the process or the system has no more)",
    ["reason"],
  ),
  bodiesPending: gauge("http_bodies_pending_bytes", "Memory of partially received request bodies"),

  connections: gauge("connections", "Open client sockets"),
  connectionsOpened: counter("connections_opened_total", "Client sockets accepted since the start"),
  sessions: gauge("sessions", "Authenticated sessions by device", ["device_flag"]),
  connectionsEnded: counter(
    "connections_ended_total",
    "Connections closed by the server, by close reason (slow_reader: too many unread bytes; kicked: another main device)",
    ["reason"],
  ),
  framesReceived: counter("frames_received_total", "Frames from clients"),
  bytesReceived: counter("frames_received_bytes_total", "Bytes of frames from clients"),
  workCharged: counter(
    "work_charged_total",
    "Work charged to clients, by operation, in frames: a PING costs 1, a history of 500 messages about 130",
    ["operation"],
  ),
  messagesAccepted: counter(
    "messages_accepted_total",
    "Messages acknowledged as durable, by channel type and source",
    ["channel_type", "source"],
  ),
  messagesDuplicate: counter(
    "messages_duplicate_total",
    "Sends answered with an earlier message of the same clientMsgNo",
  ),
  requestsRefused: counter(
    "requests_refused_total",
    "Requests of clients and backends answered with an error, by code",
    ["code", "source"],
  ),
  sendDuration: histogram("send_duration_seconds", "From receiving a message until it is durable", [
    "source",
  ]),
  recvackDelay: histogram(
    "recvack_delay_seconds",
    "From accepting a message to a receiver's RECVACK",
  ),
  fanouts: counter("fanouts_total", "Pushes encoded and published to sessions"),
  deliveries: counter("deliveries_total", "Sessions that received those pushes"),
  resumeRuns: counter("resume_runs_total", "Ranges of missed messages sent after reconnects"),
  resumeMessages: counter("resume_messages_total", "Messages in those ranges"),
  eventFanouts: counter(
    "event_fanouts_total",
    "Stream, tool-call and custom events delivered to sessions of this node",
  ),
  eventDeliveries: counter("event_deliveries_total", "Sessions that received those events live"),
  streamCatchUps: counter(
    "stream_catch_ups_total",
    "Streams whose missed part was read from the store and sent merged, to sessions that lagged or joined",
  ),
  sessionsJoining: gauge(
    "sessions_joining",
    "Sessions, and groups of them, that are catching up on missed messages and active streams",
  ),
  commandsPushed: counter(
    "commands_pushed_total",
    "Copies of commands sent to sessions, live or from an inbox",
  ),
  commandsAcknowledged: counter(
    "commands_acknowledged_total",
    "Commands that clients acknowledged",
  ),

  httpRequests: counter("http_requests_total", "Control-plane requests", ["route", "status"]),
  httpDuration: histogram(
    "http_request_duration_seconds",
    "From the complete request to its answer",
    ["route"],
  ),
  logins: counter("manager_logins_total", "Logins of managers by outcome", ["outcome"]),

  streamsActive: gauge("streams_active", "Active streams"),
  streamsActiveBytes: gauge(
    "streams_active_bytes",
    "Approximate memory of those streams, in bytes",
  ),
  commandsDropped: counter(
    "commands_dropped_total",
    "Commands dropped from a full inbox without an acknowledgement",
  ),

  storeAppends: counter("store_appends_total", "Messages made durable"),
  storeCheckpoints: counter(
    "store_checkpoints_total",
    "Checkpoints completed: times the memtable was written to the database",
  ),
  storeMemtableRecords: gauge(
    "store_memtable_records",
    "Records in the memtable (messages and stream events): in the WAL, not yet in the database",
  ),
  storeMemtableBytes: gauge(
    "store_memtable_bytes",
    "Encoded size of the records in the memtable, in bytes",
  ),
  storeWalBytes: gauge(
    "store_wal_bytes",
    "Size of the WAL files in the folder `journal`, in bytes",
  ),

  storeUnreadable: counter(
    "store_unreadable_records_total",
    "Reads of a record in Redis that cannot be decoded, such as one of a newer build; it is skipped",
  ),

  redisUp: gauge("redis_up", "1 while Redis accepts this node's commands, else 0"),
  redisInFlight: gauge("redis_commands_in_flight", "Commands that wait for an answer of Redis"),
  clusterRepairs: counter(
    "cluster_repairs_total",
    "Channels with a lost or reordered publication, read from Redis instead",
  ),
  clusterRejected: counter(
    "cluster_frames_rejected_total",
    "Publications of Redis that were dropped (unreadable: no frame of this format; misplaced: of another topic; disproved: its seq in the channel is not in the store)",
    ["reason"],
  ),
  clusterResubscribed: counter(
    "cluster_resubscribed_topics_total",
    "Topics subscribed again after a lost connection to Redis, or a move to another server",
  ),
  clusterClockOffset: gauge(
    "cluster_clock_offset_seconds",
    "How far this node's clock is ahead of Redis' (negative: behind), beyond the uncertainty of the heartbeat's round trip",
  ),
} as const satisfies Record<string, MetricRow>;

export type MetricKey = keyof typeof METRICS;

/** `docs/metrics.md`. */
export function metricsPage(): string {
  const rows = Object.values<MetricRow>(METRICS).map(
    ({ name, kind, labels, help }) =>
      `| \`${name}\` | ${kind} | ${labels.map((label) => `\`${label}\``).join(", ")} | ${help} |`,
  );
  const head = ["| name | kind | labels | meaning |", "|---|---|---|---|"];
  return `${[INTRODUCTION, "", ...head, ...rows].join("\n")}\n`;
}

const INTRODUCTION = `# Metrics

<!-- Made from \`src/observe/table.ts\` by \`npm run config:docs\`; edit that. -->

\`GET /metrics\` on the API's address answers in the Prometheus text format. In addition to the metrics below it
has those of the process (\`process_*\`) and of Node.js (\`nodejs_*\`: event-loop lag, heap, garbage
collection). A metric without a sample is not measured by this node.`;
