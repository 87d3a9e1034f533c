// What do logs cost? Compares a stream chunk over POST /event with a stored message of the same
// build. Compares appends, readers and memory of Durable Streams with the protocol's reference
// server (npm @durable-streams/server, with files) and, if it is installed, with the Rust crate
// durable-streams-server. With `--against`, compares Durable Streams, if the other build has them,
// and finished streams with another build.

import { execFileSync } from "node:child_process";
import { existsSync, writeFileSync } from "node:fs";
import { Agent, type ClientRequest, type IncomingMessage, request } from "node:http";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { STREAM_CONTENT, STREAM_END, STREAM_START } from "../src/broker/model.ts";
import { findProgram, startProgram } from "./peers/program.ts";
import { Backend } from "./support/backend.ts";
import type { Bench, Benchmark, Row, Sample } from "./support/benchmark.ts";
import { type Redis, startRedis } from "./support/clusters.ts";
import { inParallel, processorMs, waitUntilIdle } from "./support/cost.ts";
import {
  CONNECTION_NUMBER,
  chunkBody,
  connectionNumber,
  eventBody,
  freshMessageNumber,
  httpRequest,
  type StreamName,
  sendBody,
} from "./support/frames.ts";
import { compileLoad, LoadClient, type ProcessSample } from "./support/load.ts";
import { privateBytes } from "./support/proc.ts";
import { takeTurns } from "./support/rounds.ts";
import { type Server, startBroker, startScript } from "./support/servers.ts";
import { row } from "./support/stats.ts";

const CONNECTIONS = 64;
const PRODUCER = "assistant";
const PEER = fileURLToPath(new URL("./support/durable-streams-server.ts", import.meta.url));
/** Script that installs the packages of the reference server if they are missing. */
const INSTALL = fileURLToPath(new URL("../.ci/packages", import.meta.url));
const JSON_TYPE = { "content-type": "application/json" };
const WORDS = "a few words ";
/** A record like those in an AI reply. */
const RECORD = JSON.stringify({ type: "text-delta", delta: WORDS });
const CHUNKS = 2000;
const REST_MS = 1500;
/** Time in which V8 returns the memory of a load to the system. */
const LONG_REST_MS = 15_000;
const RETRY_MS = 5;
/** Settings with limits that a run of a few seconds does not reach. */
const LARGE_STREAMS = {
  JINDOU_STREAMS_MAX_STREAM_BYTES: "16777216",
  JINDOU_STREAMS_MAX_ACTIVE_BYTES: "1073741824",
  JINDOU_CLIENT_MAX_BUFFERED_BYTES: "67108864",
  JINDOU_CLIENT_MAX_BUFFERED_BYTES_PER_USER: "67108864",
  JINDOU_API_MAX_FOLLOWERS: "20000",
  JINDOU_LOGS_MAX_BYTES: "268435456",
  JINDOU_LOGS_MAX_RECORDS: "10000000",
};

/** Folder of a build that implements Durable Streams. */
const DURABLE_STREAMS = "src/api/durable-streams";

export const logs: Benchmark = {
  name: "logs",
  question: "a chunk compared with a stored message, Durable Streams with the reference server",
  isPinned: true,

  async run(bench) {
    const load = new LoadClient(bench.workbench, await compileLoad());
    const [baseline] = bench.subjects;
    const isBuild = baseline.kind === "broker";
    const hasLogs = !isBuild || existsSync(join(baseline.directory, DURABLE_STREAMS));
    return [
      ...(await chunkRows(bench, load, undefined)),
      ...(await chunkRows(bench, load, await startRedis(bench))),
      ...(hasLogs ? await protocolRows(bench, load) : []),
      ...(isBuild ? await finishedStreamRows(bench) : await finishedLogRows(bench)),
    ];
  },
};

// --- A chunk compared with a stored message ------------------------------------------------------

const STREAM: StreamName = {
  channel: { id: `viewer${CONNECTION_NUMBER}`, type: 1 },
  ...{ fromUid: PRODUCER, clientMsgNo: "stream" },
};

/**
 * Returns the processor time of a chunk and of a message in the node, and in Redis if it is used.
 */
async function chunkRows(
  { workbench, plan, subjects }: Bench,
  load: LoadClient,
  redis: Redis | undefined,
): Promise<readonly Row[]> {
  const [, build] = subjects;
  if (build.kind !== "broker") throw new Error("the bench of logs needs a build to measure");
  const link = redis && { url: redis.url, prefix: "logs" };
  const server = await startBroker(workbench, build, link, LARGE_STREAMS);
  const backend = new Backend(server.apiPort);
  for (let at = 0; at < CONNECTIONS; at++) {
    const channel = { id: `viewer${connectionNumber(at)}`, type: 1 } as const;
    const start = { type: STREAM_START, data: "" };
    await backend.post("/event", eventBody({ ...STREAM, channel }, start));
  }
  backend.close();
  const message = () =>
    sendBody({ channel: STREAM.channel, fromUid: PRODUCER, clientMsgNo: freshMessageNumber() });
  const run = (path: string, body: string) =>
    load.request({
      ...{ kind: "http", port: server.apiPort, connections: CONNECTIONS, depth: 1, plan },
      pid: [server.pid, ...(redis?.processes ?? []).map(({ pid }) => pid)],
      message: httpRequest(path, body),
    });
  const samples: [ProcessSample[], ProcessSample[]] = [[], []];
  for (let round = 0; round < plan.rounds; round++) {
    samples[0].push(await run("/message/send", message()));
    samples[1].push(await run("/event", chunkBody(STREAM)));
  }
  await server.stop();
  const names = [{ name: "POST /message/send" }, { name: "POST /event" }] as const;
  const cpuOf = (at: number) => (sample: ProcessSample) => ({
    value: Math.max(sample.cpusUs[at] ?? 0, MIN_CPU_US),
  });
  const store = redis === undefined ? "embedded" : "Redis";
  const target = { kind: "slowdown", atMost: redis === undefined ? 1 : 1.15 } as const;
  return ["the node", ...(redis === undefined ? [] : ["Redis"])].map((process, at) => {
    const title = `${store}: processor time of ${process} for a chunk, beside a stored message`;
    const [messages, chunks] = samples.map((list) => list.map(cpuOf(at)));
    return row({ title, unit: "µs", target }, names, [messages ?? [], chunks ?? []]);
  });
}

/**
 * Lower bound for a processor time. In a quick run the measured time may be 0, because the kernel
 * counts it in steps of 10 ms.
 */
const MIN_CPU_US = 0.01;

// --- Appends and readers -------------------------------------------------------------------------

/** A server of Durable Streams. */
interface LogServer {
  readonly name: string;
  start(): Promise<Server>;
}

function brokerOf(
  workbench: Bench["workbench"],
  subject: Bench["subjects"][number],
  settings: Readonly<Record<string, string>> = {},
): LogServer {
  return {
    name: subject.name,
    start() {
      if (subject.kind !== "broker") throw new Error("the bench of logs needs a build to measure");
      return startBroker(workbench, subject, undefined, settings);
    },
  };
}

/** Returns the servers that are compared with our build, and our build. */
function logServers({ workbench, subjects: [baseline, build] }: Bench): {
  readonly others: readonly LogServer[];
  readonly ours: LogServer;
} {
  const ours = brokerOf(workbench, build, LARGE_STREAMS);
  if (baseline.kind === "broker")
    return { others: [brokerOf(workbench, baseline, LARGE_STREAMS)], ours };
  const reference: LogServer = {
    name: "@durable-streams/server",
    start() {
      execFileSync(INSTALL, ["durable-streams"], { stdio: ["ignore", "inherit", "inherit"] });
      return startScript(workbench, "The reference server", [PEER, workbench.folder("peer")]);
    },
  };
  const crate: LogServer = {
    name: `${CRATE} (Rust)`,
    start: () =>
      startProgram(workbench, CRATE, {
        mark: "server listening",
        configure(folder, port) {
          const path = join(folder, "server.toml");
          writeFileSync(path, crateConfiguration(folder, port));
          return ["--config", path];
        },
      }),
  };
  return { others: findProgram(CRATE) === undefined ? [reference] : [reference, crate], ours };
}

/** Name of the Rust server's crate and program. Installed with `cargo install`. */
const CRATE = "durable-streams-server";

/**
 * Returns the configuration of the Rust server. Like the broker by default, it writes each append
 * to a file before it replies and does not wait for the disk.
 */
function crateConfiguration(folder: string, port: number): string {
  return [
    "[server]",
    `bind_address = "127.0.0.1:${port}"`,
    "[storage]",
    'mode = "file-fast"',
    `data_dir = ${JSON.stringify(join(folder, "data"))}`,
    "[limits]",
    `max_memory_bytes = ${2 ** 32}`,
    `max_stream_bytes = ${2 ** 28}`,
    "[transport.connection]",
    "sse_reconnect_interval_secs = 0",
    "",
  ].join("\n");
}

/** Starts and measures all servers in turn. Returns the samples in the order of the servers. */
function measureInTurn<T>(
  bench: Bench,
  servers: readonly LogServer[],
  measure: (server: Server) => Promise<T>,
): Promise<readonly (readonly T[])[]> {
  return takeTurns(bench, servers, async ({ start }) => {
    const server = await start();
    const sample = await measure(server);
    await server.stop();
    return sample;
  });
}

async function protocolRows(bench: Bench, load: LoadClient): Promise<readonly Row[]> {
  const { plan } = bench;
  const readers = plan.isQuick ? 20 : 1000;
  const records = plan.isQuick ? 20 : CHUNKS;
  const idle = plan.sessions;
  const { others, ours } = logServers(bench);
  const costs = await measureInTurn(bench, [...others, ours], async (server) => ({
    idleBytes: await idleBytes(server, idle), // first, because the later steps leave unused memory
    appends: await appendRate(load, server, plan),
    delivery: await deliveryCost(server, readers, plan.isQuick ? 3 : 100),
    join: await joinCost(server, readers, records),
  }));
  type Costs = (typeof costs)[number][number];
  const rowsOf = (title: string, unit: string, sampleOf: (costs: Costs) => Sample) =>
    others.map((other, at) =>
      row(
        { title, unit },
        [other, ours],
        [(costs[at] ?? []).map(sampleOf), (costs.at(-1) ?? []).map(sampleOf)],
      ),
    );
  return [
    ...rowsOf("durable appends for each processor second", "appends", ({ appends }) => appends),
    ...rowsOf(
      `processor time of a record for each of ${readers} live readers`,
      "µs",
      ({ delivery }) => delivery,
    ),
    ...rowsOf(
      `processor time of each of ${readers} late readers of ${records} records`,
      "µs",
      ({ join }) => join.cpu,
    ),
    ...rowsOf(`peak memory of each of ${readers} late readers`, "bytes", ({ join }) => join.bytes),
    ...rowsOf(`memory of each of ${idle} idle readers`, "bytes", ({ idleBytes }) => idleBytes),
  ];
}

async function appendRate(load: LoadClient, server: Server, plan: Bench["plan"]): Promise<Sample> {
  const names = Array.from({ length: CONNECTIONS }, (_, at) => `a${connectionNumber(at)}`);
  for (const name of names) await call(server, "PUT", name);
  const { cpuUs = MIN_CPU_US } = await load.request({
    ...{ kind: "http", port: server.apiPort, connections: CONNECTIONS, depth: 1, plan },
    pid: server.pid,
    message: httpRequest(`/v1/stream/a${CONNECTION_NUMBER}`, RECORD),
  });
  return { value: 1e6 / Math.max(cpuUs, MIN_CPU_US) };
}

/** Returns the processor time for delivering one record to one live reader. */
async function deliveryCost(server: Server, count: number, records: number): Promise<Sample> {
  await call(server, "PUT", "live");
  const readers = await openReaders(server, "live", count);
  await waitUntilIdle(server);
  const before = processorMs(server.pid);
  for (let at = 1; at <= records; at++) {
    await call(server, "POST", "live", RECORD);
    await readers.until(at);
  }
  const cpuMs = processorMs(server.pid) - before;
  readers.close();
  return { value: (cpuMs * 1000) / (count * records) };
}

/** Returns the server's processor time and memory for a reader that connects after all records. */
async function joinCost(server: Server, count: number, records: number) {
  await call(server, "PUT", "late");
  for (let at = 0; at < records; at++) await call(server, "POST", "late", RECORD);
  await waitUntilIdle(server);
  const [bytes, cpuMs] = [privateBytes(server.pid), processorMs(server.pid)];
  let peak = bytes;
  const timer = setInterval(() => {
    peak = Math.max(peak, privateBytes(server.pid));
  }, 5);
  const readers = await openReaders(server, "late", count);
  await readers.until(records);
  clearInterval(timer);
  readers.close();
  return {
    cpu: { value: ((processorMs(server.pid) - cpuMs) * 1000) / count },
    bytes: { value: Math.max((peak - bytes) / count, 1) },
  };
}

async function idleBytes(server: Server, count: number): Promise<Sample> {
  await call(server, "PUT", "idle");
  const before = await restingBytes(server);
  const readers = await openReaders(server, "idle", count);
  const after = await restingBytes(server);
  readers.close();
  return { value: Math.max((after - before) / count, 1) };
}

// --- Finished logs -------------------------------------------------------------------------------

/** Compares two builds after many streams that were written over POST /event. */
async function finishedStreamRows(bench: Bench): Promise<readonly Row[]> {
  const count = bench.plan.sessions * 10;
  const builds = bench.subjects.map((subject) => brokerOf(bench.workbench, subject));
  const samples = await measureInTurn(bench, builds, async (server): Promise<Sample> => {
    const backend = new Backend(server.apiPort);
    const names = Array.from({ length: count }, (_, at) => `finished${at}`);
    await inParallel(names, CONNECTIONS, async (clientMsgNo) => {
      for (const type of [STREAM_START, STREAM_CONTENT, STREAM_CONTENT, STREAM_CONTENT, STREAM_END])
        await backend.post(
          "/event",
          eventBody(
            { channel: { id: `reader-${clientMsgNo}`, type: 1 }, fromUid: PRODUCER, clientMsgNo },
            { type, data: type === STREAM_CONTENT ? WORDS : "" },
          ),
        );
    });
    backend.close();
    return { value: (await restingBytes(server, LONG_REST_MS)) / 1e6 };
  });
  const title = `private memory of a node after ${count} finished streams of 3 chunks`;
  const target = { kind: "slowdown", atMost: 1.3 } as const;
  const [base = [], build = []] = samples;
  return [row({ title, unit: "MB", target }, bench.subjects, [base, build])];
}

/** Compares the memory of finished logs with that of the servers of other vendors. */
async function finishedLogRows(bench: Bench): Promise<readonly Row[]> {
  const count = bench.plan.sessions; // the reference server handles fewer than 1,000 calls a second
  const { others, ours } = logServers(bench);
  const samples = await measureInTurn(bench, [...others, ours], async (server): Promise<Sample> => {
    const before = await restingBytes(server);
    const names = Array.from({ length: count }, (_, at) => `finished${at}`);
    await inParallel(names, CONNECTIONS, async (name) => {
      await call(server, "PUT", name);
      for (let at = 0; at < 2; at++) await call(server, "POST", name, RECORD);
      await call(server, "POST", name, RECORD, { "stream-closed": "true" });
    });
    return { value: Math.max(((await restingBytes(server)) - before) / count, 1) };
  });
  const title = `memory of each of ${count} finished logs of 3 records`;
  return others.map((other, at) =>
    row({ title, unit: "bytes" }, [other, ours], [samples[at] ?? [], samples.at(-1) ?? []]),
  );
}

// --- Calls ---------------------------------------------------------------------------------------

const agent = new Agent({ keepAlive: true, maxSockets: CONNECTIONS });

async function call(
  server: Server,
  method: string,
  name: string,
  body = "",
  headers: Readonly<Record<string, string>> = {},
): Promise<void> {
  for (;;) {
    const status = await statusOf(server, { method, name, body, headers });
    if (status < 300) return;
    if (status !== 404) throw new Error(`${method} ${name} was answered ${status}`);
    await pause(RETRY_MS); // the reference server may not yet find a stream that it has just created
  }
}

function statusOf(
  { apiPort: port }: Server,
  {
    method,
    name,
    body,
    headers,
  }: {
    readonly method: string;
    readonly name: string;
    readonly body: string;
    readonly headers: Readonly<Record<string, string>>;
  },
): Promise<number> {
  return new Promise((resolve, reject) => {
    const options = { host: "127.0.0.1", port, path: `/v1/stream/${name}`, method, agent };
    const outgoing = request({ ...options, headers: { ...JSON_TYPE, ...headers } }, (reply) => {
      reply.resume().on("end", () => resolve(reply.statusCode ?? 0));
    });
    outgoing.on("error", reject).end(body);
  });
}

interface Readers {
  /** Resolves when every reader has received this number of records. */
  until(records: number): Promise<void>;
  close(): void;
}

/** Opens live readers (server-sent events). Resolves when each reader has received data. */
async function openReaders(server: Server, name: string, count: number): Promise<Readers> {
  const received: number[] = Array(count).fill(0);
  const requests: ClientRequest[] = [];
  const path = `/v1/stream/${name}?offset=-1&live=sse`;
  const open = (at: number) =>
    new Promise<void>((resolve, reject) => {
      const options = { host: "127.0.0.1", port: server.apiPort, path, agent: false };
      const outgoing = request(options, (reply: IncomingMessage) => {
        reply.setEncoding("latin1").on("data", (text: string) => {
          received[at] = (received[at] ?? 0) + text.split("text-delta").length - 1;
          resolve();
        });
        reply.on("error", () => {}); // `close` ends the replies
      });
      requests.push(outgoing.on("error", reject));
      outgoing.end();
    });
  const indexes = Array.from({ length: count }, (_, at) => at);
  await inParallel(indexes, CONNECTIONS, open);
  return {
    async until(records) {
      while (received.some((number) => number < records)) await pause(1);
    },
    close() {
      for (const outgoing of requests) outgoing.destroy();
    },
  };
}

/** Returns the private memory of the server when it is idle. */
async function restingBytes(server: Server, restMs = REST_MS): Promise<number> {
  await waitUntilIdle(server);
  await pause(restMs);
  return privateBytes(server.pid);
}
