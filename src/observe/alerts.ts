// The alerts and recording rules for Prometheus, with symptoms before causes. `npm run config:docs`
// writes config/observability/rules.yaml from them. Each alert has a section with its name in
// docs/operations.md. The console evaluates the same table, so this file must run in browsers.
// Keeps no state.

import {
  type Comparison,
  fullName,
  increase,
  JOB,
  promqlOf,
  RECORDED_MINUTES,
  rate,
  recordedP99,
  selector,
  value,
} from "./conditions.ts";

/**
 * A `critical` alert requires action at once, a `warning` on the same day. An `info` alert explains
 * other alerts.
 */
type Severity = "critical" | "warning" | "info";

export interface AlertRule {
  readonly name: `Jindou${string}`;
  readonly severity: Severity;
  /**
   * The condition. A list of comparisons holds if at least one of them holds. A PromQL expression
   * is used if comparisons cannot express the condition. The alert fires for each series in the
   * result.
   */
  readonly when: readonly Comparison[] | string;
  /** Time for which the condition must hold, in minutes. */
  readonly forMinutes: number;
  /** One sentence. `{{ $labels.x }}` stands for a label and `{{ $value }}` for the value. */
  readonly summary: string;
}

export function exprOf({ when }: Pick<AlertRule, "when">): string {
  return typeof when === "string" ? when : promqlOf(when);
}

interface RecordingRule {
  readonly name: string;
  readonly expr: string;
}

const MIB = 2 ** 20;
const SEND_DURATION = fullName("send_duration_seconds");

/**
 * Rates and percentiles over five minutes, and the number of sessions, for the alerts and for
 * users' own dashboards.
 */
export const RECORDING_RULES: readonly RecordingRule[] = [
  {
    name: "instance:jindou_messages_accepted:rate5m",
    expr: rateOfNode("messages_accepted_total"),
  },
  { name: "instance:jindou_deliveries:rate5m", expr: rateOfNode("deliveries_total") },
  { name: "instance:jindou_http_requests:rate5m", expr: rateOfNode("http_requests_total") },
  {
    name: recordedP99(SEND_DURATION),
    expr: `histogram_quantile(0.99, sum by (job, instance, le) (rate(${metric("send_duration_seconds_bucket")}[${RECORDED_MINUTES}m])))`,
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
    when: `up{job="${JOB}"} == 0`,
    forMinutes: 2,
    summary: "Prometheus cannot read the metrics of {{ $labels.instance }}",
  },
  {
    name: "JindouNotScraped",
    severity: "critical",
    when: `absent(up{job="${JOB}"})`,
    forMinutes: 5,
    summary: `Prometheus has no target with the job "${JOB}"`,
  },
  {
    name: "JindouNotReady",
    severity: "critical",
    when: [{ figure: value("ready"), is: "==", than: 0 }],
    forMinutes: 5,
    summary: "{{ $labels.instance }} accepts no work; /readyz returns the reason",
  },
  {
    name: "JindouRestarts",
    severity: "warning",
    when: `changes(process_start_time_seconds{job="${JOB}"}[1h]) > 3`,
    forMinutes: 0,
    summary: "{{ $labels.instance }} started {{ $value }} times within an hour",
  },
  {
    name: "JindouRequestsRefused",
    severity: "critical",
    when: [
      {
        figure: rate("requests_refused_total", {
          minutes: 5,
          where: { label: "code", values: ["internal", "unavailable", "overloaded", "disk_full"] },
          by: ["code"],
        }),
        is: ">",
        than: 0,
      },
    ],
    forMinutes: 5,
    summary: "{{ $labels.instance }} refuses requests with the code {{ $labels.code }}",
  },
  {
    name: "JindouSendsSlow",
    severity: "warning",
    when: [{ figure: { kind: "p99", histogram: SEND_DURATION }, is: ">", than: 0.5 }],
    forMinutes: 10,
    summary:
      "On {{ $labels.instance }} one message in a hundred takes at least {{ $value | humanizeDuration }} to become durable",
  },
  {
    name: "JindouEventLoopLag",
    severity: "warning",
    when: [{ figure: value("nodejs_eventloop_lag_p99_seconds"), is: ">", than: 0.1 }],
    forMinutes: 5,
    summary: "{{ $labels.instance }} is overloaded: its event loop is delayed by {{ $value }} s",
  },
  {
    name: "JindouSlowReaders",
    severity: "warning",
    when: [
      {
        figure: rate("connections_ended_total", {
          minutes: 10,
          where: { label: "reason", values: ["slow_reader"] },
        }),
        is: ">",
        than: 0.1,
      },
    ],
    forMinutes: 15,
    summary: "{{ $labels.instance }} disconnects clients that read too slowly",
  },
  {
    name: "JindouSocketsNearLimit",
    severity: "warning",
    when: [
      {
        figure: { kind: "ratio", of: fullName("sockets"), to: fullName("sockets_max") },
        is: ">",
        than: 0.8,
      },
    ],
    forMinutes: 5,
    summary:
      "{{ $labels.instance }} uses {{ $value | humanizePercentage }} of its maximum number of sockets",
  },
  {
    name: "JindouSocketsRefused",
    severity: "critical",
    when: [
      {
        figure: increase("sockets_refused_total", {
          minutes: 5,
          where: { label: "reason", values: ["max", "descriptors"] },
        }),
        is: ">",
        than: 0,
      },
    ],
    forMinutes: 1,
    summary: "{{ $labels.instance }} closes new connections: {{ $labels.reason }}",
  },
  {
    name: "JindouAddressRefused",
    severity: "info",
    when: [
      {
        figure: increase("sockets_refused_total", {
          minutes: 10,
          where: { label: "reason", values: ["address"] },
        }),
        is: ">",
        than: 0,
      },
      { figure: increase("sockets_displaced_total", { minutes: 10 }), is: ">", than: 0 },
    ],
    forMinutes: 10,
    summary: "{{ $labels.instance }} closes connections from an address that exceeds its limit",
  },
  {
    name: "JindouBodiesPending",
    severity: "warning",
    when: [{ figure: value("http_bodies_pending_bytes"), is: ">", than: 32 * MIB }],
    forMinutes: 5,
    summary:
      "Partially received request bodies use {{ $value | humanize1024 }}B on {{ $labels.instance }}",
  },
  {
    name: "JindouLoginFailures",
    severity: "info",
    when: [
      {
        figure: rate("manager_logins_total", {
          minutes: 10,
          where: { label: "outcome", values: ["failed", "throttled"] },
          by: [],
        }),
        is: ">",
        than: 0.1,
      },
      {
        figure: rate("connections_ended_total", {
          minutes: 10,
          where: { label: "reason", values: ["auth_failed"] },
          by: [],
        }),
        is: ">",
        than: 10,
      },
    ],
    forMinutes: 10,
    summary: "Many logins on {{ $labels.instance }} fail, for example because of wrong tokens",
  },
  {
    name: "JindouMemtableGrowing",
    severity: "warning",
    when: [
      { figure: value("store_memtable_bytes"), is: ">", than: 32 * MIB },
      { figure: value("store_memtable_records"), is: ">", than: 250_000 },
    ],
    forMinutes: 2,
    summary: "The disk of {{ $labels.instance }} is too slow for the incoming messages",
  },
  {
    name: "JindouDiskAlmostFull",
    severity: "critical",
    when: [{ figure: value("store_free_bytes"), is: "<", than: 1024 * MIB }],
    forMinutes: 5,
    summary: "The disk of {{ $labels.instance }} has {{ $value | humanize1024 }}B left",
  },
  {
    name: "JindouDiskFullSoon",
    severity: "warning",
    when: `predict_linear(${metric("store_free_bytes")}[6h], 86400) < 0`,
    forMinutes: 30,
    summary: "The disk of {{ $labels.instance }} will be full within a day",
  },
  {
    name: "JindouRedisDown",
    severity: "critical",
    when: [{ figure: value("redis_up"), is: "==", than: 0 }],
    forMinutes: 1,
    summary: "{{ $labels.instance }} cannot use Redis",
  },
  {
    name: "JindouRedisSlow",
    severity: "warning",
    when: [{ figure: value("redis_commands_in_flight"), is: ">", than: 2000 }],
    forMinutes: 5,
    summary: "{{ $value }} commands from {{ $labels.instance }} are waiting for Redis",
  },
  {
    name: "JindouRedisDataLost",
    severity: "critical",
    when: [{ figure: increase("redis_data_lost_total", { minutes: 15 }), is: ">", than: 0 }],
    forMinutes: 0,
    summary: "{{ $labels.instance }} found that Redis had been emptied",
  },
  {
    name: "JindouPublicationsMissed",
    severity: "warning",
    when: `rate(${metric("cluster_repairs_total")}[10m]) > 0.1 unless rate(${metric("cluster_resubscribed_topics_total")}[10m]) > 0`,
    forMinutes: 10,
    summary: "{{ $labels.instance }} misses publications and reads the messages from Redis instead",
  },
  {
    name: "JindouPublicationsRejected",
    severity: "warning",
    when: [
      { figure: increase("cluster_frames_rejected_total", { minutes: 15 }), is: ">", than: 0 },
    ],
    forMinutes: 0,
    summary: "{{ $labels.instance }} dropped publications that no node of this version sends",
  },
  {
    name: "JindouSubscriptionsLost",
    severity: "warning",
    when: [
      { figure: increase("cluster_resubscribed_topics_total", { minutes: 60 }), is: ">", than: 0 },
    ],
    forMinutes: 30,
    summary: "{{ $labels.instance }} lost subscriptions at Redis within the last hour",
  },
  {
    name: "JindouClockOffset",
    severity: "warning",
    when: [
      {
        figure: { kind: "absolute", metric: fullName("cluster_clock_offset_seconds") },
        is: ">",
        than: 1,
      },
    ],
    forMinutes: 5,
    summary: "The clocks of {{ $labels.instance }} and of Redis differ by {{ $value }} s",
  },
  {
    name: "JindouClockInvalid",
    severity: "critical",
    when: [{ figure: value("clock_invalid"), is: "==", than: 1 }],
    forMinutes: 0,
    summary: "The clock of {{ $labels.instance }} or of its Redis shows a time after 2080",
  },
  {
    name: "JindouRecordsUnreadable",
    severity: "warning",
    when: [
      { figure: increase("store_unreadable_records_total", { minutes: 60 }), is: ">", than: 0 },
    ],
    forMinutes: 0,
    summary: "{{ $labels.instance }} skipped records that it cannot read",
  },
  {
    name: "JindouCommandsDropped",
    severity: "warning",
    when: [{ figure: increase("commands_dropped_total", { minutes: 60 }), is: ">", than: 0 }],
    forMinutes: 0,
    summary:
      "{{ $labels.instance }} dropped commands, because inboxes, or senders' shares of them, were full",
  },
  {
    name: "JindouLogLinesDropped",
    severity: "warning",
    when: [{ figure: increase("log_lines_dropped_total", { minutes: 15 }), is: ">", than: 0 }],
    forMinutes: 0,
    summary: "{{ $labels.instance }} dropped log lines, because its output is not read fast enough",
  },
  {
    name: "JindouVersionsDiffer",
    severity: "info",
    when: `count by (job) (count by (job, version) (${metric("build_info")})) > 1`,
    forMinutes: 60,
    summary: "The nodes have run {{ $value }} different versions for an hour",
  },
];

/** Returns the selector for the metric `jindou_<name>` of the job. */
function metric(name: string): string {
  return selector({ metric: fullName(name) });
}

function rateOfNode(counter: string): string {
  return `sum by (job, instance) (rate(${metric(counter)}[5m]))`;
}
