// Tests of `config/observability/`: Prometheus accepts the rules, each alert fires in the situation
// that it describes and not on a healthy node, and the dashboard and the rules name only metrics
// that a node has.

import { spawnSync } from "node:child_process";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout } from "node:timers/promises";
import t, { type Test } from "tap";
import { stringify } from "yaml";
import { dashboardFile } from "../../.ci/dashboard.ts";
import { rulesFile } from "../../.ci/rules-file.ts";
import { ALERTS, exprOf, RECORDING_RULES } from "../../src/observe/alerts.ts";
import { METRICS } from "../../src/observe/table.ts";
import { spawnBroker, tempFolder } from "../support/broker.ts";
import { findLinter } from "../support/linters.ts";
import { readPage } from "./pages.ts";

const FOLDER = "config/observability";
const TOKEN = "0123456789abcdef";
const promtool = findLinter("promtool");

interface Target {
  readonly expr: string;
}

/** Returns the expressions of the dashboard with values for its variables. */
function dashboardExpressions(): readonly string[] {
  const { panels } = JSON.parse(dashboardFile()) as {
    panels: readonly { readonly targets?: readonly Target[] }[];
  };
  return panels
    .flatMap(({ targets = [] }) => targets.map(({ expr }) => expr))
    .map((expr) => expr.replaceAll("$__rate_interval", "5m").replaceAll(/\$\w+/g, ".+"));
}

const RULE_EXPRESSIONS = [...ALERTS.map(exprOf), ...RECORDING_RULES.map(({ expr }) => expr)];

t.test("the dashboard and the rules in config/observability equal the generated files", (t) => {
  t.equal(readPage(`${FOLDER}/dashboard.json`), dashboardFile(), "npm run config:docs");
  t.equal(readPage(`${FOLDER}/rules.yaml`), rulesFile(), "npm run config:docs");
  t.end();
});

t.test(
  "the dashboard and the rules use only metrics that a node has, and the dashboard shows every metric",
  async (t) => {
    const node = await spawnBroker(t, { JINDOU_API_TOKEN: TOKEN });
    const { body } = await node.call("/metrics", undefined, { authorization: `Bearer ${TOKEN}` });
    t.match(body, /^jindou_ready 1$/m);
    const existing = new Set([...body.matchAll(/^# TYPE (\S+)/gm)].map(([, name = ""]) => name));
    const expressions = dashboardExpressions();
    for (const expr of [...expressions, ...RULE_EXPRESSIONS])
      for (const [name] of expr.matchAll(/\b(?<!:)(jindou|process|nodejs)_\w+(?!\w*:)/g))
        t.ok(existing.has(name.replace(/_(bucket|sum|count)$/, "")), `${name} in ${expr}`);
    const shown = expressions.join(" ");
    for (const { name } of Object.values(METRICS))
      t.match(shown, new RegExp(`\\b${name}(_bucket)?\\{`), `the dashboard shows ${name}`);
  },
);

t.test("a draining node reports the metric jindou_ready as 0", async (t) => {
  const node = await spawnBroker(t, { JINDOU_DRAIN_NOTICE_MS: "3000" });
  const exit = node.stop("SIGTERM");
  while ((await node.call("/readyz")).status === 200) await setTimeout(5);
  t.match((await node.call("/metrics")).body, /^jindou_ready 0$/m);
  await exit;
});

t.test("each alert has a section in docs/operations.md", (t) => {
  const headings = readPage("docs/operations.md").match(/(?<=^#### )Jindou\w+$/gm);
  t.same(
    headings,
    ALERTS.map(({ name }) => name),
  );
  t.end();
});

/** Runs promtool on a file with this content. */
async function runPromtool(t: Test, command: readonly string[], content: unknown) {
  const file = join(await tempFolder(t), "file.yaml");
  await writeFile(file, stringify(content));
  return spawnSync(promtool.path, [...command, file], { encoding: "utf8" });
}

t.test("promtool accepts all rules and dashboard queries", { skip: promtool.skip }, async (t) => {
  const files = [
    ["check", "rules", `${FOLDER}/rules.yaml`],
    ["check", "config", "--syntax-only", `${FOLDER}/prometheus.yaml`],
  ];
  for (const args of files) {
    const { status, stdout, stderr } = spawnSync(promtool.path, args, { encoding: "utf8" });
    t.equal(status, 0, stdout + stderr);
  }
  const rules = dashboardExpressions().map((expr, index) => ({ record: `panel:${index}`, expr }));
  const { status, stdout } = await runPromtool(t, ["check", "rules"], {
    groups: [{ name: "dashboard", rules }],
  });
  t.equal(status, 0, stdout);
});

/** Series by name with the values of the first minutes in the notation of promtool. */
type Series = Readonly<Record<string, string>>;

const NODE = 'job="jindou",instance="node-1"';
const HOUR = 60;

/** Series by alert. Each alert must fire at the end of its series. */
const SITUATIONS: Readonly<Record<string, Series>> = {
  JindouDown: { up: "0x30" },
  JindouNotScraped: {},
  JindouNotReady: { jindou_ready: "0x30" },
  JindouRestarts: { process_start_time_seconds: "0+60x30" },
  JindouRequestsRefused: { 'jindou_requests_refused_total{code="overloaded"}': "0+1x30" },
  JindouSendsSlow: {
    'jindou_send_duration_seconds_bucket{le="0.5"}': "0+1x30",
    'jindou_send_duration_seconds_bucket{le="1"}': "0+100x30",
    'jindou_send_duration_seconds_bucket{le="+Inf"}': "0+100x30",
  },
  JindouEventLoopLag: { nodejs_eventloop_lag_p99_seconds: "0.2x30" },
  JindouSlowReaders: { 'jindou_connections_ended_total{reason="slow_reader"}': "0+60x40" },
  JindouSocketsNearLimit: { jindou_sockets: "90x30", jindou_sockets_max: "100x30" },
  JindouSocketsRefused: { 'jindou_sockets_refused_total{reason="descriptors"}': "0+1x30" },
  JindouAddressRefused: { jindou_sockets_displaced_total: "0+1x30" },
  JindouBodiesPending: { jindou_http_bodies_pending_bytes: "50000000x30" },
  JindouLoginFailures: { 'jindou_manager_logins_total{outcome="failed"}': "0+60x30" },
  JindouMemtableGrowing: { jindou_store_memtable_records: "400000x30" },
  JindouDiskAlmostFull: { jindou_store_free_bytes: "600000000x30" },
  JindouDiskFullSoon: { jindou_store_free_bytes: "100000000000-100000000x420" },
  JindouRedisDown: { jindou_redis_up: "0x30" },
  JindouRedisSlow: { jindou_redis_commands_in_flight: "5000x30" },
  JindouRedisDataLost: { jindou_redis_data_lost_total: "0x20 1x5" },
  JindouPublicationsMissed: {
    jindou_cluster_repairs_total: "0+60x30",
    jindou_cluster_resubscribed_topics_total: "0x30",
  },
  JindouPublicationsRejected: {
    'jindou_cluster_frames_rejected_total{reason="unreadable"}': "0x20 1x5",
  },
  JindouSubscriptionsLost: { jindou_cluster_resubscribed_topics_total: "0+10x40" },
  JindouClockOffset: { jindou_cluster_clock_offset_seconds: "-3x30" },
  JindouClockInvalid: { jindou_clock_invalid: "1x5" },
  JindouRecordsUnreadable: { jindou_store_unreadable_records_total: "0x20 1x5" },
  JindouCommandsDropped: { jindou_commands_dropped_total: "0x20 5x5" },
  JindouLogLinesDropped: { jindou_log_lines_dropped_total: "0x20 9x5" },
  JindouVersionsDiffer: {
    'jindou_build_info{version="0.1.0"}': "1x90",
    'jindou_build_info{version="0.2.0"}': "1x90",
  },
};

/**
 * The series of a healthy node: counters of faults stay constant, and counters of usual work grow.
 */
const HEALTHY: Series = {
  up: "1x420",
  jindou_ready: "1x420",
  process_start_time_seconds: "1000x420",
  'jindou_build_info{version="0.1.0"}': "1x420",
  'jindou_requests_refused_total{code="overloaded"}': "7x420",
  'jindou_requests_refused_total{code="not_member"}': "0+60x420",
  'jindou_send_duration_seconds_bucket{le="0.5"}': "0+100x420",
  'jindou_send_duration_seconds_bucket{le="+Inf"}': "0+100x420",
  nodejs_eventloop_lag_p99_seconds: "0.011x420",
  'jindou_connections_ended_total{reason="kicked"}': "0+60x420",
  'jindou_connections_ended_total{reason="slow_reader"}': "3x420",
  jindou_sockets: "100x420",
  jindou_sockets_max: "10000x420",
  'jindou_sockets_refused_total{reason="address"}': "2x420",
  jindou_sockets_displaced_total: "2x420",
  jindou_http_bodies_pending_bytes: "1000x420",
  'jindou_manager_logins_total{outcome="failed"}': "4x420",
  jindou_store_memtable_bytes: "9000000x420",
  jindou_store_memtable_records: "30000x420",
  jindou_store_free_bytes: "90000000000-1000000x420",
  jindou_redis_up: "1x420",
  jindou_redis_commands_in_flight: "20x420",
  jindou_redis_data_lost_total: "1x420",
  jindou_cluster_repairs_total: "5x420",
  jindou_cluster_resubscribed_topics_total: "9x420",
  'jindou_cluster_frames_rejected_total{reason="unreadable"}': "1x420",
  jindou_cluster_clock_offset_seconds: "0.2x420",
  jindou_clock_invalid: "0x420",
  jindou_store_unreadable_records_total: "1x420",
  jindou_commands_dropped_total: "1x420",
  jindou_log_lines_dropped_total: "1x420",
};

function inputOf(series: Series) {
  return Object.entries(series).map(([name, values]) => ({
    series: name.includes("{") ? name.replace("{", `{${NODE},`) : `${name}{${NODE}}`,
    values,
  }));
}

/** Returns the minute of the last value, or 30 if there are no values. */
function lastMinute(series: Series): number {
  const lengths = Object.values(series).map((values) =>
    [...values.matchAll(/x(\d+)/g)].reduce((sum, [, count]) => sum + Number(count) + 1, -1),
  );
  return Math.max(...lengths, 0) || 30;
}

const FIRES = "each alert fires in its situation, and no alert fires on a healthy node";

t.test(FIRES, { skip: promtool.skip }, async (t) => {
  t.same(
    Object.keys(SITUATIONS),
    ALERTS.map(({ name }) => name),
  );
  const firing = ALERTS.map(({ name }) => {
    const series = SITUATIONS[name] ?? {};
    return {
      input_series: inputOf(series),
      promql_expr_test: [
        {
          expr: `count(ALERTS{alertname="${name}",alertstate="firing"})`,
          eval_time: `${lastMinute(series)}m`,
          exp_samples: [{ labels: "{}", value: 1 }],
        },
      ],
    };
  });
  const healthy = {
    input_series: inputOf(HEALTHY),
    promql_expr_test: [1, 3, 7].map((hours) => ({
      expr: "ALERTS",
      eval_time: `${hours * HOUR}m`,
      exp_samples: [],
    })),
  };
  const { status, stdout, stderr } = await runPromtool(t, ["test", "rules"], {
    rule_files: [join(process.cwd(), FOLDER, "rules.yaml")],
    evaluation_interval: "1m",
    tests: [...firing, healthy].map((test) => ({ interval: "1m", ...test })),
  });
  t.equal(status, 0, stdout + stderr);
});
