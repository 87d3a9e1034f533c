// The table of all metrics, with their kind, help text and labels, and the generator of the
// documentation page. Keeps no state. A label must have few values, so it never contains the id of
// a user, channel or message.

export interface MetricRow {
  readonly kind: "counter" | "gauge" | "histogram";
  readonly name: `jindou_${string}`;
  readonly help: string;
  readonly labels: readonly string[];
  /** Maximum number of series, if it is not `MAX_SERIES`. */
  readonly maxSeries?: number;
}

/** Upper bounds of the histogram buckets in seconds. An acknowledgement takes about 1 ms. */
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
  build: gauge(
    "build_info",
    "Always 1. The labels contain the running versions and the id of the node that replies",
    ["version", "node_version", "node_id"],
  ),

  transport: gauge(
    "transport_info",
    "Always 1. The labels contain the listeners' driver (uws or portable) and its library",
    ["driver", "library"],
  ),

  ready: gauge("ready", "1 if this node accepts work (/readyz returns 200), otherwise 0"),

  memoryLimit: gauge(
    "memory_limit_bytes",
    "Memory that this process can use: the limit of its container or service, or the memory of the machine, in bytes",
  ),

  logLinesDropped: counter(
    "log_lines_dropped_total",
    "Log lines dropped because the reader of standard output was too slow or hung",
  ),

  sockets: gauge(
    "sockets",
    "Open sockets of all listeners: HTTP, client sockets, and connections that have not sent a request yet",
  ),
  socketsMax: gauge(
    "sockets_max",
    "Maximum number of sockets on this node: sockets.max, but at most the limit on open files minus a reserve. If sockets.max is 0, only the second limit applies",
  ),
  socketsRefused: counter(
    "sockets_refused_total",
    "Connections closed because a limit was reached, by reason (max: the node has too many sockets, or tracks too many addresses; address: one address has too many silent connections or calls without a credential; descriptors: the process or the system has no free file descriptors)",
    ["reason"],
  ),
  socketsDisplaced: counter(
    "sockets_displaced_total",
    "Client sockets closed because they had sent nothing for 3 s and their address had more than sockets.maxUnauthenticatedPerAddress unauthenticated ones",
  ),
  headsRefused: counter(
    "http_heads_refused_total",
    "Requests and handshakes refused because of their head, by reason (malformed: 400; too_large: 431; no_room: 503, because api.maxPendingBodyBytes is used up). Does not count heads that uWebSockets.js answers itself: those that it cannot parse, and those larger than 1.25 times transport.maxHeadBytes",
    ["reason"],
  ),
  bodiesPending: gauge(
    "http_bodies_pending_bytes",
    "Memory used by partially received request bodies, and on the portable transport by partially received heads, in bytes",
  ),

  connections: gauge(
    "connections",
    "Open client sockets, by listener (client: WebSocket; wkproto: WKProto over TCP)",
    ["listener"],
  ),
  connectionsOpened: counter(
    "connections_opened_total",
    "Client sockets accepted since this node started, by listener",
    ["listener"],
  ),
  sessions: gauge("sessions", "Authenticated sessions, by device type", ["device_flag"]),
  connectionsEnded: counter(
    "connections_ended_total",
    "Ended sessions and refused connections, by close reason (for example slow_reader: too many unread bytes; kicked: another main device of the user logged in; goodbye: the client ended the session, or closed or lost the connection)",
    ["reason"],
  ),
  tokensRefused: counter(
    "tokens_refused_total",
    "Client JWTs that were refused, by reason (for example expired, signature, audience, or key: no known key matches). The log has the details at level debug",
    ["reason"],
  ),
  jwksAge: gauge(
    "jwks_age_seconds",
    "Time since the last successful read of the JWKS. 0 before the first read, and without a JWKS",
  ),
  jwksFailures: counter(
    "jwks_refresh_failures_total",
    "Failed attempts to read or store the JWKS. The previous keys stay valid for auth.jwt.jwksMaxStaleS",
  ),
  hookRequests: counter(
    "hook_requests_total",
    "Calls to hooks, by hook (connect or send) and outcome. The hook decided: allowed, refused. The hook failed or its answer is unusable: timeout, connection, status, answer. Not called, because the hook failed too often: circuit_open. Not called, because too many calls wait: overloaded",
    ["hook", "outcome"],
  ),
  hookDuration: histogram(
    "hook_duration_seconds",
    "Duration of calls to hooks, including failed calls, by hook",
    ["hook"],
  ),
  hookPending: gauge(
    "hook_pending",
    "Calls to hooks that are queued or waiting for a response, by hook",
    ["hook"],
  ),
  hookCircuitOpen: gauge(
    "hook_circuit_open",
    "1 while a hook is not called because it failed too often, otherwise 0, by hook",
    ["hook"],
  ),
  framesReceived: counter("frames_received_total", "Frames received from clients"),
  bytesReceived: counter(
    "frames_received_bytes_total",
    "Bytes of the frames received from clients",
  ),
  workCharged: counter(
    "work_charged_total",
    "Work charged to clients, by operation. The unit is a small frame: a PING costs 1, a history of 500 messages about 130",
    ["operation"],
  ),
  messagesAccepted: counter(
    "messages_accepted_total",
    "Acknowledged messages and commands, including retries, by channel type and source (socket or http)",
    ["channel_type", "source"],
  ),
  messagesDuplicate: counter(
    "messages_duplicate_total",
    "Sends recognised as retries and answered with the earlier message that has the same clientMsgNo",
  ),
  importLines: counter(
    "import_lines_total",
    "Lines of an import, by result (stored, unchanged or refused)",
    ["result"],
  ),
  importOpen: gauge(
    "import_open",
    "1 while an import is open, during which this node serves no clients, otherwise 0",
  ),
  requestsRefused: counter(
    "requests_refused_total",
    "Requests from clients and backends rejected with an error, by code and source (socket or http)",
    ["code", "source"],
  ),
  clientEvents: counter(
    "client_events_total",
    "Events that clients sent and that were passed on to the channel, by channel type",
    ["channel_type"],
  ),
  sendDuration: histogram(
    "send_duration_seconds",
    "Time from receiving a message until it is durable",
    ["source"],
  ),
  recvackDelay: histogram(
    "recvack_delay_seconds",
    "Time from accepting a message until a receiver acknowledges it (RECVACK)",
  ),
  fanouts: counter(
    "fanouts_total",
    "Messages processed for delivery to sessions on this node, each counted once",
  ),
  deliveries: counter(
    "deliveries_total",
    "Deliveries of the messages counted by jindou_fanouts_total, one for each message and session that received it",
  ),
  resumeRuns: counter(
    "resume_runs_total",
    "Pages of missed messages sent to clients, for example after a reconnect",
  ),
  resumeMessages: counter(
    "resume_messages_total",
    "Missed messages sent to clients, for example after a reconnect",
  ),
  eventFanouts: counter(
    "event_fanouts_total",
    "Stream, tool-call, custom and client events processed for delivery to sessions on this node",
  ),
  eventDeliveries: counter(
    "event_deliveries_total",
    "Deliveries of the events counted by jindou_event_fanouts_total, one for each event and session that received it",
  ),
  streamCatchUps: counter(
    "stream_catch_ups_total",
    "Streams whose missed part was read from the store and sent, with its text merged, to sessions that lagged or joined late",
  ),
  sessionsJoining: gauge(
    "sessions_joining",
    "Catch-ups in progress. In each of them, a session is sent the missed messages and active streams of one group or of all its channels",
  ),
  commandsPushed: counter(
    "commands_pushed_total",
    "Copies of commands sent to sessions, live or from an inbox",
  ),
  commandsAcknowledged: counter("commands_acknowledged_total", "Commands acknowledged by clients"),

  httpRequests: {
    ...counter("http_requests_total", "Control-plane requests, by route and HTTP status", [
      "route",
      "status",
    ]),
    // A caller without a credential can cause several statuses on every route.
    maxSeries: 2000,
  },
  httpDuration: histogram(
    "http_request_duration_seconds",
    "Time from receiving the complete request to the response",
    ["route"],
  ),
  logins: counter(
    "manager_logins_total",
    "Logins of managers, by outcome (ok, failed, throttled)",
    ["outcome"],
  ),

  logReaders: gauge(
    "log_readers",
    "Live reads of streams under /v1/stream/ that are in progress (live=sse or live=long-poll), and appends that wait for earlier appends of their producers",
  ),
  logProducerGaps: counter(
    "log_producer_gaps_total",
    "Appends that were rejected because earlier requests from their producer were missing",
  ),
  streamsActive: gauge("streams_active", "Active streams on this node"),
  streamsActiveBytes: gauge(
    "streams_active_bytes",
    "Approximate memory used by the active streams, in bytes",
  ),
  eventsOn: gauge("events_on", "1 if the event feed is on, otherwise 0"),
  eventsBytes: gauge("events_bytes", "Approximate size of the event feed, in bytes"),
  eventsRemoved: counter(
    "events_removed_total",
    "Events removed from the event feed. On Redis, all events of one change together count as one",
  ),
  pushDecided: counter(
    "push_decided_total",
    "Messages for which this node decided which users need a push",
  ),
  pushUsers: counter(
    "push_users_total",
    "Users who need a push notification, as decided by this node. A user is counted once for each message",
  ),
  pushLag: gauge(
    "push_lag_seconds",
    "Time for which the oldest due message has been waiting for a push decision, 0 if none waits. Only one node in the cluster decides, and the others report 0",
  ),
  eventsDemand: gauge(
    "events_demand",
    "1 if this node writes events of this kind (session or command), because a webhook or a reader requests them, otherwise 0",
    ["kind"],
  ),
  eventsOffline: counter(
    "events_offline_total",
    "user.offline events that this node has written for users whose sessions have all ended",
  ),
  logsOpen: gauge("logs_open", "Logs whose heads the embedded store keeps in memory"),
  logsActiveBytes: gauge(
    "logs_active_bytes",
    "Size of the log changes that are not yet in the embedded store's database, in bytes",
  ),
  commandsDropped: counter(
    "commands_dropped_total",
    "Commands dropped before any device acknowledged them, because an inbox, or a sender's share of it, was full",
  ),

  storeAppends: counter("store_appends_total", "Messages stored durably"),
  storeCheckpoints: counter(
    "store_checkpoints_total",
    "Completed checkpoints. Each of them writes the memtable to the database",
  ),
  storeMemtableRecords: gauge(
    "store_memtable_records",
    "Records in the memtable (messages and stream events), which are in the WAL but not yet in the database",
  ),
  storeMemtableBytes: gauge(
    "store_memtable_bytes",
    "Encoded size of the records in the memtable, in bytes",
  ),
  storeWalBytes: gauge(
    "store_wal_bytes",
    "Size of the WAL files in the folder `journal`, in bytes",
  ),
  storeFreeBytes: gauge(
    "store_free_bytes",
    "Free space on the disk that holds the data folder, in bytes. Before it is used up, writes are rejected with the code disk_full",
  ),

  storeDiskBytes: gauge(
    "store_disk_bytes",
    "Size of the disk that holds the data folder, in bytes",
  ),

  storeUnreadable: counter(
    "store_unreadable_records_total",
    "Records read from Redis that could not be decoded and were skipped, for example because a newer version wrote them",
  ),

  webhookAttempts: counter(
    "webhook_attempts_total",
    "Requests to webhooks, by webhook and outcome (the class of the reply's status, such as 2xx, or error: there was no complete reply)",
    ["webhook", "outcome"],
  ),
  webhookEvents: counter("webhook_events_total", "Events in requests that webhooks accepted", [
    "webhook",
  ]),
  webhookDuration: histogram(
    "webhook_duration_seconds",
    "Time from the start of a webhook request to the end of its reply",
  ),
  webhookOldest: gauge(
    "webhook_oldest_undelivered_seconds",
    "Age of the oldest event that this node has to deliver to the webhook, 0 if no event is left to deliver. A node reports only the webhooks that it delivers to",
    ["webhook"],
  ),
  webhookLag: gauge(
    "webhook_lag_events",
    "Events in the feed, of all types, after those that the webhook has accepted. A node reports only the webhooks that it delivers to",
    ["webhook"],
  ),
  webhookParked: gauge(
    "webhook_parked_events",
    "Events that the webhook did not accept and that are no longer sent",
    ["webhook"],
  ),
  webhookDisabled: counter(
    "webhook_disabled_total",
    "Number of times this node disabled the webhook, because its receiver replied with 410 or did not accept a request within maxAgeS",
    ["webhook"],
  ),
  webhookLost: counter(
    "webhook_lost_total",
    "Events that left the feed before the webhook received them",
    ["webhook"],
  ),

  redisUp: gauge("redis_up", "1 if Redis accepts commands from this node, otherwise 0"),
  redisInFlight: gauge("redis_commands_in_flight", "Redis commands that wait for a reply"),
  redisDataLost: counter(
    "redis_data_lost_total",
    "Number of times this node found that Redis had been emptied while the node was running",
  ),
  clusterRepairs: counter(
    "cluster_repairs_total",
    "Number of times a channel was read from Redis because a publication was lost or arrived out of order",
  ),
  clusterRejected: counter(
    "cluster_frames_rejected_total",
    "Publications received from Redis and dropped, by reason (unreadable: not in the format of this version; misplaced: belongs to a different topic; disproved: the store has no message with its seq)",
    ["reason"],
  ),
  clusterResubscribed: counter(
    "cluster_resubscribed_topics_total",
    "Topics subscribed again or restored, because a connection to Redis was lost, the topics moved to another server, or this node may have been declared dead",
  ),
  clockInvalid: gauge(
    "clock_invalid",
    "1 while the clock of this machine (with the embedded store) or of a Redis server shows a time after 2080, otherwise 0. Such a time is not used",
  ),
  clusterClockOffset: gauge(
    "cluster_clock_offset_seconds",
    "Difference between the clocks of this node and of Redis, in seconds, minus the uncertainty from the heartbeat's round trip. Positive if this node is ahead",
  ),
} as const satisfies Record<string, MetricRow>;

export type MetricKey = keyof typeof METRICS;

export function metricsPage(): string {
  const rows = Object.values<MetricRow>(METRICS).map(
    ({ name, kind, labels, help }) =>
      `| \`${name}\` | ${kind} | ${labels.map((label) => `\`${label}\``).join(", ")} | ${help} |`,
  );
  const head = ["| name | kind | labels | meaning |", "|---|---|---|---|"];
  return `${[INTRODUCTION, "", ...head, ...rows].join("\n")}\n`;
}

const INTRODUCTION = `# Metrics

<!-- Generated from \`src/observe/table.ts\` by \`npm run config:docs\`. Edit that file instead. -->

\`GET /metrics\` on the address of the API returns the metrics in the Prometheus text format: the
metrics below, the metrics of the process (\`process_*\`) and the metrics of Node.js (\`nodejs_*\`:
event-loop lag, heap, garbage collection). This node does not measure a metric that has no samples.
\`promtool check metrics\` accepts the page.`;
