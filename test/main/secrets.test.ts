// Tests that no secret of the configuration reaches the log, standard error or a reply, whichever
// connection or file fails. The secrets are planted in real servers and files.

import { chmodSync, writeFileSync } from "node:fs";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { Redis } from "ioredis";
import { exportJWK, generateKeyPair } from "jose";
import t, { type Test } from "tap";
import { tempFolder, textPayload } from "../support/broker.ts";
import { mint } from "../support/mint.ts";
import { connectNative } from "../support/native-client.ts";
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

t.test("a migration that fails because of a wrong Redis password shows no secret", async (t) => {
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
        headers: { token: "hunter2-token", "content-type": "application/json" },
        body: JSON.stringify({
          ...{ from_uid: "alice", channel_id: "bob", channel_type: 1 },
          payload: Buffer.from('{"type":1,"content":"x"}').toString("base64"),
        }),
      });
    t.equal((await send()).status, 200); // opens the connection that waits for replicas
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
  "the log line about a Redis that cannot be used has the reason as a sentence, and no error object",
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

/** A secret that signs requests, which must be Base64. */
const SIGNING_SECRET = "whsec_hunter2hunter2hunter2hunter2hunt";
const KEYS = "/keys";
const CONNECT = "/connect";
const SEND = "/send";
const RECEIVER = "/receiver";

/** Returns a text with every secret that the request contains. */
function echoOf({ url, headers }: IncomingMessage): string {
  return `${url} ${headers["x-gateway"]} ${headers.authorization}`;
}

/** Replies that a node cannot use. They repeat the secrets of the request. */
const FAILURES: readonly ((request: IncomingMessage, response: ServerResponse) => void)[] = [
  (request, response) => response.writeHead(500, `no ${request.url}`).end(echoOf(request)),
  (request, response) => response.end(echoOf(request)),
  (request, response) => response.end(JSON.stringify({ allow: echoOf(request), keys: 1 })),
  (request, response) => response.end(JSON.stringify({ allow: true, payload: echoOf(request) })),
  (request, response) => response.writeHead(302, { location: echoOf(request) }).end(),
  (request) => request.socket.destroy(),
];

/**
 * Starts a backend with hooks, keys and a webhook receiver. After `fail`, it sends only failures.
 */
async function startBackend(t: Test, keys: object) {
  const failed = new Map<string, number>();
  let isFailing = false;
  const server = createServer((request, response) => {
    const [path = ""] = (request.url ?? "").split("?");
    request.resume();
    if (!isFailing)
      return void response.end(JSON.stringify(path === KEYS ? keys : { allow: true }));
    const number = failed.get(path) ?? 0;
    failed.set(path, number + 1);
    FAILURES[number % FAILURES.length]?.(request, response);
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.teardown(() => {
    server.closeAllConnections();
    server.close();
  });
  const { port } = server.address() as AddressInfo; // it listens on a port
  return {
    url: (path: string) => `http://127.0.0.1:${port}${path}?key=hunter2-query`,
    /** Number of failed requests by path. */
    failed,
    fail() {
      isFailing = true;
    },
  };
}

async function until(condition: () => boolean): Promise<void> {
  while (!condition()) await pause(20);
}

t.test(
  "a running node reveals no secret while its hooks, webhook endpoints, JWKS endpoint and Sentinels fail",
  async (t) => {
    const { publicKey, privateKey } = await generateKeyPair("ES256", { extractable: true });
    const jwk = { ...(await exportJWK(publicKey)), alg: "ES256", kid: "known" };
    const backend = await startBackend(t, { keys: [jwk] });
    const sentinels = await startSentinels(t, 0);
    const sentinel = new Redis(sentinels.url, { password: sentinels.password });
    t.teardown(() => sentinel.disconnect());
    await sentinel.call("ACL", "SETUSER", "default", `>${SECRET}`);
    const headers = JSON.stringify([
      { name: "x-gateway", value: `${SECRET}-gateway` },
      { name: "authorization", value: "Bearer hunter2-bearer" },
    ]);
    const node = startNode(t, {
      JINDOU_REDIS_URL: sentinels.url,
      JINDOU_REDIS_SENTINEL_NAME: sentinels.name,
      JINDOU_REDIS_SENTINEL_PASSWORD: SECRET,
      JINDOU_AUTH_CLIENTS: "jwt",
      JINDOU_AUTH_JWT_ALGORITHMS: "ES256",
      JINDOU_AUTH_JWT_ISSUER: "https://id.example/",
      JINDOU_AUTH_JWT_JWKS_URL: backend.url(KEYS),
      JINDOU_HOOKS_CONNECT_URL: backend.url(CONNECT),
      JINDOU_HOOKS_CONNECT_SECRET: SIGNING_SECRET,
      JINDOU_HOOKS_CONNECT_STATIC_HEADERS: headers,
      JINDOU_HOOKS_SEND_URL: backend.url(SEND),
      JINDOU_HOOKS_SEND_SECRET: SIGNING_SECRET,
      JINDOU_HOOKS_SEND_STATIC_HEADERS: headers,
      JINDOU_WEBHOOKS_ALLOW_NETWORKS: "127.0.0.0/8",
      JINDOU_WEBHOOKS_ENDPOINTS: JSON.stringify([
        { id: "fixed", url: backend.url(RECEIVER), secret: SIGNING_SECRET },
      ]),
    });
    const { apiPort, clientPort } = await node.logged(READY);
    const call = async (path: string, body?: object) => {
      const reply = await fetch(`http://127.0.0.1:${apiPort}${path}`, {
        headers: { token: "hunter2-token", "content-type": "application/json" },
        ...(body && { method: "POST", body: JSON.stringify(body) }),
      });
      return { status: reply.status, text: await reply.text() };
    };
    await call("/events/feed", { feed: "on" });
    const created = await call("/webhooks", { url: backend.url(`${RECEIVER}/created`) });
    t.equal(created.status, 201, "a webhook was created");
    const { secret } = JSON.parse(created.text);
    const tokens: string[] = [];
    const login = async (uid: string, kid = "known") => {
      const issuer = { alg: "ES256", key: privateKey, kid };
      const token = await mint(issuer, { iss: "https://id.example/", sub: uid });
      tokens.push(token);
      return connectNative(t, { port: Number(clientPort), uid, token });
    };
    const alice = await login("alice");

    backend.fail();
    const replies: string[] = [];
    const settle = async (request: Promise<unknown>) => {
      replies.push(await request.then(() => "success", String));
    };
    for (let count = 0; count < FAILURES.length; count++) {
      await settle(login("bob"));
      await settle(alice.send({ id: "bob", type: 1 }, "hello"));
    }
    await settle(login("bob", "unknown")); // the node reads the keys
    await call("/message/send", {
      ...{ from_uid: "alice", channel_id: "bob", channel_type: 1, payload: textPayload("hi") },
    });
    const paths = [CONNECT, SEND, KEYS, RECEIVER, `${RECEIVER}/created`];
    for (const path of paths) await until(() => (backend.failed.get(path) ?? 0) > 0);

    await sentinel.call("ACL", "SETUSER", "default", "resetpass", ">other");
    await sentinel.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes");
    const primary = sentinels.primary.client();
    for (const type of ["normal", "pubsub"])
      await primary.call("CLIENT", "KILL", "TYPE", type, "SKIPME", "yes");
    t.match(
      await node.loggedLine(({ reason }) => /redis.sentinelPassword/.test(String(reason))),
      { level: "warn" },
      "the node has lost its Sentinels",
    );
    const pages = await Promise.all(
      ["/admin/errors", "/metrics", "/readyz"].map((path) => call(path)),
    );
    t.same(
      pages.map(({ status }) => status),
      [200, 200, 503],
    );
    node.child.kill("SIGTERM");
    const exit = await node.exit;
    checkNoLeak(t, exit, "failing services");
    const texts = [exit.stdout, exit.stderr, ...replies, ...pages.map(({ text }) => text)].join();
    t.match(replies[1], /did not respond as expected/, "a hook failed");
    t.match(texts, /A hook failed/);
    t.match(texts, /Could not read the JWT issuer's keys/);
    t.notMatch(texts, LEAK, "the replies");
    for (const token of [secret, ...tokens])
      t.notOk(texts.includes(token.replace("whsec_", "")), "no secret of a webhook and no token");
  },
);
