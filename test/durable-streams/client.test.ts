// The published client of Durable Streams and the transports built on it, unchanged, against a real
// node. JINDOU_TEST_WORKER_KILLS sets how many workers of each stream are killed.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import t, { type Test } from "tap";
import {
  type ChildBroker,
  type Settings,
  spawnBroker,
  startBroker,
  tempFolder,
} from "../support/broker.ts";
import { tieToParent } from "../support/child.ts";
import { Random } from "../support/random.ts";
import { freePort, startRedis } from "../support/redis.ts";
import { volume } from "../support/volume.ts";
import { importPackage, writeModule } from "./packages.ts";
import { startRoundRobin } from "./round-robin.ts";

const WORKER_KILLS = volume(100, "JINDOU_TEST_WORKER_KILLS", 3);
const MAX_LIFE_MS = 300;
const SEED = Date.now() % 1_000_000;

/**
 * Program of a worker: it claims the next epoch, reads to the tail, and appends numbers after the
 * last one. It prints how many numbers it has found, and then how many are in the stream after each
 * acknowledged append. It ends on any error, and the next worker continues.
 */
const WORKER = `import { DurableStream, IdempotentProducer, stream } from "@durable-streams/client";
const url = process.argv[2];
const contentType = "application/json";
let epoch = 0;
for (;;) {
  const headers = { "content-type": contentType, "producer-id": "worker",
    "producer-epoch": String(epoch), "producer-seq": "0" };
  const reply = await fetch(url, { method: "POST", headers, body: '[{"claim":true}]' });
  if (reply.status === 200) break;
  if (reply.status !== 204 && reply.status !== 403) throw new Error(String(reply.status));
  epoch = Number(reply.headers.get("producer-epoch")) + 1;
}
const reading = await stream({ url, live: false, json: true });
const numbers = (await reading.json()).flatMap(({ n }) => (n === undefined ? [] : n));
let next = (numbers.at(-1) ?? -1) + 1;
console.log("found " + next);
const fail = (error) => { console.error(error); process.exit(1); };
const producer = new IdempotentProducer(new DurableStream({ url, contentType }), "worker", {
  epoch: epoch + 1, lingerMs: 0, onError: fail });
for (;;) {
  producer.append(JSON.stringify({ n: next++ }));
  await producer.flush();
  console.log("acknowledged " + next);
}
`;
t.setTimeout(300_000 + WORKER_KILLS * 12_000);

/** Output of a worker so far. */
interface WorkerOutput {
  found: number | undefined;
  acknowledged: number;
}

/** A node that can be killed and started again on its port. */
async function restartableNode(t: Test, settings: Settings) {
  const folder = await tempFolder(t);
  const port = await freePort();
  const all = { ...settings, JINDOU_API_LISTEN: `127.0.0.1:${port}` };
  let node: ChildBroker = await spawnBroker(t, all, folder);
  return {
    port,
    async killAndRestart(): Promise<void> {
      await node.kill();
      node = await spawnBroker(t, all, folder);
    },
  };
}

/** Kills workers and nodes, and checks the records that the workers have appended. */
async function keepsRecords(t: Test, settings: readonly Settings[]): Promise<void> {
  t.comment(`seed ${SEED}`);
  const random = new Random(SEED);
  const nodes = await Promise.all(settings.map((one) => restartableNode(t, one)));
  const ports = nodes.map(({ port }) => port);
  const origin = `${await startRoundRobin(t, ports)}/v1/stream`;
  // The workers write to these two streams alternately.
  const urls = [`${origin}/work`, `${origin}/channel/2/lab/work`];
  const worker = await writeModule("worker.mjs", WORKER);
  const headers = { "content-type": "application/json" };
  for (const url of urls) t.equal((await fetch(url, { method: "PUT", headers })).status, 201);
  /** Number of acknowledged records of each stream. */
  const acknowledged = new Map(urls.map((url) => [url, 0]));
  for (let killed = 0; killed < 2 * WORKER_KILLS; killed++) {
    const url = urls[killed % urls.length] ?? "";
    const child = spawn(...tieToParent(process.execPath, [worker, url]), { stdio: "pipe" });
    let errors = "";
    child.stderr.setEncoding("utf8").on("data", (text: string) => {
      errors += text;
    });
    const output: WorkerOutput = { found: undefined, acknowledged: 0 };
    const ended = once(child, "close");
    await new Promise<void>((resolve) => {
      void ended.then(() => resolve());
      createInterface(child.stdout).on("line", (line) => {
        const [name, count] = line.split(" ");
        if (name === "found") output.found = Number(count);
        else output.acknowledged = Number(count);
        if (name === "acknowledged") resolve();
      });
    });
    t.equal(child.exitCode, null, `the worker appends ${errors}`);
    const earlier = acknowledged.get(url) ?? 0;
    t.ok((output.found ?? -1) >= earlier, `found ${output.found} records, ${earlier} acknowledged`);
    await new Promise((resolve) => setTimeout(resolve, random.below(MAX_LIFE_MS)));
    if (killed % Math.ceil((2 * WORKER_KILLS) / 3) === 0)
      await nodes[killed % nodes.length]?.killAndRestart();
    child.kill("SIGKILL");
    await ended;
    acknowledged.set(url, output.acknowledged);
  }
  for (const url of urls) {
    const records = (await (await fetch(url)).json()) as readonly { readonly n?: number }[];
    const numbers = records.flatMap(({ n }) => n ?? []);
    const count = acknowledged.get(url) ?? 0;
    t.ok(count >= WORKER_KILLS, `${count} records were acknowledged`);
    t.ok(numbers.length >= count, `${numbers.length} records were appended`);
    t.same(
      numbers,
      numbers.map((_, at) => at),
    );
    const stale = { "producer-id": "worker", "producer-epoch": "0", "producer-seq": "1" };
    const late = { method: "POST", headers: { ...headers, ...stale }, body: "[{}]" };
    t.equal((await fetch(url, late)).status, 403, "a worker of an earlier epoch is refused");
  }
}

t.test(
  `each record that ${WORKER_KILLS} killed workers appended is in the stream once, in the order of the appends`,
  async (t) => keepsRecords(t, [{}]),
);

t.test(
  "with two nodes on one Redis, each record that killed workers appended is in the stream once, in the order of the appends",
  async (t) => {
    const { url } = await startRedis(t);
    const settings = { JINDOU_REDIS_URL: url };
    await keepsRecords(t, [settings, settings]);
  },
);

t.test("the AI SDK's transport streams an answer through a signed URL", async (t) => {
  const { call, apiPort } = await startBroker(t);
  const { toDurableStreamResponse, createDurableChatTransport } = await importPackage(
    "@durable-streams/aisdk-transport/dist/index.js",
  );
  const members = { channel_id: "lab", channel_type: 2, subscribers: ["bot"] };
  await call("/channel", members);
  const chunks = [
    { type: "start" },
    { type: "text-start", id: "t" },
    { type: "text-delta", id: "t", delta: "Hel" },
    { type: "text-delta", id: "t", delta: "lo" },
    { type: "text-end", id: "t" },
    { type: "finish" },
  ];
  async function* source() {
    yield* chunks;
  }
  for (const path of ["/v1/stream/answers/1", "/v1/stream/channel/2/lab/answer"]) {
    const sign = async (access: string) =>
      (await call("/v1/sign", { path, access, expires_in: 60, from_uid: "bot" })).body.url;
    const [writeUrl, readUrl] = [await sign("write"), await sign("read")];
    const fetchClient = async () =>
      toDurableStreamResponse({ source: source(), stream: { writeUrl, readUrl }, mode: "await" });
    const transport = createDurableChatTransport({ api: "http://app.example/chat", fetchClient });
    const answer = await transport.sendMessages({
      ...{ chatId: "c", trigger: "submit-message", messageId: undefined },
      ...{ messages: [], abortSignal: undefined },
    });
    const received: unknown[] = [];
    for await (const chunk of answer) received.push(chunk);
    t.same(received.slice(0, chunks.length), chunks, path);
    t.match(readUrl, `http://127.0.0.1:${apiPort}${path}?sig=`);
  }
  const { body } = await call("/stream/2/lab/answer");
  t.match(body, { state: "closed", text: "Hello" });
});

t.test("TanStack AI's transport reads a chat session", async (t) => {
  const { call } = await startBroker(t);
  const { toDurableChatSessionResponse, materializeSnapshotFromDurableStream } =
    await importPackage("@durable-streams/tanstack-ai-transport/dist/index.js");
  const path = "/v1/stream/chats/1";
  const sign = async (access: string) =>
    (await call("/v1/sign", { path, access, expires_in: 60 })).body.url;
  async function* responseStream() {
    const message = { messageId: "m", model: "fake", timestamp: 1 };
    yield { type: "TEXT_MESSAGE_START", role: "assistant", ...message };
    yield { type: "TEXT_MESSAGE_CONTENT", delta: "Hello", content: "Hello", ...message };
    yield { type: "TEXT_MESSAGE_END", ...message };
  }
  const response = await toDurableChatSessionResponse({
    stream: { writeUrl: await sign("write"), createIfMissing: true },
    newMessages: [{ id: "u", role: "user", parts: [{ type: "text", content: "Hi" }] }],
    ...{ responseStream: responseStream(), mode: "await" },
  });
  t.ok(response.status < 300, `answered ${response.status}`);
  const { messages } = await materializeSnapshotFromDurableStream({ readUrl: await sign("read") });
  t.same(
    messages.map(({ role }: { readonly role: string }) => role),
    ["user", "assistant"],
  );
  t.match(JSON.stringify(messages), /"Hi".*"Hello"/);
});
