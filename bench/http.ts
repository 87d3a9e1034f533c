// How many messages does a backend get stored and acknowledged per second over `/message/send`, 64
// connections? The bare server parses the same JSON and gives an answer of the same size. Two
// clients: autocannon, which everybody can repeat, and the load client, because autocannon is
// itself the limit at these rates.

import autocannon from "autocannon";
import type {
  Bench,
  Benchmark,
  Plan,
  Question,
  Row,
  Sample,
  Subject,
} from "./support/benchmark.ts";
import { freshMessageNumber, httpRequest, sampleSendAnswer, sendBody } from "./support/frames.ts";
import { compileLoad, type Latency, LoadClient } from "./support/load.ts";
import { cpuSeconds } from "./support/proc.ts";
import { compare, startBoth } from "./support/rounds.ts";
import { type Server, startBroker, startRaw } from "./support/servers.ts";

const CONNECTIONS = 64;
const PATH = "/message/send";
/** autocannon puts a fresh id of about 33 characters in its place. */
const AUTOCANNON_ID = "[<id>]";
const WARMUP_S = 1;
/** Calls of a quick run, which needs no whole second. */
const QUICK_CALLS = 1000;

export const http: Benchmark = {
  name: "http",
  question: "POST /message/send, durable, 200-byte content, 64 connections",
  isPinned: true,

  async run(bench) {
    const servers = await startBoth(bench, (subject) => start(bench, subject));
    const load = new LoadClient(bench.workbench, await compileLoad());
    for (const server of servers)
      await shoot({ ...bench.plan, seconds: WARMUP_S }, { server, text: body(undefined) });
    const rows: Row[] = [];
    for (const isNumbered of [true, false]) {
      const kind = isNumbered ? "client_msg_no for each" : "no client_msg_no";
      rows.push(
        await compare(bench, servers, {
          ...question(`autocannon, ${kind}`),
          measure: (server) =>
            shoot(bench.plan, {
              server,
              text: body(isNumbered ? AUTOCANNON_ID : undefined),
            }),
        }),
        await compare(bench, servers, {
          ...question(`load client, ${kind}`),
          measure: (server) => run(bench.plan, { load, server, isNumbered }),
        }),
      );
    }
    for (const server of servers) await server.stop();
    return rows;
  },
};

function question(title: string): Question {
  return { title, unit: "requests/s", target: { kind: "ratio", atLeast: 0.4 } };
}

/** A message from one user to another; both may be unknown to the broker. */
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

/** autocannon counts in whole seconds, and is warm after one against each server. */
async function shoot(
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
  const good = result["2xx"];
  const failed = result.non2xx + result.errors + result.timeouts;
  if (failed > 0 || good === 0)
    throw new Error(`autocannon: ${failed} of ${good + failed} calls failed`);
  const { p50, p99, p99_9, max } = result.latency;
  return {
    value: good / result.duration,
    latency: inUs({ p50, p99, p999: p99_9, max }),
    cpuUs: (cpu * 1e6) / good,
  };
}

/** Of milliseconds. */
function inUs({ p50, p99, p999, max }: Latency): Latency {
  return {
    p50: p50 * 1000,
    p99: p99 * 1000,
    p999: p999 * 1000,
    max: max * 1000,
  };
}
