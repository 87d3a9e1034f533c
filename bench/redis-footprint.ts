// What things take in Redis, in bytes of its memory and in its processor time: a user, a group, a
// membership, a message, a remembered client_msg_no, a session with its subscriptions; and what a
// session takes on its node. For the arithmetic of docs/cluster.md.
// Usage: npx tsx bench/redis-footprint.ts [--count 10000] [-- options of redis-server]. Needs `npm
//   run build`, Linux, a C compiler and redis-server.

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
/** At a signal the node collects its garbage. */
const COLLECTS = "--import=data:text/javascript,process.on('SIGUSR2',()=>gc())";
const AT_ONCE = 64;
const REST_MS = 1500;
/** Members of each group, and groups that share the messages. */
const SIZE = 100;

interface Node {
  readonly child: Child;
  readonly apiPort: number;
  readonly clientPort: number;
}

async function startNode(workbench: Workbench, url: string): Promise<Node> {
  const child = workbench.spawn({
    name: "The node",
    command: process.execPath,
    args: ["--expose-gc", COLLECTS, "dist/main.js", "start"],
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

/** `act` for 0 to `count` - 1, a bounded number at a time. */
async function each(count: number, act: (at: number) => Promise<unknown>) {
  let next = 0;
  const work = async () => {
    while (next < count) await act(next++);
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
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

/** Processor time of Redis so far. */
async function usedUs(redis: RedisServer): Promise<number> {
  const info = await redis.client().info("cpu");
  const seconds = ["user", "sys"].map((name) =>
    Number(new RegExp(`used_cpu_${name}:([\\d.]+)`).exec(info)?.[1]),
  );
  return seconds.reduce((sum, one) => sum + one, 0) * 1e6;
}

/** The growth of Redis' memory per one of `count`, and the time it took. */
async function cost(
  redis: RedisServer,
  { title, count }: { readonly title: string; readonly count: number },
  act: () => Promise<unknown>,
): Promise<void> {
  const before = await usedBytes(redis);
  const beforeUs = await usedUs(redis);
  await act();
  const us = ((await usedUs(redis)) - beforeUs) / count;
  const bytes = ((await usedBytes(redis)) - before) / count;
  print(title, bytes, `${us.toFixed(0)} µs`);
}

const uids = Array.from({ length: COUNT }, (_, at) =>
  USER.replace(CONNECTION_NUMBER, connectionNumber(at)),
);

/** What is there whether anybody is online or not. */
async function data(redis: RedisServer, backend: Backend): Promise<void> {
  const payload = Buffer.from(PAYLOAD).toString("base64");
  const send = (body: object) =>
    backend.post("/message/send", { payload, channel_type: 2, ...body });
  const groups = COUNT / SIZE;
  await cost(redis, { title: "user with one device", count: COUNT }, () =>
    backend.registerUsers(uids),
  );
  await cost(redis, { title: "group with one member", count: COUNT }, () =>
    each(COUNT, (at) => backend.createGroup(`one${at}`, [uids[at] ?? ""])),
  );
  await cost(redis, { title: `membership, groups of ${SIZE}`, count: COUNT }, () =>
    each(groups, (at) => backend.createGroup(`g${at}`, uids.slice(at * SIZE, (at + 1) * SIZE))),
  );
  const inGroup = (at: number) => ({
    channel_id: `g${at % groups}`,
    from_uid: uids[(at % groups) * SIZE],
  });
  await cost(redis, { title: `message of ${PAYLOAD.length} bytes`, count: COUNT }, () =>
    each(COUNT, (at) => send(inGroup(at))),
  );
  await cost(redis, { title: "the same with a client_msg_no to remember", count: COUNT }, () =>
    each(COUNT, (at) => send({ ...inGroup(at), client_msg_no: `m-${at}-0123456789abcdef` })),
  );
  await cost(redis, { title: "first message of a personal channel", count: COUNT }, () =>
    each(COUNT, (at) =>
      send({
        ...{ channel_type: 1, channel_id: uids[(at + 1) % COUNT] },
        from_uid: uids[at],
      }),
    ),
  );
}

/** Bytes of the node's JavaScript objects, garbage left out. */
async function heap({ child, apiPort }: Node): Promise<number> {
  process.kill(child.pid, "SIGUSR2");
  await pause(REST_MS);
  const page = await (await fetch(`http://127.0.0.1:${apiPort}/metrics`)).text();
  return Number(/^nodejs_heap_size_used_bytes (\S+)$/m.exec(page)?.[1]);
}

/** Of users in two groups each. */
async function sessions(
  redis: RedisServer,
  { workbench, node }: { workbench: Workbench; node: Node },
): Promise<void> {
  const load = new LoadClient(workbench, await compileLoad());
  const opening = {
    upgrade: NATIVE_UPGRADE,
    open: connectFrame(USER, TOKEN),
  };
  const port = node.clientPort;
  const first = { port, connections: COUNT / 10, opening };
  await (await load.hold(first)).release();
  const before = await usedBytes(redis);
  const beforeUs = await usedUs(redis);
  const [resident, live] = [residentBytes(node.child.pid), await heap(node)];
  const held = await load.hold({ port, connections: COUNT, opening });
  const us = ((await usedUs(redis)) - beforeUs) / COUNT;
  const after = await usedBytes(redis);
  const topics = await redis.client().call("PUBSUB", "SHARDCHANNELS");
  const count = Array.isArray(topics) ? topics.length : 0;
  print(
    "session, in Redis",
    (after - before) / COUNT,
    `${us.toFixed(0)} µs, ${count} topics, ${Math.round(COUNT / held.connectSeconds)} connects/s`,
  );
  print("session, on its node (resident)", (residentBytes(node.child.pid) - resident) / COUNT);
  print("session, on its node (live JavaScript objects)", ((await heap(node)) - live) / COUNT);
  await held.release();
}

const teardowns: (() => unknown)[] = [];
const workbench = new Workbench();
try {
  const teardown = ((end: () => unknown) => teardowns.push(end)) as Parameters<
    typeof startRedis
  >[0]["teardown"]; // of tap's it needs no more
  const redis = await startRedis({ teardown }, positionals);
  const node = await startNode(workbench, redis.url);
  const backend = new Backend(node.apiPort);
  await data(redis, backend);
  backend.close();
  await node.child.finish();
  const fresh = await startNode(workbench, redis.url); // its memory is of sessions only
  await sessions(redis, { workbench, node: fresh });
  await fresh.child.finish();
} finally {
  workbench.close();
  for (const end of teardowns.reverse()) await end();
}
