// The log of a node whose Redis cannot be used for a while. The log has one line at the beginning,
// one line every few seconds and one line at the end, however many calls and rooms fail in the
// meantime.

import { setTimeout as pause } from "node:timers/promises";
import t, { type Test } from "tap";
import { type Broker, spawnBroker, textPayload } from "../support/broker.ts";
import { connectNative } from "../support/native-client.ts";
import { textOf } from "../support/native-session.ts";
import { startRedis, startRedisCluster } from "../support/redis.ts";

const AWAY_MS = 8000;
/** Time between two sends of a client. */
const SEND_MS = 50;

interface Line {
  readonly level: string;
  readonly msg: string;
  readonly reason?: string;
  readonly failures?: number;
  readonly awayS?: number;
}

type Node = Broker & { output(): string };

function startNode(t: Test, settings: Readonly<Record<string, string>>): Promise<Node> {
  return spawnBroker(t, {
    JINDOU_AUTH_CLIENTS: "none",
    JINDOU_LOG_LEVEL: "info",
    JINDOU_REDIS_TIMEOUT_MS: "1000",
    ...settings,
  });
}

function linesOf(node: Node): readonly Line[] {
  return node
    .output()
    .split("\n")
    .filter((line) => line.startsWith("{") && line.endsWith("}"))
    .map((line) => JSON.parse(line));
}

const messagesOf = (lines: readonly Line[]) => lines.map(({ msg }) => msg);

async function until(condition: () => boolean | Promise<boolean>): Promise<void> {
  while (!(await condition())) await pause(SEND_MS);
}

async function send(node: Node, text: string): Promise<number> {
  const message = { from_uid: "alice", channel_id: "team", channel_type: 2 };
  const { status } = await node.call("/message/send", { ...message, payload: textPayload(text) });
  return status;
}

/** Connects members of a group who send over HTTP and over their sockets until `stop` is called. */
async function startTraffic(t: Test, node: Node) {
  const uids = ["alice", "bob", "carol"];
  await node.call("/channel", { channel_id: "team", channel_type: 2, subscribers: uids });
  const { clientPort: port } = node;
  const clients = await Promise.all(uids.map((uid) => connectNative(t, { port, uid })));
  let isOn = true;
  const run = async (act: () => Promise<unknown>) => {
    while (isOn) {
      await act().catch(() => {});
      await pause(SEND_MS);
    }
  };
  const group = { id: "team", type: 2 } as const;
  const running = [
    run(() => send(node, "over HTTP")),
    run(() => node.call("/readyz")),
    run(() => node.call("/user/onlinestatus", uids)),
    ...clients.map((client) => run(() => client.send(group, "over a socket"))),
  ];
  return {
    clients,
    async stop() {
      isOn = false;
      await Promise.all(running);
    },
  };
}

/** Makes Redis unusable under traffic and checks the log until everything works again. */
async function checkOutage(
  t: Test,
  node: Node,
  { away, back }: { readonly away: () => unknown; readonly back: () => unknown },
): Promise<readonly Line[]> {
  const traffic = await startTraffic(t, node);
  const before = linesOf(node).length;
  await away();
  await pause(AWAY_MS);
  await back();
  const newLines = () => linesOf(node).slice(before);
  await until(() => messagesOf(newLines()).includes("Redis can be used again"));
  await until(async () => (await send(node, "the last one")) === 200);
  await traffic.stop();
  const bob = await connectNative(t, { port: node.clientPort, uid: "bob", timeoutMs: 60_000 });
  t.equal(await send(node, "the last one"), 200);
  await bob.waitFor(() =>
    bob.pushes.some((push) => push.kind === "message" && textOf(push.message) === "the last one"),
  );
  const lines = newLines();
  const [first, second] = lines;
  t.match(first, { level: "warn", msg: "Redis cannot be used" });
  t.match(second, { level: "warn", msg: "Redis still cannot be used" });
  t.ok(Number(second?.failures) > 10, "the failures are counted");
  t.ok(Number(second?.awayS) >= 5);
  for (const { msg } of lines) t.match(msg, /^Redis (cannot|still cannot|can) be used( again)?$/);
  const awayS = Math.max(...lines.map((line) => line.awayS ?? 0));
  // On a busy machine, a call may fail once more after Redis is back.
  t.ok(lines.length <= 2 + awayS / 5 + 4, `${lines.length} lines in ${awayS} s`);
  return lines;
}

t.jobs = 5;

t.test(
  "a node does not flood its log while Redis is down after a kill, and delivers messages afterwards",
  async (t) => {
    const redis = await startRedis(t, ["--appendonly", "yes", "--appendfsync", "always"]);
    const node = await startNode(t, { JINDOU_REDIS_URL: redis.url });
    const lines = await checkOutage(t, node, {
      away: () => redis.stop("SIGKILL"),
      back: () => redis.restart(),
    });
    t.match(lines[1]?.reason, /^no server accepts connections .*ECONNREFUSED.*Start Redis/);
  },
);

t.test(
  "a node does not flood its log while Redis hangs, and serves all calls afterwards",
  async (t) => {
    const redis = await startRedis(t);
    const node = await startNode(t, { JINDOU_REDIS_URL: redis.url });
    const lines = await checkOutage(t, node, {
      away: () => redis.signal("SIGSTOP"),
      back: () => redis.signal("SIGCONT"),
    });
    t.match(lines[1]?.reason, /^Redis has not answered within redis\.timeoutMs .*hangs/);
  },
);

t.test(
  "a node does not flood its log while Redis rejects writes, and delivers messages afterwards",
  async (t) => {
    const redis = await startRedis(t);
    const node = await startNode(t, { JINDOU_REDIS_URL: redis.url });
    const admin = redis.client();
    const lines = await checkOutage(t, node, {
      away: () => admin.config("SET", "maxmemory", "1"),
      back: () => admin.config("SET", "maxmemory", "0"),
    });
    for (const { reason } of lines.slice(0, -1))
      t.match(reason, /^Redis has used all the memory .*OOM.*Raise maxmemory/);
  },
);

t.test("a node does not flood its log while Redis has reached its maxclients limit", async (t) => {
  const redis = await startRedis(t);
  const node = await startNode(t, { JINDOU_REDIS_URL: redis.url });
  const admin = redis.client();
  const lines = await checkOutage(t, node, {
    async away() {
      await admin.config("SET", "maxclients", "1");
      for (const type of ["normal", "pubsub"])
        await admin.call("CLIENT", "KILL", "TYPE", type, "SKIPME", "yes");
    },
    back: () => admin.config("SET", "maxclients", "10000"),
  });
  t.match(lines[1]?.reason, /^Redis has reached its maxclients limit/);
});

t.test("a node does not flood its log while a primary of a Redis Cluster is down", async (t) => {
  const { url, primaries } = await startRedisCluster(t);
  const node = await startNode(t, { JINDOU_REDIS_URL: url });
  const [owner] = primaries.filter(Boolean);
  await checkOutage(t, node, {
    away: () => owner?.stop("SIGKILL"),
    back: () => owner?.restart(),
  });
});

t.test("a node reports that redis.minReplicas is not met if the replicas are lost", async (t) => {
  const redis = await startRedis(t, ["--repl-diskless-sync-delay", "0"]);
  const replica = await startRedis(t, ["--replicaof", `127.0.0.1 ${redis.port}`]);
  const settings = { JINDOU_REDIS_URL: redis.url, JINDOU_REDIS_MIN_REPLICAS: "1" };
  const node = await startNode(t, settings);
  await node.call("/channel", { channel_id: "team", channel_type: 2, subscribers: ["alice"] });
  t.equal(await send(node, "with a replica"), 200);
  await replica.stop();
  const missing =
    /Redis has fewer replicas than redis\.minReplicas requires.*Start the replicas.*or lower redis\.minReplicas/;
  await until(() => linesOf(node).some(({ reason = "" }) => missing.test(reason)));
  const ready = await node.call("/readyz");
  t.equal(ready.status, 503);
  t.match(ready.body.error, missing);
  const message = { from_uid: "alice", channel_id: "team", channel_type: 2 };
  const rejected = await node.call("/message/send", { ...message, payload: textPayload("x") });
  t.equal(rejected.status, 503);
  t.match(rejected.body.error, /Fewer than 1 replicas .*redis\.minReplicas/);
  await replica.restart();
  await until(async () => (await node.call("/readyz")).status === 200);
  t.equal(await send(node, "with a replica"), 200);
  await until(() => messagesOf(linesOf(node)).includes("Redis can be used again"));
});

t.test("a node on a Redis Cluster reports slots that no server serves", async (t) => {
  const { url, primaries } = await startRedisCluster(t);
  const clients = primaries.map((primary) => primary.client());
  const change = (words: string) =>
    Promise.all(clients.map((client) => client.call("CLUSTER", ...words.split(" "))));
  await change("DELSLOTS 1 2 3");
  const node = await startNode(t, { JINDOU_REDIS_URL: url });
  const missing =
    /^some slots of the Redis Cluster have no server.*3 of 16384 slots.*assign its slots/;
  await until(() => linesOf(node).some(({ reason = "" }) => missing.test(reason)));
  await clients[0]?.call("CLUSTER", "ADDSLOTS", "1", "2", "3");
  await until(() => messagesOf(linesOf(node)).includes("Redis can be used again"));
  t.equal((await node.call("/readyz")).status, 200);
});
