// How much memory and CPU time does Redis need for a user, a group, a membership, a message, a
// remembered client_msg_no, and a session with its subscriptions? And how much memory does a
// session need on its node? The results are used in the sizing section of docs/cluster.md.
//
// Usage: npx tsx bench/redis-footprint.ts [--count 10000] [-- options of redis-server]
// Needs `npm run build`, Linux, a C compiler and redis-server.

import { setTimeout as pause } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { type RedisServer, startRedis } from "../test/support/redis.ts";
import { Backend, TOKEN } from "./support/backend.ts";
import {
  CONNECTION_NUMBER,
  connectFrame,
  connectionNumber,
  NATIVE_UPGRADE,
  PAYLOAD,
} from "./support/frames.ts";
import { compileLoad, LoadClient } from "./support/load.ts";
import { residentBytes } from "./support/proc.ts";
import { type Child, Workbench } from "./support/workbench.ts";

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { count: { type: "string", default: "10000" } },
});
const COUNT = Number(values.count);
const ROOT = fileURLToPath(new URL("..", import.meta.url));
const USER = `user${CONNECTION_NUMBER}`;
/** Node.js option that makes the node collect garbage when it receives SIGUSR2. */
const GC_ON_SIGNAL = "--import=data:text/javascript,process.on('SIGUSR2',()=>gc())";
const CONCURRENCY = 64;
const REST_MS = 1500;
/** Number of members of each group, except the groups with one member. */
const GROUP_SIZE = 100;

interface Node {
  readonly child: Child;
  readonly apiPort: number;
  readonly clientPort: number;
}

async function startNode(workbench: Workbench, url: string): Promise<Node> {
  const child = workbench.spawn({
    name: "The node",
    command: process.execPath,
    args: ["--expose-gc", GC_ON_SIGNAL, "dist/main.js", "start"],
    cwd: ROOT,
    env: {
      JINDOU_API_LISTEN: "127.0.0.1:0",
      JINDOU_CLIENT_LISTEN: "127.0.0.1:0",
      JINDOU_REDIS_URL: url,
    },
  });
  const ready = JSON.parse(await child.line('"The node is ready"'));
  return { child, apiPort: ready.apiPort, clientPort: ready.clientPort };
}

/**
 * Calls `action` with each index from 0 to `count` - 1. At most `CONCURRENCY` calls are concurrent.
 */
async function forEachIndex(count: number, action: (at: number) => Promise<unknown>) {
  let next = 0;
  const work = async () => {
    while (next < count) await action(next++);
  };
  await Promise.all(Array.from({ length: CONCURRENCY }, work));
}

function print(title: string, bytes: number, note = ""): void {
  const figure = bytes.toFixed(0).padStart(8);
  process.stdout.write(`${title.padEnd(52)}${figure} B  ${note}\n`);
}

async function usedBytes(redis: RedisServer): Promise<number> {
  await pause(REST_MS);
  const info = await redis.client().info("memory");
  return Number(/used_memory:(\d+)/.exec(info)?.[1]);
}

/** Returns the CPU time that Redis has used so far, in microseconds. */
async function usedUs(redis: RedisServer): Promise<number> {
  const info = await redis.client().info("cpu");
  const seconds = ["user", "sys"].map((name) =>
    Number(new RegExp(`used_cpu_${name}:([\\d.]+)`).exec(info)?.[1]),
  );
  return seconds.reduce((sum, value) => sum + value, 0) * 1e6;
}

/**
 * Runs an action that handles `count` items and prints the memory and CPU time of Redis per item.
 */
async function printCost(
  redis: RedisServer,
  { title, count }: { readonly title: string; readonly count: number },
  action: () => Promise<unknown>,
): Promise<void> {
  const before = await usedBytes(redis);
  const beforeUs = await usedUs(redis);
  await action();
  const cpuUs = ((await usedUs(redis)) - beforeUs) / count;
  const bytes = ((await usedBytes(redis)) - before) / count;
  print(title, bytes, `${cpuUs.toFixed(0)} µs`);
}

const uids = Array.from({ length: COUNT }, (_, at) =>
  USER.replace(CONNECTION_NUMBER, connectionNumber(at)),
);

/** Measures the cost of the data that exists regardless of who is online. */
async function printDataCosts(redis: RedisServer, backend: Backend): Promise<void> {
  const payload = Buffer.from(PAYLOAD).toString("base64");
  const send = (body: object) =>
    backend.post("/message/send", { payload, channel_type: 2, ...body });
  const groups = COUNT / GROUP_SIZE;
  await printCost(redis, { title: "user with one device", count: COUNT }, () =>
    backend.registerUsers(uids),
  );
  await printCost(redis, { title: "group with one member", count: COUNT }, () =>
    forEachIndex(COUNT, (at) => backend.createGroup(`one${at}`, [uids[at] ?? ""])),
  );
  await printCost(redis, { title: `membership, groups of ${GROUP_SIZE}`, count: COUNT }, () =>
    forEachIndex(groups, (at) =>
      backend.createGroup(`g${at}`, uids.slice(at * GROUP_SIZE, (at + 1) * GROUP_SIZE)),
    ),
  );
  const inGroup = (at: number) => ({
    channel_id: `g${at % groups}`,
    from_uid: uids[(at % groups) * GROUP_SIZE],
  });
  await printCost(redis, { title: `message of ${PAYLOAD.length} bytes`, count: COUNT }, () =>
    forEachIndex(COUNT, (at) => send(inGroup(at))),
  );
  await printCost(redis, { title: "message with a client_msg_no", count: COUNT }, () =>
    forEachIndex(COUNT, (at) =>
      send({ ...inGroup(at), client_msg_no: `m-${at}-0123456789abcdef` }),
    ),
  );
  await printCost(redis, { title: "first message of a personal channel", count: COUNT }, () =>
    forEachIndex(COUNT, (at) =>
      send({
        ...{ channel_type: 1, channel_id: uids[(at + 1) % COUNT] },
        from_uid: uids[at],
      }),
    ),
  );
}

/** Returns the size of the node's live JavaScript objects, in bytes. */
async function liveHeapBytes({ child, apiPort }: Node): Promise<number> {
  process.kill(child.pid, "SIGUSR2");
  await pause(REST_MS);
  const page = await (await fetch(`http://127.0.0.1:${apiPort}/metrics`)).text();
  return Number(/^nodejs_heap_size_used_bytes (\S+)$/m.exec(page)?.[1]);
}

/** Measures sessions of users who are in two groups each. */
async function printSessionCosts(
  redis: RedisServer,
  { workbench, node }: { workbench: Workbench; node: Node },
): Promise<void> {
  const load = new LoadClient(workbench, await compileLoad());
  const opening = {
    upgrade: NATIVE_UPGRADE,
    open: connectFrame(USER, TOKEN),
  };
  const port = node.clientPort;
  const warmup = { port, connections: COUNT / 10, opening };
  await (await load.hold(warmup)).release();
  const before = await usedBytes(redis);
  const beforeUs = await usedUs(redis);
  const [resident, liveHeap] = [residentBytes(node.child.pid), await liveHeapBytes(node)];
  const connections = await load.hold({ port, connections: COUNT, opening });
  const cpuUs = ((await usedUs(redis)) - beforeUs) / COUNT;
  const after = await usedBytes(redis);
  const topics = await redis.client().call("PUBSUB", "SHARDCHANNELS");
  const count = Array.isArray(topics) ? topics.length : 0;
  print(
    "session, in Redis",
    (after - before) / COUNT,
    `${cpuUs.toFixed(0)} µs, ${count} topics, ${Math.round(COUNT / connections.connectSeconds)} connects/s`,
  );
  print(
    "session, on its node (resident memory)",
    (residentBytes(node.child.pid) - resident) / COUNT,
  );
  print(
    "session, on its node (live JavaScript objects)",
    ((await liveHeapBytes(node)) - liveHeap) / COUNT,
  );
  await connections.release();
}

const teardowns: (() => unknown)[] = [];
const workbench = new Workbench();
try {
  const teardown = ((cleanUp: () => unknown) => teardowns.push(cleanUp)) as Parameters<
    typeof startRedis
  >[0]["teardown"]; // the only part of tap's `t` that startRedis uses
  const redis = await startRedis({ teardown }, positionals);
  const node = await startNode(workbench, redis.url);
  const backend = new Backend(node.apiPort);
  await printDataCosts(redis, backend);
  backend.close();
  await node.child.finish();
  const sessionNode = await startNode(workbench, redis.url); // a new process, whose memory contains only sessions
  await printSessionCosts(redis, { workbench, node: sessionNode });
  await sessionNode.child.finish();
} finally {
  workbench.close();
  for (const cleanUp of teardowns.reverse()) await cleanUp();
}
