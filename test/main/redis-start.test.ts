// Tests of a node that cannot start on its Redis: it prints one sentence on standard error, exits
// with 1 and changes nothing in Redis.

import t, { type Test } from "tap";
import { freePort, startRedis, startRedisCluster } from "../support/redis.ts";
import { type Exit, nodeSettings, spawnJindou } from "./jindou.ts";

const FORMAT_KEY = "jd:{all}:format";

/** Starts a node on this Redis and waits for its exit. */
function startOn(t: Test, url: string): Promise<Exit> {
  const env = {
    JINDOU_API_LISTEN: "127.0.0.1:0",
    JINDOU_CLIENT_LISTEN: "127.0.0.1:0",
    JINDOU_ADMIN_PASSWORD: "right",
    JINDOU_REDIS_TIMEOUT_MS: "2000",
    JINDOU_REDIS_URL: url,
    JINDOU_START_WAIT_FOR_STORE_S: "0",
  };
  return spawnJindou(t, [], { env }).exit;
}

/** Checks that the node failed with one sentence, which matches `pattern` and shows no password. */
function checkFailure(t: Test, { code, stderr }: Exit, pattern: RegExp): void {
  t.equal(code, 1);
  t.match(stderr, /^jindou: [^\n]+[.!?]\n$/);
  t.match(stderr, pattern);
  t.notMatch(stderr, /hunter2/);
}

t.test("a start without a reachable Redis fails with the network error", async (t) => {
  const url = `redis://:hunter2@127.0.0.1:${await freePort()}`;
  checkFailure(t, await startOn(t, url), /ECONNREFUSED.*redis/);
});

t.test(
  "a start with a wrong Redis password fails with an error that does not show the password",
  async (t) => {
    const { port } = await startRedis(t);
    const url = `redis://nobody:hunter2@127.0.0.1:${port}`;
    checkFailure(t, await startOn(t, url), /WRONGPASS/);
  },
);

t.test("a node does not start on data of a newer version, and does not change it", async (t) => {
  const redis = await startRedis(t);
  const client = redis.client();
  await client.set(FORMAT_KEY, "jindou 99");
  checkFailure(t, await startOn(t, redis.url), /format 99/);
  t.same(await client.keys("*"), [FORMAT_KEY]);
  t.equal(await client.get(FORMAT_KEY), "jindou 99");
});

t.test("a node does not start on data of an older version, and does not change it", async (t) => {
  const redis = await startRedis(t);
  const client = redis.client();
  await client.set(FORMAT_KEY, "jindou 1");
  const exit = await startOn(t, redis.url);
  checkFailure(t, exit, /format 1,.*[Ss]top all nodes.*redis\.prefix/);
  t.same(await client.keys("*"), [FORMAT_KEY]);
  t.equal(await client.get(FORMAT_KEY), "jindou 1");
});

t.test("a node does not start on another program's data, and does not change it", async (t) => {
  const redis = await startRedis(t);
  const client = redis.client();
  await client.set(FORMAT_KEY, "theirs");
  checkFailure(t, await startOn(t, redis.url), /redis\.prefix/);
  t.same(await client.keys("*"), [FORMAT_KEY]);
  await client.del(FORMAT_KEY);
  await client.rpush(FORMAT_KEY, "a list");
  checkFailure(t, await startOn(t, redis.url), /redis\.prefix/);
});

/** Starts a node on a Redis that requires no password, with a password in redis.url. */
async function checkUnneededPassword(
  t: Test,
  url: string,
  settings: Readonly<Record<string, string>> = {},
): Promise<void> {
  const env = {
    ...(await nodeSettings(t, 500)),
    JINDOU_REDIS_URL: url.replaceAll("redis://", "redis://:hunter2@"),
    ...settings,
  };
  const node = spawnJindou(t, [], { env });
  await node.logged("The node is ready");
  node.child.kill("SIGTERM");
  const { stdout, stderr } = await node.exit;
  t.equal(stderr, "", "no library prints on standard error");
  const warnings = stdout
    .trimEnd()
    .split("\n")
    .map((line) => JSON.parse(line))
    .filter(({ level }) => level === "warn")
    // A node whose Redis responds late, as on a busy machine, also logs this line.
    .filter(({ msg }) => msg !== "The node waits for its store");
  t.match(warnings, [{ reason: /^Redis requires no password although.*Set requirepass/ }]);
  t.equal(warnings.length, 1, "one sentence is printed for all connections");
}

t.test("a password that Redis does not require is reported in one sentence", async (t) => {
  await checkUnneededPassword(t, (await startRedis(t)).url);
});

t.test("a password that a Redis Cluster does not require is reported once", async (t) => {
  const { url } = await startRedisCluster(t);
  await checkUnneededPassword(t, url, { JINDOU_REDIS_CLUSTER: "true" });
});

t.test("a Redis user that may not run INFO is reported with one sentence", async (t) => {
  const redis = await startRedis(t);
  const user = ["limited", "on", ">hunter2", "~*", "&*", "+@all", "-info"];
  await redis.client().call("ACL", "SETUSER", ...user);
  const url = `redis://limited:hunter2@127.0.0.1:${redis.port}`;
  checkFailure(t, await startOn(t, url), /INFO/i);
});
