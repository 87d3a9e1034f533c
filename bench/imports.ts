// How much processor time does a node need to import a message of 200 bytes? The lines arrive as
// `jindou import` sends them: pages of 1,000 messages of one channel, in four concurrent calls. The
// raw server parses the same lines and stores nothing. Every measurement starts a new node, because
// an import can be opened only in an empty store.

import type { Bench, Benchmark, Row, Sample, Subject } from "./support/benchmark.ts";
import { type Redis, startRedis } from "./support/clusters.ts";
import { threadSeconds } from "./support/proc.ts";
import { alternate } from "./support/rounds.ts";
import { type Server, startBroker, startRaw } from "./support/servers.ts";
import { row } from "./support/stats.ts";

const MESSAGES = 100_000;
const QUICK_MESSAGES = 2000;
const PAGE = 1000;
const CHANNELS = 20;
const CALLS_AT_ONCE = 4;
const CONTENT = "x".repeat(172);
const SINCE_S = 1_790_000_000;
const ANSWER = '{"stored":1000,"unchanged":0,"refused":[]}';
/**
 * Promised processor time per message in microseconds: 20,000 messages per second on one core, or
 * 10,000 with Redis.
 */
const PROMISED_US = { embedded: 50, Redis: 100 } as const;
const STORES = ["embedded", "Redis"] as const;

export const imports: Benchmark = {
  name: "imports",
  question: "one imported message of 200 bytes, in pages of 1,000 lines",
  isPinned: true,

  async run(bench) {
    const rows: Row[] = [];
    for (const store of STORES) {
      const redis = store === "Redis" ? await startRedis(bench) : undefined;
      const [baseline, ours] = await alternate(bench, (subject) => measure(bench, subject, redis));
      const target = { kind: "value", atMost: PROMISED_US[store] } as const;
      const title = `${store}: processor time of the node`;
      rows.push(row({ title, unit: "µs/message", target }, bench.subjects, [baseline, ours]));
    }
    return rows;
  },
};

let starts = 0;

async function measure(
  { workbench, plan }: Bench,
  subject: Subject,
  redis: Redis | undefined,
): Promise<Sample> {
  starts += 1;
  const isRaw = subject.kind === "raw";
  const server = isRaw
    ? await startRaw(workbench, "http", new TextEncoder().encode(ANSWER))
    : await startBroker(
        workbench,
        subject,
        redis && { url: redis.url, prefix: `imports${starts}` },
      );
  if (!isRaw) await post(server, "/admin/import/open", "{}");
  const count = plan.isQuick ? QUICK_MESSAGES : MESSAGES;
  const pages = pagesOf(count);
  const before = threadSeconds(server.pid);
  const work = async () => {
    for (const lines of pages)
      if (isRaw) await post(server, "/admin/import", `[${lines.join(",")}]`);
      else await post(server, "/admin/import", lines.join("\n"), "application/x-ndjson");
  };
  await Promise.all(Array.from({ length: CALLS_AT_ONCE }, work));
  const value = ((threadSeconds(server.pid) - before) * 1e6) / count;
  await server.stop();
  return { value };
}

/** Yields the lines of each call. All workers take their next page from this generator. */
function* pagesOf(count: number): Generator<readonly string[]> {
  for (let page = 0; page < count / PAGE; page++)
    yield Array.from({ length: PAGE }, (_, at) => {
      const seq = Math.floor(page / CHANNELS) * PAGE + at + 1;
      const content = Buffer.from(`{"type":1,"content":"${CONTENT}"}`).toString("base64");
      return JSON.stringify({
        ...{ kind: "message", channel_id: `g${page % CHANNELS}`, channel_type: 2 },
        ...{ from_uid: `u${at % 50}`, message_seq: seq, client_msg_no: `n-${page}-${at}` },
        ...{ message_id: String(2_125_738_000_000_000_000n + BigInt(page * PAGE + at)) },
        ...{ timestamp: SINCE_S + seq, payload: content },
      });
    });
}

async function post(
  { apiPort }: Server,
  path: string,
  body: string,
  type = "application/json",
): Promise<void> {
  const response = await fetch(`http://127.0.0.1:${apiPort}${path}`, {
    ...{ method: "POST", body, headers: { "content-type": type } },
  });
  const text = await response.text();
  const isComplete = path.endsWith("/open") || text.includes('"refused":[]');
  if (!response.ok || !isComplete)
    throw new Error(`${path} was answered ${response.status}: ${text.slice(0, 300)}`);
}
