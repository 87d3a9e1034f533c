// The alerts and recording rules for Prometheus, in the order in which an operator reads them:
// symptoms before causes. `npm run config:docs` writes config/observability/rules.yaml from them.
// Each alert has a section with its name in docs/operations.md. Keeps no state.

/** Name of the scrape job in Prometheus. The dashboard lets its reader choose another job. */
const JOB = "jindou";

/** `critical` needs action at once, `warning` on the same day. `info` explains other alerts. */
type Severity = "critical" | "warning" | "info";

interface AlertRule {
  readonly name: `Jindou${string}`;
  readonly severity: Severity;
  /** Expression in PromQL. The alert fires for each series of its result. */
  readonly expr: string;
  /** Time for which the expression must hold, in minutes. */
  readonly forMinutes: number;
  /** One sentence, in which `{{ $labels.x }}` is a label and `{{ $value }}` the value. */
  readonly summary: string;
}

interface RecordingRule {
  readonly name: string;
  readonly expr: string;
}

const MIB = 2 ** 20;

/** Rates and percentiles over five minutes, for the alerts and for dashboards of users. */
export const RECORDING_RULES: readonly RecordingRule[] = [
  {
    name: "instance:jindou_messages_accepted:rate5m",
    expr: rateOfNode("messages_accepted_total"),
  },
  { name: "instance:jindou_deliveries:rate5m", expr: rateOfNode("deliveries_total") },
  { name: "instance:jindou_http_requests:rate5m", expr: rateOfNode("http_requests_total") },
  {
    name: "instance:jindou_send_duration_seconds:p99_5m",
    expr: `histogram_quantile(0.99, sum by (job, instance, le) (rate(${metric("send_duration_seconds_bucket")}[5m])))`,
  },
  {
    name: "job:jindou_sessions:sum",
    expr: `sum by (job) (${metric("sessions")})`,
  },
];

export const ALERTS: readonly AlertRule[] = [
  {
    name: "JindouDown",
    severity: "critical",
    expr: `up{job="${JOB}"} == 0`,
    forMinutes: 2,
    summary: "Prometheus cannot read the metrics of {{ $labels.instance }}",
  },
  {
    name: "JindouNotScraped",
    severity: "critical",
    expr: `absent(up{job="${JOB}"})`,
    forMinutes: 5,
    summary: `Prometheus has no target with the job "${JOB}"`,
  },
  {
    name: "JindouNotReady",
    severity: "critical",
    expr: `${metric("ready")} == 0`,
    forMinutes: 5,
    summary: "{{ $labels.instance }} accepts no work; /readyz has the reason",
  },
  {
    name: "JindouRestarts",
    severity: "warning",
    expr: `changes(process_start_time_seconds{job="${JOB}"}[1h]) > 3`,
    forMinutes: 0,
    summary: "{{ $labels.instance }} started {{ $value }} times within an hour",
  },
  {
    name: "JindouRequestsRefused",
    severity: "critical",
    expr: `sum by (job, instance, code) (rate(${metric("requests_refused_total", 'code=~"internal|unavailable|overloaded|disk_full"')}[5m])) > 0`,
    forMinutes: 5,
    summary: "{{ $labels.instance }} refuses requests with the code {{ $labels.code }}",
  },
  {
    name: "JindouSendsSlow",
    severity: "warning",
    expr: "instance:jindou_send_duration_seconds:p99_5m > 0.5",
    forMinutes: 10,
    summary:
      "On {{ $labels.instance }} one message in a hundred takes at least {{ $value | humanizeDuration }} to become durable",
  },
  {
    name: "JindouEventLoopLag",
    severity: "warning",
    expr: `nodejs_eventloop_lag_p99_seconds{job="${JOB}"} > 0.1`,
    forMinutes: 5,
    summary: "{{ $labels.instance }} is overloaded: its event loop is delayed by {{ $value }} s",
  },
  {
    name: "JindouSlowReaders",
    severity: "warning",
    expr: `rate(${metric("connections_ended_total", 'reason="slow_reader"')}[10m]) > 0.1`,
    forMinutes: 15,
    summary: "{{ $labels.instance }} disconnects clients that read too slowly",
  },
  {
    name: "JindouSocketsNearLimit",
    severity: "warning",
    expr: `${metric("sockets")} / ${metric("sockets_max")} > 0.8`,
    forMinutes: 5,
    summary: "{{ $labels.instance }} uses {{ $value | humanizePercentage }} of sockets.max",
  },
  {
    name: "JindouSocketsRefused",
    severity: "critical",
    expr: `increase(${metric("sockets_refused_total", 'reason=~"max|descriptors"')}[5m]) > 0`,
    forMinutes: 1,
    summary: "{{ $labels.instance }} closes new connections: {{ $labels.reason }}",
  },
  {
    name: "JindouAddressRefused",
    severity: "info",
    expr: `increase(${metric("sockets_refused_total", 'reason="address"')}[10m]) > 0 or increase(${metric("sockets_displaced_total")}[10m]) > 0`,
    forMinutes: 10,
    summary: "One address opens many silent connections to {{ $labels.instance }}",
  },
  {
    name: "JindouBodiesPending",
    severity: "warning",
    expr: `${metric("http_bodies_pending_bytes")} > ${32 * MIB}`,
    forMinutes: 5,
    summary:
      "Partially received request bodies use {{ $value | humanize1024 }}B on {{ $labels.instance }}",
  },
  {
    name: "JindouLoginFailures",
    severity: "info",
    expr: `sum by (job, instance) (rate(${metric("manager_logins_total", 'outcome=~"failed|throttled"')}[10m])) > 0.1 or sum by (job, instance) (rate(${metric("connections_ended_total", 'reason="auth_failed"')}[10m])) > 10`,
    forMinutes: 10,
    summary: "Many logins with wrong passwords or tokens fail on {{ $labels.instance }}",
  },
  {
    name: "JindouMemtableGrowing",
    severity: "warning",
    expr: `${metric("store_memtable_bytes")} > ${32 * MIB} or ${metric("store_memtable_records")} > 250000`,
    forMinutes: 2,
    summary: "The disk of {{ $labels.instance }} is too slow for its messages",
  },
  {
    name: "JindouDiskAlmostFull",
    severity: "critical",
    expr: `${metric("store_free_bytes")} < ${1024 * MIB}`,
    forMinutes: 5,
    summary: "The disk of {{ $labels.instance }} has {{ $value | humanize1024 }}B left",
  },
  {
    name: "JindouDiskFullSoon",
    severity: "warning",
    expr: `predict_linear(${metric("store_free_bytes")}[6h], 86400) < 0`,
    forMinutes: 30,
    summary: "The disk of {{ $labels.instance }} will be full within a day",
  },
  {
    name: "JindouRedisDown",
    severity: "critical",
    expr: `${metric("redis_up")} == 0`,
    forMinutes: 1,
    summary: "{{ $labels.instance }} cannot use Redis",
  },
  {
    name: "JindouRedisSlow",
    severity: "warning",
    expr: `${metric("redis_commands_in_flight")} > 2000`,
    forMinutes: 5,
    summary: "{{ $value }} commands of {{ $labels.instance }} are waiting for Redis",
  },
  {
    name: "JindouRedisDataLost",
    severity: "critical",
    expr: `increase(${metric("redis_data_lost_total")}[15m]) > 0`,
    forMinutes: 0,
    summary: "{{ $labels.instance }} found that Redis had been emptied",
  },
  {
    name: "JindouPublicationsMissed",
    severity: "warning",
    expr: `rate(${metric("cluster_repairs_total")}[10m]) > 0.1 unless rate(${metric("cluster_resubscribed_topics_total")}[10m]) > 0`,
    forMinutes: 10,
    summary: "{{ $labels.instance }} misses publications and reads the messages from Redis instead",
  },
  {
    name: "JindouPublicationsRejected",
    severity: "warning",
    expr: `increase(${metric("cluster_frames_rejected_total")}[15m]) > 0`,
    forMinutes: 0,
    summary: "{{ $labels.instance }} dropped publications that no node of this version sends",
  },
  {
    name: "JindouSubscriptionsLost",
    severity: "warning",
    expr: `increase(${metric("cluster_resubscribed_topics_total")}[1h]) > 0`,
    forMinutes: 30,
    summary: "{{ $labels.instance }} lost subscriptions at Redis within the last hour",
  },
  {
    name: "JindouClockOffset",
    severity: "warning",
    expr: `abs(${metric("cluster_clock_offset_seconds")}) > 1`,
    forMinutes: 5,
    summary: "The clocks of {{ $labels.instance }} and of Redis differ by {{ $value }} s",
  },
  {
    name: "JindouClockInvalid",
    severity: "critical",
    expr: `${metric("clock_invalid")} == 1`,
    forMinutes: 0,
    summary: "The clock of {{ $labels.instance }} shows a time after 2080",
  },
  {
    name: "JindouRecordsUnreadable",
    severity: "warning",
    expr: `increase(${metric("store_unreadable_records_total")}[1h]) > 0`,
    forMinutes: 0,
    summary: "{{ $labels.instance }} skipped records that it cannot read",
  },
  {
    name: "JindouCommandsDropped",
    severity: "warning",
    expr: `increase(${metric("commands_dropped_total")}[1h]) > 0`,
    forMinutes: 0,
    summary: "Full inboxes on {{ $labels.instance }} lost their oldest commands",
  },
  {
    name: "JindouLogLinesDropped",
    severity: "warning",
    expr: `increase(${metric("log_lines_dropped_total")}[15m]) > 0`,
    forMinutes: 0,
    summary: "{{ $labels.instance }} dropped log lines, because its output is not read fast enough",
  },
  {
    name: "JindouVersionsDiffer",
    severity: "info",
    expr: `count by (job) (count by (job, version) (${metric("build_info")})) > 1`,
    forMinutes: 60,
    summary: "The nodes have run {{ $value }} different versions for an hour",
  },
];

/** Returns the series of this job of the metric `jindou_<name>`. */
function metric(name: string, matchers = ""): string {
  return `jindou_${name}{job="${JOB}"${matchers === "" ? "" : `,${matchers}`}}`;
}

function rateOfNode(counter: string): string {
  return `sum by (job, instance) (rate(${metric(counter)}[5m]))`;
}
