// The one table of metrics: name, kind, labels, help. Nothing is measured here. Every label takes few values: never an id.

/** What one metric is. */
export interface MetricRow {
  readonly kind: "counter" | "gauge" | "histogram";
  readonly name: `jindou_${string}`;
  readonly help: string;
  readonly labels: readonly string[];
}

/** From 100 µs to 10 s: an acknowledgement takes about a millisecond, a slow disk or a far client much longer. */
export const DURATION_BOUNDS_S: readonly number[] = [
  0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
  0.5, 1, 2.5, 5, 10,
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
  build: gauge("build_info", "Always 1; the labels say what runs", [
    "version",
    "node_version",
  ]),

  sockets: gauge(
    "sockets",
    "Sockets open now over both listeners: HTTP, client sockets, and connections that have sent nothing yet",
  ),
  socketsMax: gauge(
    "sockets_max",
    "Sockets this node takes: sockets.max, or what the limit of open files leaves",
  ),
  socketsRefused: counter(
    "sockets_refused_total",
    "Connections closed as soon as they were accepted (max: the node is full; address: too many of one address have shown no credential; descriptors: the process or the system has no more)",
    ["reason"],
  ),
  bodiesPending: gauge(
    "http_bodies_pending_bytes",
    "Memory that request bodies take of which only a part has come",
  ),

  connections: gauge("connections", "Client sockets open now"),
  connectionsOpened: counter(
    "connections_opened_total",
    "Client sockets accepted since the start",
  ),
  sessions: gauge("sessions", "Authenticated sessions by device", [
    "device_flag",
  ]),
  connectionsEnded: counter(
    "connections_ended_total",
    "Connections the server ended, by close reason (slow_reader: cut for not reading; kicked: another main device)",
    ["reason"],
  ),
  framesReceived: counter("frames_received_total", "Frames from clients"),
  bytesReceived: counter(
    "frames_received_bytes_total",
    "Bytes of frames from clients",
  ),
  workCharged: counter(
    "work_charged_total",
    "Work that clients were charged, by operation, in frames: a PING costs 1, a history of 500 messages about 130",
    ["operation"],
  ),
  messagesAccepted: counter(
    "messages_accepted_total",
    "Messages answered as durable, by channel and by where they came from",
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
  sendDuration: histogram(
    "send_duration_seconds",
    "From taking a message in to its being durable",
    ["source"],
  ),
  recvackDelay: histogram(
    "recvack_delay_seconds",
    "From accepting a message to a receiver's confirmation",
  ),
  fanouts: counter("fanouts_total", "Pushes encoded and published to sessions"),
  deliveries: counter("deliveries_total", "Sessions those pushes went to"),
  resumeRuns: counter(
    "resume_runs_total",
    "Runs of missed messages sent after reconnects",
  ),
  resumeMessages: counter("resume_messages_total", "Messages in those runs"),
  eventFanouts: counter(
    "event_fanouts_total",
    "Events of streams, tool calls and custom ones that were taken to sessions of this node",
  ),
  eventDeliveries: counter(
    "event_deliveries_total",
    "Sessions those events went to as they came",
  ),
  streamCatchUps: counter(
    "stream_catch_ups_total",
    "Streams whose missed part was read again and sent merged, to sessions that lagged or joined meanwhile",
  ),
  sessionsJoining: gauge(
    "sessions_joining",
    "Sessions, and groups of theirs, that are being given what they missed and the streams that go on",
  ),
  commandsPushed: counter(
    "commands_pushed_total",
    "Copies of commands sent to sessions, live or from an inbox",
  ),
  commandsAcknowledged: counter(
    "commands_acknowledged_total",
    "Commands that clients took out of their inboxes",
  ),

  httpRequests: counter("http_requests_total", "Control-plane requests", [
    "route",
    "status",
  ]),
  httpDuration: histogram(
    "http_request_duration_seconds",
    "From the whole request to its answer",
    ["route"],
  ),
  logins: counter("manager_logins_total", "Logins of managers by outcome", [
    "outcome",
  ]),

  streamsActive: gauge("streams_active", "Streams that go on now"),
  streamsActiveBytes: gauge(
    "streams_active_bytes",
    "Memory those streams take, about, in bytes",
  ),
  commandsDropped: counter(
    "commands_dropped_total",
    "Commands that left a full inbox unacknowledged",
  ),

  storeAppends: counter("store_appends_total", "Messages made durable"),
  storeCheckpoints: counter(
    "store_checkpoints_total",
    "Times the journal's tail was moved to the database",
  ),
  storeTailRecords: gauge(
    "store_tail_records",
    "Messages in the journal and not yet in the database",
  ),
  storeTailBytes: gauge(
    "store_tail_bytes",
    "Memory those messages take, in bytes",
  ),
  storeJournalBytes: gauge(
    "store_journal_bytes",
    "Size of the journal's files, in bytes",
  ),

  storeUnreadable: counter(
    "store_unreadable_records_total",
    "Reads of a record in Redis that cannot be decoded, such as one of a newer build; it is left out of what is answered and delivered",
  ),

  redisUp: gauge(
    "redis_up",
    "1 while Redis takes this node's commands, else 0",
  ),
  redisInFlight: gauge(
    "redis_commands_in_flight",
    "Commands that wait for Redis' answer",
  ),
  clusterRepairs: counter(
    "cluster_repairs_total",
    "Channels of which something published did not come, or not in turn, and was read from Redis",
  ),
  clusterRejected: counter(
    "cluster_frames_rejected_total",
    "Publications that came from Redis and were dropped (unreadable: no frame of this format; misplaced: not of the topic it came under; disproved: its place in the channel is not in the store)",
    ["reason"],
  ),
  clusterResubscribed: counter(
    "cluster_resubscribed_topics_total",
    "Topics that were lost with a connection to Redis, or moved to another server, and are listened to again",
  ),
  clusterClockOffset: gauge(
    "cluster_clock_offset_seconds",
    "By how much this node's clock is ahead of Redis', or behind where negative, beyond what the heartbeat's round trip leaves open",
  ),
} as const satisfies Record<string, MetricRow>;

export type MetricKey = keyof typeof METRICS;
