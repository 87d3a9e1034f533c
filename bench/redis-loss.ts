// What Redis loses of acknowledged messages when it is killed under load: one server by how it
// writes its file, a primary with replicas by redis.minReplicas. The figures of docs/cluster.md. A
// killed process is no power loss: what the kernel had is written.
// Usage: npx tsx bench/redis-loss.ts [--rounds 3] [--seconds 2] [a word of the cases wanted]. Needs
//   `npm run build`, Linux and redis-server.

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
const LANES = 64;
/** Personal channels: they need nothing that an empty Redis would not have. */
const PEERS = 16;
const RETRY_MS = 20;
const CUT_MS = 300;
const PAYLOAD = Buffer.from('{"type":1,"content":"hello"}').toString("base64");

type Teardown = Parameters<typeof startRedis>[0];

/** A Redis to be lost. */
interface Place {
  readonly settings: Readonly<Record<string, string>>;
  /** What happens shortly before. */
  cut?(): Promise<void>;
  kill(): Promise<void>;
  /** Where nobody else does. */
  restart?(): Promise<void>;
}

interface Acknowledged {
  readonly id: number;
  readonly atMs: number;
}

interface Loss {
  readonly acknowledged: number;
  readonly lost: number;
  /** How long before the kill the oldest of them was acknowledged. */
  readonly oldestMs: number;
  /** From the kill to the next acknowledgement. */
  readonly outageMs: number;
}

async function one(t: Teardown, args: readonly string[]): Promise<Place> {
  const redis = await startRedis(t, args);
  return {
    settings: { JINDOU_REDIS_URL: redis.url },
    kill: () => redis.stop("SIGKILL"),
    restart: () => redis.restart(),
  };
}

/** `cutMs`: so long before its end the primary's replicas hear nothing from it. */
async function replicated(t: Teardown, minReplicas: number, cutMs = 0): Promise<Place> {
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

const CASES: Readonly<Record<string, (t: Teardown) => Promise<Place>>> = {
  "killed, appendonly no": (t) => one(t, []),
  "killed, appendfsync everysec": (t) => one(t, [...AOF, "everysec"]),
  "killed, appendfsync always": (t) => one(t, [...AOF, "always"]),
  "fail-over, minReplicas 0": (t) => replicated(t, 0),
  "fail-over, minReplicas 1": (t) => replicated(t, 1),
  "cut, fail-over, minReplicas 0": (t) => replicated(t, 0, CUT_MS),
  "cut, fail-over, minReplicas 1": (t) => replicated(t, 1, CUT_MS),
};

async function startNode(workbench: Workbench, settings: Place["settings"]): Promise<number> {
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

/** Senders who never give up. */
class Load {
  readonly acknowledged: Acknowledged[] = [];
  readonly #backend: Backend;
  readonly #lanes: readonly Promise<void>[];
  #isOver = false;

  constructor(backend: Backend) {
    this.#backend = backend;
    this.#lanes = Array.from({ length: LANES }, (_, lane) => this.#run(lane));
  }

  async end(): Promise<void> {
    this.#isOver = true;
    await Promise.all(this.#lanes);
  }

  async #run(lane: number): Promise<void> {
    const peer = `peer${lane % PEERS}`;
    for (let no = 0; !this.#isOver; no++)
      try {
        const answer = await this.#backend.post("/message/send", {
          ...{ channel_id: peer, channel_type: 1, from_uid: "ann" },
          ...{ client_msg_no: `${lane}-${no}`, payload: PAYLOAD },
        });
        const { message_id: id } = JSON.parse(answer);
        this.acknowledged.push({ id, atMs: performance.now() });
      } catch {
        await pause(RETRY_MS); // refused: the next one is another message
      }
  }
}

async function measure(workbench: Workbench, place: Place): Promise<Loss> {
  const port = await startNode(workbench, place.settings);
  const backend = new Backend(port);
  const load = new Load(backend);
  await pause(LOAD_MS);
  await place.cut?.();
  const killedMs = performance.now();
  await place.kill();
  const deadMs = performance.now();
  await place.restart?.();
  const isBack = () => (load.acknowledged.at(-1)?.atMs ?? 0) > deadMs + 100;
  while (!isBack()) await pause(RETRY_MS);
  const back = load.acknowledged.find(({ atMs }) => atMs > deadMs + 100);
  await load.end();
  const kept = new Set<number>();
  for (let peer = 0; peer < PEERS; peer++)
    for (const id of await history(port, `peer${peer}`)) kept.add(id);
  const lost = load.acknowledged.filter(({ id }) => !kept.has(id));
  backend.close();
  return {
    acknowledged: load.acknowledged.length,
    lost: lost.length,
    oldestMs: Math.max(0, ...lost.map(({ atMs }) => killedMs - atMs)),
    outageMs: (back?.atMs ?? 0) - killedMs,
  };
}

/** The ids of all messages with that peer. */
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

const only = positionals[0] ?? "";

for (const [title, open] of Object.entries(CASES).filter(([title]) => title.includes(only)))
  for (let round = 0; round < ROUNDS; round++) {
    const teardowns: (() => unknown)[] = [];
    const teardown = ((end: () => unknown) => teardowns.push(end)) as Teardown["teardown"]; // of tap's it needs no more
    const workbench = new Workbench();
    try {
      const loss = await measure(workbench, await open({ teardown }));
      const { acknowledged, lost, oldestMs, outageMs } = loss;
      process.stdout.write(
        `${title.padEnd(32)}${acknowledged} acknowledged, ${lost} lost, the oldest ${oldestMs.toFixed(0)} ms before; away ${outageMs.toFixed(0)} ms\n`,
      );
    } finally {
      workbench.close();
      for (const end of teardowns.reverse()) await end();
    }
  }
