// Tests of a node that is started before its Redis can be used: it waits with the API open, serves
// when Redis can be used, and ends at a signal, after its time limit, or if waiting does not help.

import { connect } from "node:net";
import t, { type Test } from "tap";
import { freePort, type RedisServer, startRedis, startRedisCluster } from "../support/redis.ts";
import { startSentinels } from "../support/sentinels.ts";
import { type JindouProcess, spawnJindou } from "./jindou.ts";

const WAITING = "The node waits for its store";
const READY = "The node is ready";

interface WaitingNode extends JindouProcess {
  readonly apiPort: number;
  readonly clientPort: number;
  /** Calls the API: POST if there is a body. */
  call(path: string, body?: unknown): Promise<Response>;
}

async function startNode(t: Test, url: string, settings = {}): Promise<WaitingNode> {
  const [apiPort, clientPort] = [await freePort(), await freePort()];
  const env = {
    JINDOU_API_LISTEN: `127.0.0.1:${apiPort}`,
    JINDOU_CLIENT_LISTEN: `127.0.0.1:${clientPort}`,
    JINDOU_ADMIN_PASSWORD: "right",
    JINDOU_REDIS_TIMEOUT_MS: "2000",
    JINDOU_REDIS_URL: url,
    JINDOU_START_WAIT_FOR_STORE_S: "600",
    ...settings,
  };
  const call = (path: string, body?: unknown) =>
    fetch(`http://127.0.0.1:${apiPort}${path}`, {
      ...(body === undefined ? {} : { method: "POST", body: JSON.stringify(body) }),
    });
  return { ...spawnJindou(t, [], { env }), apiPort, clientPort, call };
}

/** Starts a Redis and stops it again, so that its address refuses connections. */
async function stoppedRedis(t: Test, args: readonly string[] = []): Promise<RedisServer> {
  const redis = await startRedis(t, args);
  await redis.stop();
  return redis;
}

function isListening(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(port, "127.0.0.1");
    socket.on("connect", () => resolve(true)).on("error", () => resolve(false));
    socket.on("connect", () => socket.destroy());
  });
}

/** Checks what a node answers that has logged that it waits. */
async function checkWaiting(t: Test, node: WaitingNode): Promise<void> {
  t.equal((await node.call("/healthz")).status, 200);
  const token = { uid: "alice", token: "secret", device_flag: 0, device_level: 1 };
  const calls = [
    () => node.call("/readyz"),
    () => node.call("/metrics"),
    () => node.call("/migrate/result"),
    () => node.call("/user/token", token),
    () => node.call("/user/onlinestatus", ["alice"]),
    () => node.call("/manager/login", { username: "admin", password: "right" }),
  ];
  for (const call of calls) {
    const response = await call();
    const body = await response.text();
    t.equal(response.status, 503, body);
    t.ok(Number(response.headers.get("retry-after")) >= 1);
    t.match(JSON.parse(body), { code: "unavailable", error: /waits for its store/ });
  }
  t.notOk(await isListening(node.clientPort), "the client listener is closed");
}

/** Checks that a node serves after it has waited. */
async function checkServing(t: Test, node: WaitingNode): Promise<void> {
  t.match(await node.logged(READY), { apiPort: node.apiPort, clientPort: node.clientPort });
  t.equal((await node.call("/readyz")).status, 200);
  t.ok(await isListening(node.clientPort));
  node.child.kill("SIGTERM");
  t.equal((await node.exit).code, 0);
}

t.test("a node waits with the API open for a Redis that is started later", async (t) => {
  const redis = await stoppedRedis(t);
  const node = await startNode(t, redis.url);
  t.match(await node.logged(WAITING), { level: "warn", reason: /ECONNREFUSED/, limitS: 600 });
  await checkWaiting(t, node);
  await redis.restart();
  await checkServing(t, node);
});

t.test("a node waits for a Redis that does not answer", async (t) => {
  const redis = await startRedis(t);
  redis.signal("SIGSTOP");
  const node = await startNode(t, redis.url);
  await node.logged(WAITING);
  await checkWaiting(t, node);
  redis.signal("SIGCONT");
  await checkServing(t, node);
});

t.test("a node waits for a Redis that loads its data", async (t) => {
  const slowly = ["--key-load-delay", "300000", "--loading-process-events-interval-bytes", "1024"];
  const redis = await startRedis(t, slowly);
  const client = redis.client();
  for (let n = 0; n < 20; n++) await client.set(`other:${n}`, "x".repeat(4000 + n));
  await client.config("SET", "rdbcompression", "no");
  await client.save();
  client.disconnect();
  await redis.stop();
  const loaded = redis.restart();
  const node = await startNode(t, redis.url);
  await node.logged(WAITING);
  await checkWaiting(t, node);
  await loaded;
  await checkServing(t, node);
});

t.test("a node waits for the primary of its Sentinels", async (t) => {
  const watched = await startSentinels(t, 0);
  const node = await startNode(t, watched.url, {
    JINDOU_REDIS_SENTINEL_NAME: "later",
    JINDOU_REDIS_SENTINEL_PASSWORD: watched.password,
  });
  await node.logged(WAITING);
  await checkWaiting(t, node);
  node.child.kill("SIGTERM");
  t.equal((await node.exit).code, 0);
});

t.test("a node waits for a Redis Cluster", async (t) => {
  const { url, primaries } = await startRedisCluster(t);
  await Promise.all(primaries.map((primary) => primary.stop()));
  const node = await startNode(t, url);
  await node.logged(WAITING);
  await checkWaiting(t, node);
  await Promise.all(primaries.map((primary) => primary.restart()));
  await checkServing(t, node);
});

t.test("a node that had to wait for Redis then also waits for a running migration", async (t) => {
  const redis = await stoppedRedis(t, ["--appendonly", "yes"]);
  const node = await startNode(t, redis.url);
  await node.logged(WAITING);
  await redis.restart();
  await node.logged(READY);
  node.child.kill("SIGTERM");
  await node.exit;
  const client = redis.client();
  await client.set("jd:{all}:migrating", "another process");
  client.disconnect();
  await redis.stop();
  const waiting = await startNode(t, redis.url);
  await waiting.logged(WAITING);
  await redis.restart();
  t.ok(await waiting.logged("The node waits until its data has been moved"));
  t.match(await (await waiting.call("/migrate/result")).json(), { status: "running" });
  waiting.child.kill("SIGTERM");
  t.equal((await waiting.exit).code, 0);
});

t.test("a signal ends the wait at once, and the node exits with 0", async (t) => {
  for (const away of ["stopped", "frozen"]) {
    const redis = await startRedis(t);
    if (away === "stopped") await redis.stop();
    else redis.signal("SIGSTOP");
    const settings = { JINDOU_REDIS_TIMEOUT_MS: "60000", JINDOU_DRAIN_NOTICE_MS: "60000" };
    const node = await startNode(t, redis.url, settings);
    await node.logged(WAITING);
    node.child.kill("SIGTERM");
    const { code, stderr } = await node.exit;
    t.equal(code, 0, away);
    t.equal(stderr, "");
  }
});

t.test("a node that has waited for its time limit exits with 1", async (t) => {
  const redis = await stoppedRedis(t);
  const node = await startNode(t, redis.url, { JINDOU_START_WAIT_FOR_STORE_S: "1" });
  const { code, stderr } = await node.exit;
  t.equal(code, 1);
  t.match(
    stderr,
    /^jindou: Redis cannot be used: .*ECONNREFUSED.*redis\.url.* waited 1 s .*start\.waitForStoreS[^\n]*\n$/,
  );
});

t.test("a node does not wait after a Redis error that waiting cannot fix", async (t) => {
  const redis = await startRedis(t);
  const wrong = redis.url.replace("//", "//nobody:hunter2@");
  for (const url of [wrong, `${redis.url}/99`]) {
    const node = await startNode(t, url);
    const { code, stdout } = await node.exit;
    t.equal(code, 1);
    t.notMatch(stdout, WAITING);
  }
});
