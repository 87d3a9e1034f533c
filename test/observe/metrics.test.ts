// Tests of the metrics page after the gateway and the API have reported events.

import { open } from "node:fs/promises";
import { setTimeout as pause } from "node:timers/promises";
import { EventLoopLag } from "../../src/observe/event-loop-lag.ts";
import { MAX_SERIES } from "../../src/observe/families.ts";
import { createMetrics, type Metrics } from "../../src/observe/metrics.ts";
import { METRICS } from "../../src/observe/table.ts";
import { t } from "../support/suite.ts";

/** Returns the value of each sample of the metrics page, by metric name with labels. */
async function samplesOf({ page }: Metrics) {
  const lines = (await page.metrics()).split("\n");
  const samples = lines.filter((line) => line !== "" && !line.startsWith("#"));
  return new Map(
    samples.map((line) => {
      const cut = line.lastIndexOf(" ");
      return [line.slice(0, cut), Number(line.slice(cut + 1))] as const;
    }),
  );
}

t.test(
  "the metrics page shows the help text and the type of every metric in `METRICS`",
  async (t) => {
    const page = await createMetrics({ version: "1", nodeId: "n1" }).page.metrics();
    for (const { name, kind, help } of Object.values(METRICS)) {
      t.match(page, `# TYPE ${name} ${kind}\n`);
      t.ok(page.includes(`# HELP ${name} ${help}`), name);
    }
  },
);

t.test("metric names and labels follow the naming rules of Prometheus", async (t) => {
  const rows = Object.values(METRICS);
  t.equal(new Set(rows.map((row) => row.name)).size, rows.length);
  for (const { name, kind, labels } of rows) {
    t.match(name, /^jindou_[a-z_]+$/);
    t.equal(name.endsWith("_total"), kind === "counter", name);
    if (kind === "histogram") t.match(name, /_seconds$/);
    for (const label of labels) t.match(label, /^[a-z_]+$/);
    t.notOk(labels.some((label) => /uid|channel_id|session|address/.test(label)));
  }
});

t.test(
  "the metrics page contains the build, the memory of the process and the event-loop lag",
  async (t) => {
    const samples = await samplesOf(createMetrics({ version: "1.2.3", nodeId: "n1" }));
    const build = `jindou_build_info{version="1.2.3",node_version="${process.version}",node_id="n1"}`;
    t.equal(samples.get(build), 1);
    t.type(samples.get("nodejs_eventloop_lag_seconds"), "number");
    t.ok(samples.has("process_resident_memory_bytes"));
  },
);

t.test("the metrics page reports the number of open file descriptors", async (t) => {
  const metrics = createMetrics({ version: "1", nodeId: "n1" });
  await metrics.page.metrics(); // loads the page's modules
  const samples = await samplesOf(metrics);
  const before = samples.get("process_open_fds") ?? 0;
  const files = await Promise.all(Array.from({ length: 50 }, () => open("/dev/null")));
  const after = (await samplesOf(metrics)).get("process_open_fds") ?? 0;
  await Promise.all(files.map((file) => file.close()));
  t.ok(before > 10, "a Node.js process has more than ten open files");
  t.equal(after - before, 50);
});

t.test("every scraper sees the lag of a turn that blocked the event loop", async (t) => {
  const metrics = createMetrics({ version: "1", nodeId: "n1" });
  metrics.eventLoop.start();
  t.teardown(() => metrics.eventLoop.stop());
  blockLoop();
  await pause(0);
  for (let scraper = 0; scraper < 2; scraper++) {
    const samples = await samplesOf(metrics);
    for (const part of ["max_", "p99_", ""])
      t.ok(Number(samples.get(`nodejs_eventloop_lag_${part}seconds`)) > 0.1, part);
    // Each short turn since the blocked one lowers the mean.
    t.ok(Number(samples.get("nodejs_eventloop_lag_mean_seconds")) > 0, "mean_");
  }
});

t.test(
  "the delay caused by a long turn of the event loop is reported, but not forever",
  async (t) => {
    // The class is tested directly, because the windows of a node last 30 seconds.
    const lag = new EventLoopLag(300);
    lag.start();
    t.teardown(() => lag.stop());
    const highest = () => {
      const values = new Map(lag.gauges().map(({ name, read }) => [name, read()]));
      return values.get("nodejs_eventloop_lag_max_seconds") ?? 0;
    };
    t.equal(highest(), 0);
    blockLoop();
    await pause(0);
    t.ok(highest() > 0.1);
    while (highest() > 0.1) await pause(20);
    t.pass("the delay is not reported forever");
  },
);

function blockLoop(): void {
  const endMs = performance.now() + 200;
  while (performance.now() < endMs);
}

t.test("the gauges of connections and sessions report how many are open", async (t) => {
  const metrics = createMetrics({ version: "1", nodeId: "n1" });
  const { gateway } = metrics;
  gateway.connectionOpened("client");
  gateway.connectionOpened("client");
  gateway.connectionOpened("wkproto");
  gateway.connectionClosed("client");
  gateway.sessionOpened(1);
  gateway.sessionOpened(0);
  gateway.sessionClosed(0);
  const samples = await samplesOf(metrics);
  t.equal(samples.get('jindou_connections{listener="client"}'), 1);
  t.equal(samples.get('jindou_connections{listener="wkproto"}'), 1);
  t.equal(samples.get('jindou_connections_opened_total{listener="client"}'), 2);
  t.equal(samples.get('jindou_sessions{device_flag="app"}'), 0);
  t.equal(samples.get('jindou_sessions{device_flag="web"}'), 1);
  t.equal(samples.get('jindou_sessions{device_flag="desktop"}'), 0);
});

t.test("frames, rejected requests, closed connections and resumes are counted", async (t) => {
  const metrics = createMetrics({ version: "1", nodeId: "n1" });
  const { gateway } = metrics;
  gateway.frameIn(10);
  gateway.frameIn(5);
  gateway.refused("rate_limited");
  gateway.ended("kicked");
  gateway.ended("slow_reader");
  gateway.ended("slow_reader");
  gateway.resumed(7);
  const samples = await samplesOf(metrics);
  t.equal(samples.get("jindou_frames_received_total"), 2);
  t.equal(samples.get("jindou_frames_received_bytes_total"), 15);
  t.equal(samples.get('jindou_requests_refused_total{code="rate_limited",source="socket"}'), 1);
  t.equal(samples.get('jindou_connections_ended_total{reason="kicked"}'), 1);
  t.equal(samples.get('jindou_connections_ended_total{reason="slow_reader"}'), 2);
  t.equal(samples.get("jindou_resume_runs_total"), 1);
  t.equal(samples.get("jindou_resume_messages_total"), 7);
});

t.test(
  "messages are counted by channel type and source, and the durations of sends are recorded",
  async (t) => {
    const metrics = createMetrics({ version: "1", nodeId: "n1" });
    metrics.gateway.sent(1, 3);
    metrics.gateway.sent(2, 0.05);
    metrics.api.sent(2, 20_000);
    const samples = await samplesOf(metrics);
    const accepted = (type: string, source: string) =>
      samples.get(`jindou_messages_accepted_total{channel_type="${type}",source="${source}"}`);
    t.equal(accepted("person", "socket"), 1);
    t.equal(accepted("group", "socket"), 1);
    t.equal(accepted("group", "http"), 1);
    t.equal(accepted("person", "http"), 0);
    const bucket = (source: string, bound: string) =>
      samples.get(`jindou_send_duration_seconds_bucket{source="${source}",le="${bound}"}`);
    t.equal(bucket("socket", "0.0001"), 1, "0.05 ms is in the first bucket");
    t.equal(bucket("socket", "0.0025"), 1);
    t.equal(bucket("socket", "0.005"), 2, "a bucket includes the values of the smaller buckets");
    t.equal(bucket("socket", "+Inf"), 2);
    t.equal(bucket("http", "10"), 0, "20 s is above the last bound");
    t.equal(bucket("http", "+Inf"), 1);
    t.equal(samples.get('jindou_send_duration_seconds_count{source="http"}'), 1);
    t.equal(samples.get('jindou_send_duration_seconds_sum{source="http"}'), 20);
  },
);

t.test(
  "a histogram counts a value that equals a bound in the bucket of that bound, and a negative value or NaN as zero",
  async (t) => {
    const metrics = createMetrics({ version: "1", nodeId: "n1" });
    metrics.gateway.acknowledged(1);
    metrics.gateway.acknowledged(-5);
    metrics.gateway.acknowledged(Number.NaN);
    const samples = await samplesOf(metrics);
    const name = "jindou_recvack_delay_seconds";
    t.equal(samples.get(`${name}_bucket{le="0.0001"}`), 2);
    t.equal(samples.get(`${name}_bucket{le="0.001"}`), 3);
    t.equal(samples.get(`${name}_sum`), 0.001);
  },
);

t.test("control-plane requests are counted by route and status", async (t) => {
  const metrics = createMetrics({ version: "1", nodeId: "n1" });
  const count = metrics.api.requestCounter("/message/send");
  count(200, 1);
  count(200, 2);
  count(403, 1);
  metrics.api.requestCounter("/message/send")(200, 1);
  metrics.api.refused("not_subscriber");
  metrics.api.login("throttled");
  const samples = await samplesOf(metrics);
  const requests = (status: number) =>
    samples.get(`jindou_http_requests_total{route="/message/send",status="${status}"}`);
  t.equal(requests(200), 3);
  t.equal(requests(403), 1);
  t.equal(samples.get('jindou_http_request_duration_seconds_count{route="/message/send"}'), 4);
  t.equal(samples.get('jindou_manager_logins_total{outcome="throttled"}'), 1);
  t.equal(samples.get('jindou_requests_refused_total{code="not_subscriber",source="http"}'), 1);
});

t.test(
  "a metric that reads another module's counter shows the current value at each scrape",
  async (t) => {
    const metrics = createMetrics({ version: "1", nodeId: "n1" });
    let records = 4;
    t.notOk((await samplesOf(metrics)).has("jindou_store_memtable_records"));
    metrics.families.storeMemtableRecords.of().from(() => records);
    t.equal((await samplesOf(metrics)).get("jindou_store_memtable_records"), 4);
    records = 9;
    t.equal((await samplesOf(metrics)).get("jindou_store_memtable_records"), 9);
  },
);

t.test(
  "label values beyond the maximum number of series are counted together as `other`",
  async (t) => {
    const { families } = createMetrics({ version: "1", nodeId: "n1" });
    for (let i = 0; i < MAX_SERIES + 50; i++) families.connectionsEnded.of(`reason${i}`).add();
    const entries = [...families.connectionsEnded.entries()];
    t.equal(entries.length, MAX_SERIES + 1);
    t.equal(families.connectionsEnded.of("other").value, 50);
    t.equal(families.connectionsEnded.of("reason0").value, 1);
  },
);

t.test(
  "refused requests to 100 routes do not prevent later requests from being counted by route",
  async (t) => {
    const metrics = createMetrics({ version: "1", nodeId: "n1" });
    for (let route = 0; route < 100; route++)
      for (const status of [400, 401, 403, 413, 429])
        metrics.api.requestCounter(`/route${route}`)(status, 1);
    metrics.api.requestCounter("/route0")(200, 1);
    const samples = await samplesOf(metrics);
    t.equal(samples.get('jindou_http_requests_total{route="/route0",status="200"}'), 1);
  },
);

t.test("two nodes in one process have separate metrics", async (t) => {
  const [a, b] = [
    createMetrics({ version: "1", nodeId: "n1" }),
    createMetrics({ version: "1", nodeId: "n1" }),
  ];
  a.gateway.connectionOpened("client");
  t.equal((await samplesOf(a)).get('jindou_connections{listener="client"}'), 1);
  t.equal((await samplesOf(b)).get('jindou_connections{listener="client"}'), 0);
});
