// The public conformance suite of Durable Streams against a node on the embedded store, and against
// two nodes on one Redis that serve the requests in turn. Its tests have tolerances of half a
// second, so a test that fails is repeated.

import { spawn } from "node:child_process";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import t, { type Test } from "tap";
import { type Broker, spawnBroker, tempFolder } from "../support/broker.ts";
import { tieToParent } from "../support/child.ts";
import { startRedis } from "../support/redis.ts";
import { outputOf } from "../support/run.ts";
import { FOLDER, writeModule } from "./packages.ts";
import { startRoundRobin } from "./round-robin.ts";

const TESTS = 332;
const LONG_POLL_MS = 1000;
const RETRIES = 5;
/** Timeout of one test. Some tests compare 100,000 bytes one by one. */
const TEST_MS = 60_000;
const SETTINGS = { JINDOU_STREAMS_LONG_POLL_MS: String(LONG_POLL_MS) };
const SUITE = `import { runConformanceTests } from "@durable-streams/server-conformance-tests";
runConformanceTests({
  baseUrl: process.env.CONFORMANCE_TEST_URL,
  longPollTimeoutMs: ${LONG_POLL_MS},
});
`;

interface Results {
  readonly numPassedTests: number;
  readonly testResults: readonly {
    readonly assertionResults: readonly {
      readonly status: string;
      readonly fullName: string;
      readonly failureMessages?: readonly string[];
    }[];
  }[];
}

/** Runs the suite against the address. */
async function conforms(t: Test, url: string): Promise<void> {
  const results = join(await tempFolder(t), "results.json");
  const limits = [`--retry=${RETRIES}`, `--testTimeout=${TEST_MS}`];
  const options = ["--reporter=json", `--outputFile=${results}`, ...limits];
  const vitest = join(FOLDER, "node_modules/vitest/vitest.mjs");
  const args = [vitest, "run", "--dir", ".", "conformance.test.mjs", ...options];
  const env = { PATH: process.env.PATH, HOME: process.env.HOME, CONFORMANCE_TEST_URL: url };
  const child = spawn(...tieToParent(process.execPath, args), { cwd: FOLDER, env });
  const { output, errors } = await outputOf(child);
  const text = await readFile(results, "utf8").catch(() => "");
  if (text === "") return void t.fail(`the suite did not run: ${output}${errors}`);
  const { numPassedTests, testResults }: Results = JSON.parse(text);
  const failed = testResults
    .flatMap(({ assertionResults }) => assertionResults)
    .filter(({ status }) => status === "failed")
    .map(({ fullName, failureMessages: [why = ""] = [] }) => `${fullName}: ${why.slice(0, 500)}`);
  t.same(failed, [], "no test of the suite fails");
  t.equal(numPassedTests, TESTS, `${TESTS} tests of the suite pass`);
}

/** Checks that the second node reads what POST /event writes through the first. */
async function readsChannels(t: Test, nodes: readonly Broker[]): Promise<void> {
  const [writer, reader] = nodes;
  const path = `http://127.0.0.1:${reader?.apiPort}/v1/stream/channel/2/lab/answer`;
  const base = { client_msg_no: "answer", channel_id: "lab", channel_type: 2 };
  const post = (type: string, data = "") =>
    writer?.call("/event", { ...base, event: { type: `___TextMessage${type}`, data } });
  await post("Start");
  const late = await fetch(path);
  t.match(await late.json(), [{ type: "___TextMessageStart", index: 0 }]);
  const offset = late.headers.get("stream-next-offset");
  const live = fetch(`${path}?offset=${offset}&live=sse`);
  await post("Content", "Hello");
  await post("End");
  const text = await (await live).text();
  t.match(text, /"type":"___TextMessageContent","id":"1","index":1,.*"data":"Hello"/);
  t.match(text, /\{"type":"end","state":"closed"\}\]\n\nevent: control\n.*"streamClosed":true/);
}

/** Checks that requests for one durable stream that are spread over the nodes write one log. */
async function writesChannels(t: Test, nodes: readonly Broker[]): Promise<void> {
  let calls = 0;
  const path = "/v1/stream/channel/2/lab/spread";
  const call = (method: string, body?: string, headers: Record<string, string> = {}) => {
    const node = nodes[calls++ % nodes.length];
    return fetch(`http://127.0.0.1:${node?.apiPort}${path}`, {
      ...{ method, headers: { "content-type": "application/json", ...headers } },
      ...(body !== undefined && { body }),
    });
  };
  const statuses: number[] = [];
  const note = async (reply: Promise<Response>) => statuses.push((await reply).status);
  const producer = (epoch: number, seq: number) => ({
    ...{ "producer-id": "p", "producer-epoch": `${epoch}`, "producer-seq": `${seq}` },
  });
  for (const _ of nodes) await note(call("PUT"));
  for (const _ of nodes)
    for (const seq of [0, 1]) await note(call("POST", `[${seq}]`, producer(1, seq)));
  await note(call("POST", "[9]", producer(0, 0)));
  for (const _ of nodes) await note(call("POST", undefined, { "stream-closed": "true" }));
  t.same(statuses, [201, 200, 200, 200, 204, 204, 403, 204, 204]);
  for (const _ of nodes)
    t.equal(await (await call("GET")).text(), '[0,1,{"type":"end","state":"closed"}]');
}

t.before(() => writeModule("conformance.test.mjs", SUITE));

t.jobs = 2; // most of the suite's tests spend their time waiting

t.test(
  "a node on the embedded store passes the conformance suite of Durable Streams",
  { buffered: true },
  async (t) => {
    const { apiPort } = await spawnBroker(t, SETTINGS);
    await conforms(t, `http://127.0.0.1:${apiPort}`);
  },
);

t.test(
  "two nodes on one Redis that serve requests in turn pass the conformance suite of Durable Streams",
  { buffered: true },
  async (t) => {
    const { url } = await startRedis(t);
    const nodes = await Promise.all(
      [1, 2].map(() => spawnBroker(t, { ...SETTINGS, JINDOU_REDIS_URL: url })),
    );
    await readsChannels(t, nodes);
    await writesChannels(t, nodes);
    await conforms(
      t,
      await startRoundRobin(
        t,
        nodes.map(({ apiPort }) => apiPort),
      ),
    );
  },
);
