// Listeners of a real node: TLS on each listener, one listener for API and clients if their
// addresses are equal, and the calls that each port answers.

import { once } from "node:events";
import { readFileSync } from "node:fs";
import { request as plainRequest } from "node:http";
import { request } from "node:https";
import { text } from "node:stream/consumers";
import { fileURLToPath } from "node:url";
import type { Test } from "tap";
import { WebSocket } from "ws";
import { ConfigError } from "../../src/config/errors.ts";
import { openNative } from "../support/native-client.ts";
import { NativeClient } from "../support/native-session.ts";
import { freePort } from "../support/redis.ts";
import { t } from "../support/suite.ts";
import { codeOf, person, startWorld, TIMEOUT_MS } from "./world.ts";

const file = (name: string) => fileURLToPath(new URL(`../support/tls/${name}`, import.meta.url));
const certFile = file("cert.pem");
const ca = readFileSync(certFile);

const API_TLS = {
  JINDOU_API_TLS_CERT_FILE: certFile,
  JINDOU_API_TLS_KEY_FILE: file("key.pem"),
};
const CLIENT_TLS = {
  JINDOU_CLIENT_TLS_CERT_FILE: certFile,
  JINDOU_CLIENT_TLS_KEY_FILE: file("key.pem"),
};

/** POSTs JSON over HTTPS. Returns the parsed body. */
async function securePost(port: number, path: string, body: unknown) {
  const method = "POST";
  const call = request({ host: "127.0.0.1", port, path, method, ca });
  call.end(JSON.stringify(body));
  const [response] = await once(call, "response");
  return JSON.parse(await text(response));
}

async function secureClient(t: Test, port: number, uid: string) {
  const socket = new WebSocket(`wss://127.0.0.1:${port}/`, { ca });
  const token = `token-${uid}`;
  const client = new NativeClient(socket, {
    uid,
    token,
    timeoutMs: TIMEOUT_MS,
  });
  t.teardown(() => client.kill());
  await once(socket, "open");
  await client.connect();
  return client;
}

const tokenBody = (uid: string) => ({
  uid,
  token: `token-${uid}`,
  device_flag: 0,
});

// Covers [feature: TLS]
t.test("the API can be served over HTTPS while clients connect without TLS", async (t) => {
  const world = await startWorld(t, API_TLS);
  const path = "/user/token";
  const body = await securePost(world.apiPort, path, tokenBody("alice"));
  t.same(body, { status: "ok" });
  await t.rejects(world.call("/healthz"), "plain HTTP is refused");
  const client = await world.connect(t, "alice");
  t.equal((await client.ping()).kind, "pong");
});

// Covers [feature: TLS]
t.test("clients can be served over wss while the API uses plain HTTP", async (t) => {
  const world = await startWorld(t, CLIENT_TLS);
  await world.register("alice");
  const client = await secureClient(t, world.clientPort, "alice");
  await world.send("bob", person("alice"), "hello");
  t.equal((await client.nextMessage()).fromUid, "bob");
  const plain = world.connect(t, "alice");
  t.match(await codeOf(plain), /^closed_/);
});

// Covers [feature: One listener]
t.test("one listener serves the API and clients if api.listen equals client.listen", async (t) => {
  const listen = `127.0.0.1:${await freePort()}`;
  const world = await startWorld(t, {
    JINDOU_API_LISTEN: listen,
    JINDOU_CLIENT_LISTEN: listen,
  });
  t.equal(world.apiPort, world.clientPort);
  const client = await world.join(t, "alice");
  await world.send("bob", person("alice"), "hello");
  t.equal((await client.nextMessage()).fromUid, "bob");
  t.equal((await world.call("/nothing")).status, 404);
});

// Covers [feature: One listener; feature: TLS]
t.test(
  "one listener serves HTTPS and wss if api.listen equals client.listen and the TLS settings are equal",
  async (t) => {
    const listen = `127.0.0.1:${await freePort()}`;
    const world = await startWorld(t, {
      ...API_TLS,
      ...CLIENT_TLS,
      JINDOU_API_LISTEN: listen,
      JINDOU_CLIENT_LISTEN: listen,
    });
    await securePost(world.apiPort, "/user/token", tokenBody("alice"));
    const client = await secureClient(t, world.apiPort, "alice");
    t.equal((await client.ping()).kind, "pong");
  },
);

// Covers [feature: One listener; feature: TLS]
t.test(
  "a node does not start if its listeners share an address but have different TLS settings, or if a certificate has no key",
  async (t) => {
    const listen = "127.0.0.1:5999";
    const both = {
      JINDOU_API_LISTEN: listen,
      JINDOU_CLIENT_LISTEN: listen,
    };
    const half = { JINDOU_API_TLS_CERT_FILE: certFile };
    for (const settings of [{ ...both, ...API_TLS }, half])
      await t.rejects(startWorld(t, settings), ConfigError);
  },
);

// Covers [feature: Client sockets]
t.test(
  "if api.listen and client.listen differ, the client port rejects control-plane calls and the API port rejects socket upgrades",
  async (t) => {
    const world = await startWorld(t);
    const url = `http://127.0.0.1:${world.clientPort}/user/onlinestatus`;
    const onClients = await fetch(url, { method: "POST", body: "[]" });
    t.equal(onClients.status, 426);
    await onClients.arrayBuffer();
    const onApi = openNative(t, { port: world.apiPort, uid: "alice" });
    t.match(await codeOf(onApi), /^http_4/);
  },
);

t.test(
  "unfinished calls from clients do not use up the memory for the bodies of backend calls",
  async (t) => {
    const world = await startWorld(t, {
      JINDOU_API_MAX_PENDING_BODY_BYTES: "1048576",
      JINDOU_API_MAX_BODY_BYTES: "262144",
      JINDOU_LOG_LEVEL: "silent",
    });
    await world.register("alice");
    const { id } = await world.newGroup(["alice"]);
    /** Sends half of a body. */
    const begin = (port: number, path: string, bytes: number, headers = {}) => {
      const call = plainRequest({
        ...{ host: "127.0.0.1", port, path, method: "POST", agent: false },
        headers: { "content-type": "application/json", "content-length": bytes, ...headers },
      });
      call.on("error", () => {}); // the node closes some of the calls
      t.teardown(() => call.destroy());
      call.write(" ".repeat(bytes / 2));
      return { call, replied: once(call, "response") };
    };
    const path = `/v1/stream/channel/2/${id}/s1`;
    const caller = { "x-uid": "alice", "x-token": "token-alice", "x-device-flag": "0" };
    const calls = Array.from({ length: 24 }, () => begin(world.clientPort, path, 120_000, caller));
    for (const { replied } of calls) replied.catch(() => {});
    const [refusal] = await Promise.any(calls.map(({ replied }) => replied));
    t.equal(refusal.statusCode, 503, "the memory for bodies of clients is used up");

    const bytes = 240_000;
    const { call, replied } = begin(world.apiPort, "/user/onlinestatus", bytes);
    t.match(await world.call("/healthz"), { status: 200 });
    call.end('["alice"]'.padEnd(bytes / 2));
    const [reply] = await replied;
    t.equal(reply.statusCode, 200, "a call of a backend is served");
  },
);
