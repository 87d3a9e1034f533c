// How many acknowledged messages are lost when Redis is killed under load? Measures one server with
// different AOF settings, and a primary with replicas with different values of redis.minReplicas.
// docs/cluster.md quotes the results. Unlike after a power failure, data that a killed process has
// passed to the kernel is not lost.
//
// Usage: npx tsx bench/redis-loss.ts [--rounds 3] [--seconds 2] [part of a case's name]
// Needs `npm run build`, Linux and redis-server.

import { request } from "node:http";
import { setTimeout as pause } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { startRedis } from "../test/support/redis.ts";
import { startSentinels } from "../test/support/sentinels.ts";
import { Backend } from "./support/backend.ts";
import { Workbench } from "./support/workbench.ts";

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    rounds: { type: "string", default: "3" },
    seconds: { type: "string", default: "2" },
  },
});
const ROUNDS = Number(values.rounds);
const LOAD_MS = Number(values.seconds) * 1000;
const ROOT = fileURLToPath(new URL("..", import.meta.url));
const SENDERS = 64;
/**
 * Number of personal channels. Unlike groups, they need not be created again in a Redis that
 * restarts empty.
 */
const PEERS = 16;
const RETRY_MS = 20;
const CUT_MS = 300;
const PAYLOAD = Buffer.from('{"type":1,"content":"hello"}').toString("base64");

type TeardownHost = Parameters<typeof startRedis>[0];

/** A Redis to kill under load, and the functions that kill and restart it. */
interface RedisSetup {
  readonly settings: Readonly<Record<string, string>>;
  /** Disconnects the replicas before the kill. */
  cut?(): Promise<void>;
  kill(): Promise<void>;
  /** Restarts the server. Absent if Sentinel promotes a replica instead. */
  restart?(): Promise<void>;
}

interface Acknowledged {
  readonly id: number;
  readonly atMs: number;
}

interface Loss {
  readonly acknowledged: number;
  readonly lost: number;
  /** Time from the acknowledgement of the oldest lost message to the kill. */
  readonly oldestMs: number;
  /** Time from the kill to the next acknowledgement. */
  readonly outageMs: number;
}

async function singleServer(t: TeardownHost, args: readonly string[]): Promise<RedisSetup> {
  const redis = await startRedis(t, args);
  return {
    settings: { JINDOU_REDIS_URL: redis.url },
    kill: () => redis.stop("SIGKILL"),
    restart: () => redis.restart(),
  };
}

/**
 * Starts a primary with two replicas. `cut` disconnects the replicas and then waits for `cutMs`. If
 * `cutMs` is 0, the replicas stay connected.
 */
async function replicated(t: TeardownHost, minReplicas: number, cutMs = 0): Promise<RedisSetup> {
  const { url, name, password, primary, replicas } = await startSentinels(t, 2);
  return {
    settings: {
      JINDOU_REDIS_URL: url,
      JINDOU_REDIS_SENTINEL_NAME: name,
      JINDOU_REDIS_SENTINEL_PASSWORD: password,
      JINDOU_REDIS_MIN_REPLICAS: `${minReplicas}`,
    },
    async cut() {
      if (cutMs === 0) return;
      for (const replica of replicas) await replica.client().call("REPLICAOF", "127.0.0.1", "1");
      await pause(cutMs);
    },
    kill: () => primary.stop("SIGKILL"),
  };
}

const AOF = ["--appendonly", "yes", "--appendfsync"];

const CASES: Readonly<Record<string, (t: TeardownHost) => Promise<RedisSetup>>> = {
  "killed, appendonly no": (t) => singleServer(t, []),
  "killed, appendfsync everysec": (t) => singleServer(t, [...AOF, "everysec"]),
  "killed, appendfsync always": (t) => singleServer(t, [...AOF, "always"]),
  "fail-over, minReplicas 0": (t) => replicated(t, 0),
  "fail-over, minReplicas 1": (t) => replicated(t, 1),
  "cut, fail-over, minReplicas 0": (t) => replicated(t, 0, CUT_MS),
  "cut, fail-over, minReplicas 1": (t) => replicated(t, 1, CUT_MS),
};

async function startNode(workbench: Workbench, settings: RedisSetup["settings"]): Promise<number> {
  const node = workbench.spawn({
    name: "The node",
    command: process.execPath,
    args: ["dist/main.js", "start"],
    cwd: ROOT,
    env: {
      JINDOU_API_LISTEN: "127.0.0.1:0",
      JINDOU_CLIENT_LISTEN: "127.0.0.1:0",
      JINDOU_REDIS_TIMEOUT_MS: "1000",
      ...settings,
    },
  });
  return JSON.parse(await node.line('"The node is ready"')).apiPort;
}

/** Load of parallel senders. Each continues with its next message after an error. */
class SendLoad {
  readonly acknowledged: Acknowledged[] = [];
  readonly #backend: Backend;
  readonly #senders: readonly Promise<void>[];
  #isEnding = false;

  constructor(backend: Backend) {
    this.#backend = backend;
    this.#senders = Array.from({ length: SENDERS }, (_, sender) => this.#run(sender));
  }

  async end(): Promise<void> {
    this.#isEnding = true;
    await Promise.all(this.#senders);
  }

  async #run(sender: number): Promise<void> {
    const peer = `peer${sender % PEERS}`;
    for (let no = 0; !this.#isEnding; no++)
      try {
        const answer = await this.#backend.post("/message/send", {
          ...{ channel_id: peer, channel_type: 1, from_uid: "ann" },
          ...{ client_msg_no: `${sender}-${no}`, payload: PAYLOAD },
        });
        const { message_id: id } = JSON.parse(answer);
        this.acknowledged.push({ id, atMs: performance.now() });
      } catch {
        await pause(RETRY_MS); // the failed message is not retried
      }
  }
}

async function measure(workbench: Workbench, setup: RedisSetup): Promise<Loss> {
  const port = await startNode(workbench, setup.settings);
  const backend = new Backend(port);
  const load = new SendLoad(backend);
  await pause(LOAD_MS);
  await setup.cut?.();
  const killedMs = performance.now();
  await setup.kill();
  const deadMs = performance.now();
  await setup.restart?.();
  const isAvailable = () => (load.acknowledged.at(-1)?.atMs ?? 0) > deadMs + 100;
  while (!isAvailable()) await pause(RETRY_MS);
  const firstAfter = load.acknowledged.find(({ atMs }) => atMs > deadMs + 100);
  await load.end();
  const storedIds = new Set<number>();
  for (let peer = 0; peer < PEERS; peer++)
    for (const id of await history(port, `peer${peer}`)) storedIds.add(id);
  const lost = load.acknowledged.filter(({ id }) => !storedIds.has(id));
  backend.close();
  return {
    acknowledged: load.acknowledged.length,
    lost: lost.length,
    oldestMs: Math.max(0, ...lost.map(({ atMs }) => killedMs - atMs)),
    outageMs: (firstAfter?.atMs ?? 0) - killedMs,
  };
}

/** Returns the ids of all messages in the personal channel of `ann` and `peer`. */
async function history(port: number, peer: string): Promise<number[]> {
  const ids: number[] = [];
  for (let from = 1; ; ) {
    const path = `/channel/messages?channel_id=${peer}&channel_type=1&uid=ann`;
    const page = await get(port, `${path}&limit=500&from_seq=${from}`);
    for (const { message_id, message_seq } of page.messages) {
      ids.push(message_id);
      from = message_seq + 1;
    }
    if (page.messages.length === 0) return ids;
  }
}

interface Page {
  readonly messages: readonly {
    readonly message_id: number;
    readonly message_seq: number;
  }[];
}

function get(port: number, path: string): Promise<Page> {
  return new Promise((resolve, reject) => {
    const call = request({ host: "127.0.0.1", port, path }, (answer) => {
      let text = "";
      answer.setEncoding("utf8").on("data", (chunk) => {
        text += chunk;
      });
      answer.on("end", () => resolve(JSON.parse(text)));
    });
    call.on("error", reject).end();
  });
}

const filter = positionals[0] ?? "";

for (const [title, open] of Object.entries(CASES).filter(([title]) => title.includes(filter)))
  for (let round = 0; round < ROUNDS; round++) {
    const teardowns: (() => unknown)[] = [];
    const teardown = ((cleanUp: () => unknown) =>
      teardowns.push(cleanUp)) as TeardownHost["teardown"]; // the only part of tap's `t` that the helpers use
    const workbench = new Workbench();
    try {
      const loss = await measure(workbench, await open({ teardown }));
      const { acknowledged, lost, oldestMs, outageMs } = loss;
      process.stdout.write(
        `${title.padEnd(32)}${acknowledged} acknowledged, ${lost} lost, the oldest acknowledged ${oldestMs.toFixed(0)} ms before the kill; outage ${outageMs.toFixed(0)} ms\n`,
      );
    } finally {
      workbench.close();
      for (const cleanUp of teardowns.reverse()) await cleanUp();
    }
  }
