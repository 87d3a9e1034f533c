// Tests that no secret of the configuration reaches the log, standard error or a reply, whichever
// connection or file fails. The secrets are planted in real servers and files.

import { chmodSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import t, { type Test } from "tap";
import { tempFolder } from "../support/broker.ts";
import {
  freePort,
  type RedisServer,
  startRedis,
  startRedisCluster,
  waitForReplication,
} from "../support/redis.ts";
import { startSentinels } from "../support/sentinels.ts";
import { type Exit, type JindouProcess, spawnJindou } from "./jindou.ts";

/** A secret with characters that are escaped in URLs and in JSON. */
const SECRET = 'hunter2/"#secret';
const ENCODED = encodeURIComponent(SECRET);
/** Beginning of every secret. It is the same in each encoding. */
const LEAK = /hunter2/;
const READY = "The node is ready";
const FAILED = /failed|cannot be used|not respond|Could not|rejected/;

function startNode(t: Test, settings: Readonly<Record<string, string>>): JindouProcess {
  const env = {
    JINDOU_API_LISTEN: "127.0.0.1:0",
    JINDOU_CLIENT_LISTEN: "127.0.0.1:0",
    JINDOU_ADMIN_PASSWORD: `${SECRET}-admin`,
    JINDOU_API_TOKEN: "hunter2-token",
    JINDOU_LOG_LEVEL: "trace",
    JINDOU_REDIS_TIMEOUT_MS: "1000",
    JINDOU_START_WAIT_FOR_STORE_S: "0",
    JINDOU_DRAIN_TIMEOUT_MS: "0",
    ...settings,
  };
  return spawnJindou(t, [], { env });
}

const withPassword = (url: string, user = "") =>
  url.replaceAll("redis://", `redis://${user}:${ENCODED}@`);

function checkNoLeak(t: Test, { stdout, stderr }: Exit, what: string): void {
  t.notMatch(stdout, LEAK, `the log of a node with ${what}`);
  t.notMatch(stderr, LEAK, `the standard error of a node with ${what}`);
}

t.test("a start that fails shows no secret", async (t) => {
  const redis = await startRedis(t);
  const renamed = await startRedis(t, ["--rename-command", "AUTH", ""]);
  const sentinels = await startSentinels(t, 0);
  const folder = await tempFolder(t);
  const key = join(folder, "key.pem");
  writeFileSync(key, `not a key ${SECRET}`);
  const starts: Readonly<Record<string, Readonly<Record<string, string>>>> = {
    "a wrong password": { JINDOU_REDIS_URL: withPassword(redis.url, "nobody") },
    "a database that is missing": { JINDOU_REDIS_URL: `${redis.url}/99` },
    "an unreachable Redis": {
      JINDOU_REDIS_URL: withPassword(`redis://127.0.0.1:${await freePort()}`),
    },
    "a Redis whose AUTH was renamed": { JINDOU_REDIS_URL: withPassword(renamed.url, "user") },
    "an address that is not encoded": { JINDOU_REDIS_URL: `redis://:${SECRET}@127.0.0.1` },
    "an address with a query": { JINDOU_REDIS_URL: "redis://u:1?hunter2@127.0.0.1" },
    "a single server that is configured as a Cluster": {
      JINDOU_REDIS_URL: withPassword(redis.url, "nobody"),
      JINDOU_REDIS_CLUSTER: "true",
    },
    "a wrong password of the Sentinels": {
      JINDOU_REDIS_URL: withPassword(sentinels.url),
      JINDOU_REDIS_SENTINEL_NAME: sentinels.name,
      JINDOU_REDIS_SENTINEL_PASSWORD: SECRET,
    },
    "a TLS key that cannot be read": {
      JINDOU_STORE_PATH: folder,
      JINDOU_API_TLS_CERT_FILE: key,
      JINDOU_API_TLS_KEY_FILE: key,
      JINDOU_API_TLS_PASSPHRASE: SECRET,
    },
    "a list of managers that is not valid": {
      JINDOU_MANAGERS: JSON.stringify([{ username: "a", password: SECRET, role: SECRET }]),
    },
    "a password in the URL of a hook": {
      JINDOU_HOOKS_SEND_URL: `https://jindou:${ENCODED}@app.example/hook`,
    },
    "a password in the URL of the issuer's keys": {
      JINDOU_AUTH_CLIENTS: "jwt",
      JINDOU_AUTH_JWT_ALGORITHMS: "ES256",
      JINDOU_AUTH_JWT_JWKS_URL: `https://jindou:${SECRET}@id.example/keys`,
    },
    "a URL with a password and a space": {
      JINDOU_HOOKS_CONNECT_URL: `https://jindou:${ENCODED} @app.example/hook `,
    },
    "a URL with a password that is too long": {
      JINDOU_HOOKS_SEND_URL: `https://jindou:${ENCODED}@app.example/${"x".repeat(2048)}`,
    },
    "a password in the URL of a webhook": {
      JINDOU_WEBHOOKS_ENDPOINTS: JSON.stringify([
        { id: "a", url: `https://jindou:${ENCODED}@app.example/`, secret: `whsec_${SECRET}` },
      ]),
    },
    "managers that are not JSON": { JINDOU_MANAGERS: `[{"password":"${SECRET}` },
  };
  for (const [what, settings] of Object.entries(starts)) {
    const exit = await startNode(t, settings).exit;
    t.not(exit.code, 0, what);
    checkNoLeak(t, exit, what);
  }
  const file = join(folder, "config.json");
  writeFileSync(file, `{"redis":{"url":"${withPassword(redis.url)}",}}`);
  chmodSync(file, 0o600);
  const exit = await spawnJindou(t, ["start", "--config", file]).exit;
  t.equal(exit.code, 2);
  checkNoLeak(t, exit, "a configuration file that is not JSON");
});

t.test("a migration that fails shows no secret", async (t) => {
  const redis = await startRedis(t);
  const from = await tempFolder(t);
  const url = withPassword(redis.url, "nobody");
  const exit = await spawnJindou(t, ["migrate", `--from=${from}`, `--to=${url}`]).exit;
  t.equal(exit.code, 1);
  checkNoLeak(t, exit, "a wrong password");
});

/** Changes the password of the node's user, and ends all connections of nodes. */
async function rotatePassword(servers: readonly RedisServer[]): Promise<void> {
  for (const server of servers) {
    const client = server.client();
    await client.call("ACL", "SETUSER", "node", "resetpass", ">other");
    for (const type of ["normal", "pubsub"])
      await client.call("CLIENT", "KILL", "TYPE", type, "SKIPME", "yes");
    client.disconnect();
  }
}

async function addUser(servers: readonly RedisServer[]): Promise<void> {
  for (const server of servers) {
    const client = server.client();
    await client.call("ACL", "SETUSER", "node", "on", `>${SECRET}`, "~*", "&*", "+@all");
    client.disconnect();
  }
}

t.test("a running node logs no secret after its password in Redis was changed", async (t) => {
  const single = await startRedis(t);
  const replica = await startRedis(t, ["--replicaof", `127.0.0.1 ${single.port}`]);
  await waitForReplication(single.client(), replica.client());
  const cluster = await startRedisCluster(t);
  const worlds = [
    { servers: [single], url: `${single.url}/3`, settings: { JINDOU_REDIS_MIN_REPLICAS: "1" } },
    { servers: cluster.primaries, url: cluster.url, settings: {} },
  ];
  for (const { servers, url, settings } of worlds) {
    await addUser(servers);
    const node = startNode(t, { ...settings, JINDOU_REDIS_URL: withPassword(url, "node") });
    const { apiPort } = await node.logged(READY);
    const address = `http://127.0.0.1:${apiPort}`;
    const send = () =>
      fetch(`${address}/message/send`, {
        method: "POST",
        headers: { token: "hunter2-token" },
        body: JSON.stringify({
          ...{ from_uid: "alice", channel_id: "bob", channel_type: 1 },
          payload: Buffer.from('{"type":1,"content":"x"}').toString("base64"),
        }),
      });
    await send(); // opens the connection that waits for replicas
    await rotatePassword(servers);
    let output = "";
    node.child.stdout?.on("data", (text: string) => {
      output += text;
    });
    while (!/WRONGPASS/.test(output)) {
      const replies = [await send(), await fetch(`${address}/readyz`)];
      for (const reply of replies) t.notMatch(await reply.text(), LEAK);
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
    t.match(output, FAILED);
    const ready = await fetch(`${address}/readyz`);
    t.equal(ready.status, 503);
    t.notMatch(await ready.text(), LEAK);
    node.child.kill("SIGTERM");
    checkNoLeak(t, await node.exit, "a changed password");
  }
});

t.test(
  "the log line about a Redis error contains a sentence with the error code, and no error object",
  async (t) => {
    const redis = await startRedis(t);
    await addUser([redis]);
    const node = startNode(t, { JINDOU_REDIS_URL: withPassword(redis.url, "node") });
    await node.logged(READY);
    await rotatePassword([redis]);
    const line = await node.logged("Redis cannot be used");
    t.match(line.reason, /^Redis rejects the user or the password .*WRONGPASS|closed/);
    t.notOk(line.err);
  },
);
