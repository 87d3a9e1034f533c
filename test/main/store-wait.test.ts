// Tests of a node that is started before its Redis can be used. The node waits with the API open,
// and serves when Redis can be used. It exits after a signal, after its time limit, or if waiting
// does not help.

import t, { type Test } from "tap";
import { type RedisServer, startRedis, startRedisCluster } from "../support/redis.ts";
import { startSentinels } from "../support/sentinels.ts";
import { checkServing, checkWaiting, READY, startNode as start } from "./waiting-node.ts";

const WAITING = "The node waits for its store";

function startNode(t: Test, url: string, settings = {}) {
  const waits = { JINDOU_REDIS_TIMEOUT_MS: "2000", JINDOU_START_WAIT_FOR_STORE_S: "600" };
  return start(t, { ...waits, JINDOU_REDIS_URL: url, ...settings });
}

/** Starts a Redis and stops it again, so that its address refuses connections. */
async function stoppedRedis(t: Test, args: readonly string[] = []): Promise<RedisServer> {
  const redis = await startRedis(t, args);
  await redis.stop();
  return redis;
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

t.test("a node waits for a Redis that is still loading its data", async (t) => {
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
  const isLoading = /^Redis is still loading its data from disk \(LOADING [\d.]+ %\)\. Wait/;
  await node.loggedLine(({ reason }) => isLoading.test(String(reason)));
  await checkWaiting(t, node);
  await loaded;
  await checkServing(t, node);
});

t.test("a node waits while its Sentinels report no primary", async (t) => {
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

t.test("a node waits for a Redis Cluster whose servers are down", async (t) => {
  const { url, primaries } = await startRedisCluster(t);
  await Promise.all(primaries.map((primary) => primary.stop()));
  const node = await startNode(t, url);
  await node.logged(WAITING);
  await checkWaiting(t, node);
  await Promise.all(primaries.map((primary) => primary.restart()));
  await checkServing(t, node);
});

t.test("after a node has waited for Redis, it waits for a running migration", async (t) => {
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
  t.ok(await waiting.logged("The node waits until its data has been migrated"));
  t.match(await (await waiting.call("/migrate/result")).json(), { status: "running" });
  waiting.child.kill("SIGTERM");
  t.equal((await waiting.exit).code, 0);
});

t.test("a node that waits for its store exits with 0 at once after a signal", async (t) => {
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

t.test("a node that has waited for its store up to the time limit exits with 1", async (t) => {
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
