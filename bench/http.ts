// How many messages per second can a backend store over `/message/send` with 64 connections? The
// raw server parses the same JSON and responds with a body of the same size. Two clients are used:
// autocannon, so that others can repeat the measurement, and the load client, because autocannon
// cannot send fast enough to find the maximum.

import autocannon from "autocannon";
import type { Bench, Benchmark, Plan, Question, Sample, Subject } from "./support/benchmark.ts";
import { freshMessageNumber, httpRequest, sampleSendAnswer, sendBody } from "./support/frames.ts";
import { compileLoad, type Latency, LoadClient } from "./support/load.ts";
import { cpuSeconds } from "./support/proc.ts";
import { compare } from "./support/rounds.ts";
import { type Server, startBroker, startRaw } from "./support/servers.ts";

const CONNECTIONS = 64;
const PATH = "/message/send";
/** Placeholder that autocannon replaces with a new id of about 33 characters. */
const AUTOCANNON_ID = "[<id>]";
/** Number of calls in a quick run. autocannon can limit the time only to whole seconds. */
const QUICK_CALLS = 1000;

export const http: Benchmark = {
  name: "http",
  question: "POST /message/send, durable, 200-byte content, 64 connections",
  isPinned: true,

  async run(bench) {
    const load = new LoadClient(bench.workbench, await compileLoad());
    return compare(bench, {
      start: (subject) => start(bench, subject),
      stop: (server) => server.stop(),
      questions: [true, false].flatMap((isNumbered) => {
        const kind = isNumbered ? "client_msg_no for each" : "no client_msg_no";
        const text = body(isNumbered ? AUTOCANNON_ID : undefined);
        return [
          {
            ...question(`load client, ${kind}`),
            measure: (server) => run(bench.plan, { load, server, isNumbered }),
          },
          {
            ...question(`autocannon, ${kind}`),
            measure: (server) => runAutocannon(bench.plan, { server, text }),
          },
        ];
      }),
    });
  },
};

function question(title: string): Question {
  return { title, unit: "requests/s", target: { kind: "ratio", atLeast: 0.4 } };
}

/** Returns the body of a message from one user to another. The users need not be registered. */
function body(clientMsgNo: string | undefined): string {
  return sendBody({
    channel: { id: "bob", type: 1 },
    fromUid: "alice",
    clientMsgNo,
  });
}

function start({ workbench }: Bench, subject: Subject): Promise<Server> {
  if (subject.kind === "broker") return startBroker(workbench, subject);
  return startRaw(workbench, "http", Buffer.from(sampleSendAnswer(freshMessageNumber())));
}

function run(
  plan: Plan,
  { load, server, isNumbered }: { load: LoadClient; server: Server; isNumbered: boolean },
): Promise<Sample> {
  const text = body(isNumbered ? freshMessageNumber() : undefined);
  return load.request({
    kind: "http",
    port: server.apiPort,
    pid: server.pid,
    connections: CONNECTIONS,
    depth: 1,
    message: httpRequest(PATH, text),
    plan,
  });
}

/** Measures one server with autocannon, which can run only for whole seconds. */
async function runAutocannon(
  { isQuick, seconds }: Pick<Plan, "isQuick" | "seconds">,
  { server, text }: { readonly server: Server; readonly text: string },
): Promise<Sample> {
  const cpuBefore = cpuSeconds(server.pid);
  const result = await autocannon({
    url: `http://127.0.0.1:${server.apiPort}${PATH}`,
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: text,
    idReplacement: text.includes(AUTOCANNON_ID),
    connections: CONNECTIONS,
    ...(isQuick ? { amount: QUICK_CALLS } : { duration: Math.max(1, Math.round(seconds)) }),
  });
  const cpu = cpuSeconds(server.pid) - cpuBefore;
  const okCount = result["2xx"];
  const failed = result.non2xx + result.errors + result.timeouts;
  if (failed > 0 || okCount === 0)
    throw new Error(`autocannon: ${failed} of ${okCount + failed} calls failed`);
  const { p50, p99, p99_9, max } = result.latency;
  return {
    value: okCount / result.duration,
    latency: toMicroseconds({ p50, p99, p999: p99_9, max }),
    cpuUs: (cpu * 1e6) / okCount,
  };
}

/** Converts latencies from milliseconds to microseconds. */
function toMicroseconds({ p50, p99, p999, max }: Latency): Latency {
  return {
    p50: p50 * 1000,
    p99: p99 * 1000,
    p999: p999 * 1000,
    max: max * 1000,
  };
}
