// The benchmark overview: a short run of all workloads and peers from the command line, an open
// loop against a server that stalls, and the reports. The tests assert nothing about speed.

import { spawnSync } from "node:child_process";
import { existsSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import t, { type Test } from "tap";
import { differences } from "../../bench/overview/compare.ts";
import { picture } from "../../bench/overview/picture.ts";
import { PARTS, writtenPart } from "../../bench/overview/publish.ts";
import { csv, html, markdown, terminalText } from "../../bench/overview/report.ts";
import { type OverviewResult, readResult } from "../../bench/overview/results.ts";
import { httpRequest } from "../../bench/support/frames.ts";
import { compileLoad, LoadClient } from "../../bench/support/load.ts";
import { targetTable } from "../../bench/support/results.ts";
import { Workbench } from "../../bench/support/workbench.ts";
import { ROOT, readPage } from "../docs/pages.ts";
import { spawnBroker } from "../support/broker.ts";
import { TYPESCRIPT_ARGS, tieToParent } from "../support/child.ts";

const HAS_COMPILER = spawnSync("cc", ["--version"]).status === 0;
const skip =
  process.platform === "linux" && HAS_COMPILER
    ? false
    : "the benches need Linux and a C compiler under the name cc";

function bench(...args: readonly string[]) {
  return benchWith({}, ...args);
}

function benchWith(variables: Readonly<Record<string, string>>, ...args: readonly string[]) {
  return spawnSync(
    ...tieToParent(process.execPath, [...TYPESCRIPT_ARGS, join(ROOT, "bench/run.ts"), ...args]),
    { cwd: ROOT, encoding: "utf8", timeout: 600_000, env: { ...process.env, ...variables } },
  );
}

/** Returns the path of a program that the bench can start as WuKongIM. */
function wukongimStandIn(t: Test): string {
  const path = join(t.testdir(), "wukongim");
  const source = join(ROOT, "test/bench/wukongim-stand-in.ts");
  const command = [process.execPath, ...TYPESCRIPT_ARGS, source].map((part) => `'${part}'`);
  writeFileSync(path, `#!/bin/sh\nexec ${command.join(" ")} "$@"\n`, { mode: 0o755 });
  return path;
}

t.test(
  "the overview measures all workloads with all installed peers and writes the reports",
  { skip },
  async (t) => {
    const sizes = ["--members", "10", "--connections", "4", "--clients", "20"];
    const programs = {
      BENCH_WUKONGIM: wukongimStandIn(t),
      BENCH_NATS_SERVER: "/no/such/program",
    };
    const peers = ["--peers", "raw,jindou,ws,socket.io,wukongim,nats"];
    const run = benchWith(programs, "--quick", ...sizes, ...peers);
    t.equal(run.status, 0, run.stderr);
    t.match(
      run.stderr,
      /^Measures .* with raw, jindou, ws, socket\.io, wukongim, about \d+ seconds\.$/m,
    );
    t.match(run.stderr, / 0 % {2}\d:\d\d left {2}fanout-10: starts raw$/m, "shows the time left");
    t.match(run.stderr, /^Not measured: nats\. /m);
    t.match(run.stdout, /^message to a group of 10, published over HTTP$/m);
    const folder = /^Written to (.*)$/m.exec(run.stderr)?.[1] ?? "";
    t.teardown(() => rmSync(folder, { recursive: true, force: true }));
    for (const file of ["results.json", "results.csv", "report.md", "report.html"])
      t.ok(existsSync(join(folder, file)), `${file} is written`);
    const { rows } = readResult(folder);
    t.same(
      rows.map(({ id, figures }) => [id, figures.length]),
      [
        ["fanout-10", 5],
        ["fanout-10-socket", 5],
        ["post", 5],
        ["send", 5],
        ["connect", 5],
        ["memory", 5],
        ["resume", 1],
        ["late", 1],
      ],
    );
    const same = bench("--compare", folder, folder);
    t.equal(same.status, 0, same.stderr);
    t.match(same.stdout, /^\| post \| jindou \| .* \| \+0 % \| .* \| within the noise \|$/m);
  },
);

t.test(
  "a server that runs elsewhere is measured without its processor time",
  { skip },
  async (t) => {
    const token = "0123456789abcdef0123";
    const { apiPort, clientPort } = await spawnBroker(t, {
      JINDOU_API_TOKEN: token,
      JINDOU_CLIENT_MAX_FRAMES_PER_SECOND: "0",
    });
    const run = bench(
      ...["--quick", "--json", "--members", "10", "--connections", "4", "--clients", "20"],
      ...["--peers", "jindou", "--format", "jsonrpc", "--rate", "100"],
      ...["--url", `127.0.0.1:${apiPort}`, "--client-url", `127.0.0.1:${clientPort}`],
      ...["--api-token", token],
    );
    t.equal(run.status, 0, run.stderr);
    const folder = /^Written to (.*)$/m.exec(run.stderr)?.[1] ?? "";
    t.teardown(() => rmSync(folder, { recursive: true, force: true }));
    const { rows } = JSON.parse(run.stdout) as OverviewResult;
    t.same(
      rows.map(({ id, loop }) => `${id} ${loop}`.trim()),
      [
        "fanout-10 open loop, 100 messages per second",
        "fanout-10-socket open loop, 100 messages per second",
        "post open loop, 100 messages per second",
        "send open loop, 100 messages per second",
        "connect",
      ],
    );
    t.ok(rows.every(({ figures }) => figures.every(({ cpuUs }) => cpuUs === undefined)));
    t.notMatch(run.stdout, token, "the result does not contain the token");
  },
);

t.test("invalid options of a benchmark run are rejected with an error message", async (t) => {
  for (const [args, message] of [
    [["--peers", "nobody"], /There is no peer nobody\. The names are raw, jindou/],
    [["--url", "localhost:5001"], /need an IPv4 address and a port/],
    [["--rate", "0"], /0 is not a number greater than 0/],
  ] as const) {
    const run = bench(...args);
    t.equal(run.status, 1, args.join(" "));
    t.match(run.stderr, message);
  }
});

t.test("an open-loop run shows a server stall in the 99th percentile", { skip }, async (t) => {
  const workbench = new Workbench();
  t.teardown(() => workbench.close());
  let calls = 0;
  const server = createServer((request, response) => {
    request.resume();
    calls += 1;
    // After a second of calls at 200 per second, blocks the whole server for a second.
    if (calls === 200) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1000);
    response.end("{}");
  });
  server.listen(0, "127.0.0.1");
  await new Promise((listening) => server.once("listening", listening));
  t.teardown(() => server.close());
  const { port } = server.address() as AddressInfo;
  const load = new LoadClient(workbench, await compileLoad());
  const { latency } = await load.request({
    ...{ kind: "http", port, pid: process.pid, connections: 4, depth: 1, rate: 200 },
    message: httpRequest("/", "{}"),
    plan: { warmupS: 0.1, seconds: 3 },
  });
  t.ok(latency !== undefined && latency.p99 > 500_000, `p99 is ${latency?.p99} µs`);
});

const figure = (peer: string, value: number, spread: number) => ({
  ...{ peer, value, spread, samples: [value], ratio: value / 200, cpuRatio: 2, cpuUs: 1.5 },
  latency: { p50: 100, p99: 200, p999: 300, max: 400 },
});

function resultOf(jindou: number): OverviewResult {
  const row = { title: "a <work>, with a comma", unit: "messages/s", loop: "closed loop" };
  return {
    ...{ at: "2026-01-02T03:04:05.000Z", command: "npm run bench", commit: "abc" },
    machine: { cpu: "a CPU", cores: 2, memoryGiB: 8, node: "v20", system: "Linux" },
    load: { before: 3, after: 4 },
    ...{ rounds: 3, seconds: 1, payloadBytes: 200 },
    peers: [
      { name: "raw", title: "raw uWebSockets.js", lacks: ["durability"] },
      { name: "jindou", title: "Jindou", lacks: [] },
    ],
    missing: [{ name: "nats", reason: "It is not installed." }],
    rows: [
      {
        ...row,
        ...{ id: "post", isLowerBetter: false },
        figures: [figure("raw", 200, 0.1), figure("jindou", jindou, 0.05)],
      },
    ],
  };
}

t.test(
  "a difference that is smaller than the spread of the samples is reported as noise",
  async (t) => {
    const changes = differences(resultOf(100), resultOf(104));
    t.match(changes, [
      { peer: "raw", change: 0, isWithinNoise: true },
      { id: "post", peer: "jindou", noise: 0.05, isWithinNoise: true },
    ]);
    t.match(differences(resultOf(100), resultOf(90))[1], { peer: "jindou", isWithinNoise: false });
  },
);

t.test(
  "the reports show the ratios to raw uWebSockets.js, the load of the machine and the features that each peer lacks",
  async (t) => {
    const result = resultOf(100);
    const text = markdown(result);
    const quiet = markdown({ ...result, load: { before: 0.2, after: 4 } });
    t.notMatch(quiet, "Other programs", "the run itself causes the load after it");
    t.match(text, "| Jindou | 0.50 | 2.00 | 100 | 5 % | 0.10 | 0.20 | 0.30 | 1.50 |  |");
    t.match(text, /^\| raw uWebSockets\.js \|.*\| durability \|$/m);
    t.match(terminalText(result), "Not part of the work of raw uWebSockets.js: durability.");
    t.match(text, "Load average 3.0 before and 4.0 after the run. Other programs were running");
    t.match(text, "Not measured: nats. It is not installed.");
    t.match(
      csv(result),
      '\npost,"a <work>, with a comma",messages/s,closed loop,jindou,0.5,2,100,0.05,',
    );
    t.match(html(result, "<svg/>"), /<svg\/>[\s\S]*<h2>A &lt;work&gt;, with a comma<\/h2>/);
    const svg = picture(result);
    if (svg === undefined) t.comment("no picture: .ci/charts could not install ECharts");
    else t.match(svg, />Jindou</, "the picture has a legend");
  },
);

/** Returns the picture without its class numbers, which ECharts counts per process. */
const unnumbered = (svg: string) => svg.replaceAll(/zr\d+-cls-\d+/g, "");

t.test("the figures in the documentation equal the results in docs/benchmarks/", async (t) => {
  for (const part of PARTS)
    t.equal(writtenPart(readPage(part.page), part), part.text().trim(), part.page);
  const folder = join(ROOT, "docs/benchmarks");
  const svg = picture(readResult(folder));
  if (svg === undefined) t.comment("no picture: .ci/charts could not install ECharts");
  else t.equal(unnumbered(svg), unnumbered(readPage("docs/benchmarks/picture.svg")), "picture.svg");
});

t.test(
  "the table of targets lists every row with a target, and shows whether the target was reached",
  async (t) => {
    const figure = { subject: "raw", value: 100, spread: 0, samples: [100] };
    const ours = { ...figure, subject: "jindou" };
    const row = { unit: "ms", baseline: figure, ours, ratio: 1 };
    const result = {
      ...{ name: "demo", question: "a question", command: "npm run bench -- demo" },
      at: "2026-11-26T00:00:00.000Z",
      machine: { cpu: "a processor", cores: 2, node: "v20.0.0", loadBefore: 0.25 },
      plan: { isQuick: false, rounds: 3, warmupS: 0, seconds: 1, sessions: 1 },
      rows: [
        { ...row, title: "fast", target: { kind: "value", atMost: 100 } as const },
        { ...row, title: "slow", target: { kind: "ratio", atLeast: 1.5 } as const },
        { ...row, title: "unjudged" },
      ],
    };
    const table = targetTable([result]);
    t.match(table, /^1 of 2 targets are reached\.$/m);
    t.match(table, "| `demo`: fast | 100 (raw) | 100 ms | 1.00 | ≤ 100 ms | reached |");
    t.match(table, "| `demo`: slow | 100 (raw) | 100 ms | 1.00 | ≥ 1.50 | **missed** |");
    t.notMatch(table, "unjudged");
    t.match(table, "- `demo`: 2026-11-26, `npm run bench -- demo`, 3 rounds of 1 s, 2 cores,");
  },
);

t.test("a result without targets is not published", async (t) => {
  const folder = t.testdir({ "http.json": JSON.stringify({ question: "a question", rows: [] }) });
  const run = bench("--publish", join(folder, "http.json"));
  t.equal(run.status, 1);
  t.match(run.stderr, /has no row with a target\. Run the benchmark without --against\./);
});
