// Limits of sockets over real connections: how many are accepted, and that a slot is released in
// every way a call may end. All peers have the same address unless a test chooses another one.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { text as readAll } from "node:stream/consumers";
import type { Test } from "tap";
import type { SocketLimits } from "../../src/transport/socket-limits.ts";
import type { HttpReply, HttpRoute } from "../../src/transport/types.ts";
import { compiledUrl, tieToParent } from "../support/child.ts";
import { t } from "../support/suite.ts";
import {
  type Client,
  DRIVER,
  HOST,
  httpEndpoint,
  IS_PORTABLE,
  openClient,
  RawClient,
  socketEndpoint,
  socketLimits,
  startListener,
  text,
  until,
} from "./support.ts";

const LIMIT = 8;
/** Number of calls, higher than the limit. */
const MANY = 24;

/** Returns routes that check the header `token`, one of them asynchronously. */
const routesWith = (handle: HttpRoute["handle"], refusal: HttpReply): readonly HttpRoute[] => {
  const verdict = (token: string | undefined) => (token === "right" ? undefined : refusal);
  const common = { method: "POST", headers: ["token"], handle } as const;
  return [
    {
      ...{ ...common, path: "/now" },
      admit: ({ headers }) => verdict(headers.token),
    },
    {
      ...{ ...common, path: "/later" },
      admit: async ({ headers: { token } }) => {
        await new Promise((resolve) => setImmediate(resolve));
        return verdict(token);
      },
    },
  ];
};

async function serve(t: Test, routes: readonly HttpRoute[]): Promise<number> {
  const limits = socketLimits({ maxUnauthenticatedPerAddress: LIMIT });
  const http = httpEndpoint(routes);
  const { port } = await startListener(t, { http, limits });
  return port;
}

const head = (line: string, token: string, bytes = 2) =>
  `${line} HTTP/1.1\r\nhost: x\r\ntoken: ${token}\r\ncontent-length: ${bytes}\r\n\r\n`;

/**
 * Writes each piece in its own packet. Returns the status, or `""` if the connection was closed
 * without a reply.
 */
async function ask(t: Test, port: number, pieces: readonly string[]): Promise<string> {
  const client = new RawClient(t, port);
  for (const piece of pieces) {
    client.write(piece);
    await new Promise((resolve) => setImmediate(resolve));
  }
  await until(() => client.isClosed || client.text.includes("\r\n\r\n"));
  client.socket.destroy();
  return client.text.slice("HTTP/1.1 ".length, "HTTP/1.1 200".length);
}

const ok = () => text("ok");

for (const [name, status, pieces] of [
  ["sent in one piece", 401, [`${head("POST /now", "wrong")}{}`]],
  ["sent in two pieces", 401, [head("POST /now", "wrong"), "{}"]],
  ["after an asynchronous credential check", 401, [head("POST /later", "wrong"), "{}"]],
  ["answered with 204", 204, [`${head("POST /now", "wrong", 0)}`]],
  ["with HEAD", 405, ["HEAD /now HTTP/1.1\r\nhost: x\r\n\r\n"]],
  ["to an unknown path", 404, [`${head("POST /none", "wrong")}{}`]],
  ["with an ambiguous head", 400, ["GET /now HTTP/1.1\r\nhost: a b\r\n\r\n"]],
] as const)
  t.test(`refused calls ${name} do not block their address`, async (t) => {
    const refusal = status === 204 ? { status, body: "" } : text("no", 401);
    const port = await serve(t, routesWith(ok, refusal));
    for (let n = 0; n < MANY; n++)
      t.equal(await ask(t, port, pieces), `${status}`, `call ${n} is refused with ${status}`);
    const right = [`${head("POST /now", "right")}{}`];
    t.equal(await ask(t, port, right), "200", "the correct token is accepted");
  });

t.test(
  "connections that stay open after a HEAD call use at most half of their address's limit on calls without a credential",
  async (t) => {
    const route = { method: "GET", path: "/public", isPublic: true, handle: ok } as const;
    const port = await serve(t, [route, ...routesWith(ok, text("no", 401))]);
    const clients: RawClient[] = [];
    for (let n = 0; n < MANY; n++) {
      const client = new RawClient(t, port);
      clients.push(client);
      client.write("HEAD /public HTTP/1.1\r\nhost: x\r\n\r\n");
      await client.has("\r\n\r\n");
      t.match(client.text, /^HTTP\/1.1 200 /);
    }
    for (const client of clients.slice(LIMIT / 2)) await client.closed();
    if (!IS_PORTABLE)
      t.notOk(
        clients.slice(0, LIMIT / 2).some(({ isClosed }) => isClosed),
        "the first connections are kept",
      );
    t.equal(
      await ask(t, port, [head("POST /now", "wrong"), "{}"]),
      "401",
      "other calls are served",
    );
  },
);

t.test("malformed handshakes do not block their address", async (t) => {
  const limits = socketLimits({ maxUnauthenticatedPerAddress: LIMIT });
  const { endpoint } = socketEndpoint();
  const listenerSpec = { http: httpEndpoint([]), sockets: endpoint, limits };
  const { port } = await startListener(t, listenerSpec);
  const upgrade =
    "GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
  for (let n = 0; n < MANY; n++)
    t.equal(await ask(t, port, [upgrade]), "400", `handshake ${n} is refused with 400`);
});

t.test("a refused call is answered before the client has sent the whole body", async (t) => {
  const port = await serve(t, routesWith(ok, text("no", 401)));
  const half = new RawClient(t, port);
  half.write(`${head("POST /now", "wrong", 1000)}{`);
  await half.has("connection: close");
  t.match(half.text, /^HTTP\/1.1 401 /);
});

for (const path of ["/now", "/later"])
  t.test(
    `authenticated uploads to ${path} do not count against the limit of their address`,
    async (t) => {
      const answers: ((reply: HttpReply) => void)[] = [];
      const slow = () => new Promise<HttpReply>((resolve) => answers.push(resolve));
      const port = await serve(t, routesWith(slow, text("no", 401)));
      const clients: RawClient[] = [];
      while (clients.length < MANY) {
        const client = new RawClient(t, port);
        clients.push(client);
        client.write(`${head(`POST ${path}`, "right")}{`);
        // Puts the next byte into a packet of its own.
        await new Promise((resolve) => setTimeout(resolve, 2));
        client.write("}");
        await until(() => client.isClosed || answers.length === clients.length);
      }
      t.equal(answers.length, MANY, "all uploads reached the handler");
      for (const answer of answers) answer(text("ok"));
      for (const client of clients) await client.has("ok");
    },
  );

t.test(
  "calls that need no credential count towards the limit of their address until they are answered",
  async (t) => {
    const answers: ((reply: HttpReply) => void)[] = [];
    const handle = () => new Promise<HttpReply>((resolve) => answers.push(resolve));
    const port = await serve(t, [{ method: "POST", path: "/login", isPublic: true, handle }]);
    const clients = Array.from({ length: MANY }, () => new RawClient(t, port));
    for (const client of clients) client.write(`${head("POST /login", "")}{}`);
    await until(() => answers.length + clients.filter((one) => one.isClosed).length === MANY);
    t.equal(answers.length, LIMIT);
    for (const answer of answers) answer(text("ok"));
    await until(() => clients.every((one) => one.isClosed));
    t.equal(clients.filter((one) => one.text.includes("ok")).length, LIMIT);
  },
);

t.test(
  "a body is limited by its route's or its endpoint's limit, whichever is lower",
  async (t) => {
    const common = { method: "POST", handle: ok } as const;
    const port = await serve(t, [
      { ...common, path: "/small", maxBodyBytes: 10 },
      { ...common, path: "/large", maxBodyBytes: 1_000_000 },
    ]);
    const sized = (path: string, bytes: number) => [
      head(`POST ${path}`, "", bytes) + "x".repeat(bytes),
    ];
    const chunked =
      "POST /small HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nb\r\n12345678901\r\n";
    t.equal(await ask(t, port, sized("/small", 10)), "200");
    t.equal(await ask(t, port, sized("/small", 11)), "413");
    t.equal(await ask(t, port, [chunked]), "413");
    t.equal(await ask(t, port, sized("/large", 1000)), "200");
    t.equal(await ask(t, port, sized("/large", 1001)), "413");
  },
);

t.test(
  "a reply after an asynchronous credential check is written in one corked write",
  async (t) => {
    const url = (file: string) =>
      JSON.stringify(compiledUrl(new URL(`../../src/transport/${file}.ts`, import.meta.url)));
    const source = `
    import { once } from "node:events";
    import { connect } from "node:net";
    import { createListener } from ${url("listener")};
    import { chooseDriver } from ${url("drivers")};
    import { BodyBudget } from ${url("http-body")};
    import { SocketLimits } from ${url("socket-limits")};
    const limits = new SocketLimits({ capacity: () => 100, maxUnauthenticatedPerAddress: 10, reserve: { start() {}, stop() {} }, onRefused() {} });
    let letIn;
    const admit = () => new Promise((resolve) => { letIn = resolve; });
    const handle = () => ({ status: 200, headers: { "x-a": "b" }, body: "ok" });
    const routes = [{ method: "POST", path: "/", admit, handle }];
    const { driver } = await chooseDriver({ driver: "${DRIVER.name}", maxHeadBytes: 16384 });
    const listener = createListener({ driver, limits, trustedProxies: [], spareSockets: 0, bodies: new BodyBudget(1000), host: "${HOST}", port: 0, tls: undefined, onError() {},
      http: { routes, headers: [], maxBodyBytes: 10 } });
    const client = connect(await listener.start(), "${HOST}");
    client.write("POST / HTTP/1.1\\r\\nhost: x\\r\\ncontent-length: 2\\r\\n\\r\\n{}");
    while (letIn === undefined) await new Promise((resolve) => setTimeout(resolve, 1));
    await new Promise((resolve) => setTimeout(resolve, 1));
    letIn();
    const [answer] = await once(client, "data");
    process.stdout.write(answer);
    client.destroy();
    listener.close();
  `;
    const args = ["--input-type=module", "--eval", source];
    const child = spawn(...tieToParent(process.execPath, args));
    const outputs = Promise.all([readAll(child.stdout), readAll(child.stderr)]);
    await once(child, "close");
    const [stdout, stderr] = await outputs;
    t.match(stdout, /^HTTP\/1.1 200 OK/);
    t.equal(stderr, "", "the library warns about uncorked writes");
  },
);

t.test(
  "sockets beyond the maximum are closed, and the client listener leaves an eighth of the sockets to the API listener",
  async (t) => {
    const reasons: string[] = [];
    const limits = socketLimits({
      capacity: () => 16,
      onRefused: (reason) => reasons.push(reason),
    });
    const http = httpEndpoint([{ method: "GET", path: "/", handle: ok }]);
    const client = await startListener(t, { http, limits, spareSockets: 5 });
    const api = await startListener(t, { http, limits });
    const fill = async (port: number, count: number) => {
      const before = limits.open;
      const clients = Array.from({ length: count }, () => new RawClient(t, port));
      await until(() => limits.open === before + count);
      return clients;
    };
    const first = await fill(client.port, 14);
    const surplus = new RawClient(t, client.port);
    await surplus.closed();
    t.same(reasons, ["max"], "an eighth of the sockets is left for the other listener");
    await fill(api.port, 2);
    const last = new RawClient(t, api.port);
    await last.closed();
    t.same(reasons, ["max", "max"]);
    first[0]?.socket.destroy();
    await until(() => limits.open === 15);
    const call = ["GET / HTTP/1.1\r\nhost: x\r\n\r\n"];
    t.equal(await ask(t, api.port, call), "200", "a new socket is accepted after one closed");
  },
);

t.test(
  "an address cannot open further silent connections by sending requests on another connection",
  { skip: IS_PORTABLE ? false : "uWebSockets.js does not report the first request" },
  async (t) => {
    const limits = socketLimits({ maxUnauthenticatedPerAddress: 2, capacity: () => 8 });
    const http = httpEndpoint([{ method: "GET", path: "/", handle: ok }]);
    const { port } = await startListener(t, { http, limits });
    const call = "GET / HTTP/1.1\r\nhost: x\r\n\r\n";
    const open = async (count: number) => {
      const before = limits.open;
      const clients = Array.from({ length: count }, () => new RawClient(t, port));
      await until(() => limits.open === before + count);
      return clients;
    };
    const [busy] = await open(1);
    busy?.write(call);
    await busy?.has("ok");
    const silent = await open(6); // three quarters of the capacity
    for (let n = 2; n < 8; n++) {
      busy?.write(call);
      await until(() => busy?.text.split("ok").length === n + 1);
    }
    const refused = new RawClient(t, port);
    await refused.closed();
    silent[0]?.write(call);
    await silent[0]?.has("ok");
    t.equal(await ask(t, port, [call]), "200", "a connection that sends a request is not silent");
  },
);

// --- Silent sockets ------------------------------------------------------------------------------

const SILENT_MS = 3000;

/** Starts a listener with the limit `LIMIT` for unauthenticated client sockets per address. */
async function serveSockets(t: Test) {
  const displaced: string[] = [];
  const refused: string[] = [];
  const limits = socketLimits({
    ...{ maxUnauthenticatedPerAddress: LIMIT, capacity: () => 400 },
    onDisplaced: (address) => displaced.push(address),
    onRefused: (reason) => refused.push(reason),
  });
  const { seen, endpoint } = socketEndpoint({
    received: ({ connection }, data) => {
      if (data === "right") connection.authenticated("alice");
    },
  });
  const { port } = await startListener(t, { sockets: endpoint, limits });
  return { port, seen, displaced, refused };
}

async function openMany(t: Test, port: number, count: number): Promise<readonly Client[]> {
  const clients: Client[] = [];
  while (clients.length < count) clients.push(await openClient(t, port));
  return clients;
}

const wait = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));
const isClosed = ({ closed }: Client) => closed.length > 0;

t.test(
  "silent client sockets up to the limit of their address stay open, and one further socket closes the oldest socket",
  async (t) => {
    const { port, displaced, refused } = await serveSockets(t);
    const startMs = performance.now();
    const [oldest, ...others] = await openMany(t, port, LIMIT);
    if (oldest === undefined) throw new Error("the client is missing");
    await wait(SILENT_MS + 1000);
    t.notOk(isClosed(oldest), "the limit is not exceeded");
    const [newest] = await openMany(t, port, 1);
    await until(() => isClosed(oldest));
    t.ok(performance.now() - startMs > SILENT_MS);
    await wait(SILENT_MS + 1000);
    t.same(displaced, ["127.0.0.1"]);
    t.equal(others.filter(isClosed).length, 0, "the other sockets stay open");
    t.notOk(newest === undefined || isClosed(newest), "the newest socket stays open");
    t.same(refused, []);
  },
);

t.test(
  "client sockets over the limit of their address that sent something within 3 seconds are not closed",
  async (t) => {
    const { port, displaced, refused } = await serveSockets(t);
    const clients = await openMany(t, port, 2 * LIMIT);
    const [silent, ...speaking] = clients.slice(LIMIT / 2);
    for (const { socket } of [...clients.slice(0, LIMIT / 2), ...speaking]) socket.send("wrong");
    await wait(SILENT_MS + 1000);
    t.equal(clients.filter(isClosed).length, 1);
    t.ok(silent !== undefined && isClosed(silent), "the silent socket is closed to make room");
    t.same(displaced, ["127.0.0.1"]);
    t.same(refused, []);
  },
);

t.test("authenticated client sockets do not count against the address's limit", async (t) => {
  const { port, displaced } = await serveSockets(t);
  const authenticated = await openMany(t, port, 2 * LIMIT);
  for (const { socket } of authenticated) socket.send("right");
  const silent = await openMany(t, port, LIMIT);
  await wait(SILENT_MS + 1000);
  t.equal([...authenticated, ...silent].filter(isClosed).length, 0);
  t.same(displaced, []);
});

t.test("time during which the event loop is stalled does not count as silence", async (t) => {
  const { port, displaced } = await serveSockets(t);
  const clients = await openMany(t, port, 3 * LIMIT);
  for (const { socket } of clients) socket.send("right");
  // The node and the clients of this test share the loop, so the frames are read after the stall.
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, SILENT_MS + 1000);
  await wait(1000);
  t.equal(clients.filter(isClosed).length, 0);
  t.same(displaced, []);
});

t.test(
  "silent connections of one address may use at most three quarters of all sockets",
  { skip: process.platform === "linux" ? false : "needs the loopback addresses of Linux" },
  async (t) => {
    const reasons: string[] = [];
    const limits = socketLimits({
      ...{ maxUnauthenticatedPerAddress: LIMIT, capacity: () => 40 },
      onRefused: (reason) => reasons.push(reason),
    });
    const routes = [{ method: "GET", path: "/", handle: ok }] as const;
    const { port } = await startListener(t, { http: httpEndpoint(routes), limits });
    const silent = Array.from({ length: 30 }, () => new RawClient(t, port, HOST, "127.0.0.2"));
    await until(() => limits.open === 30);
    t.same(reasons, []);
    const surplus = new RawClient(t, port, HOST, "127.0.0.2");
    await surplus.closed();
    t.same(reasons, ["address"]);
    t.equal(silent.filter(({ isClosed }) => isClosed).length, 0);
    const call = ["GET / HTTP/1.1\r\nhost: x\r\n\r\n"];
    t.equal(await ask(t, port, call), "200", "another address is served");
    silent[0]?.socket.destroy();
    await until(() => limits.open === 29);
    const next = new RawClient(t, port, HOST, "127.0.0.2");
    next.write(call[0] ?? "");
    await next.has("ok");
    t.same(reasons, ["address"], "a closed connection leaves its place to a new one");
  },
);

// Calls the limits directly, because a test cannot connect from 65,536 addresses.
t.test(
  "a socket from a new address is refused while the node counts the sockets of 65,536 other addresses",
  (t) => {
    const reasons: string[] = [];
    const limits: SocketLimits = socketLimits({
      maxUnauthenticatedPerAddress: LIMIT,
      onRefused: (reason) => reasons.push(reason),
    });
    limits.start();
    t.teardown(() => limits.stop());
    const maxAddresses = 65_536;
    const releases = Array.from({ length: maxAddresses }, (_, n) => limits.accepted(`a${n}`, 0));
    t.ok(releases.every((one) => one !== undefined));
    t.ok(limits.isWatching, "the limits ask to be notified of requests");
    t.equal(limits.accepted("new", 0), undefined);
    t.same(reasons, ["max"]);
    t.not(limits.accepted("a1", 0), undefined, "a counted address may open another socket");
    limits.requested("a0");
    t.not(limits.accepted("new", 0), undefined, "a new address is accepted after one was removed");
    t.equal(limits.hold("newer"), undefined);
    releases[2]?.();
    t.not(limits.hold("newer"), undefined);
    t.end();
  },
);

// Calls the limits directly, because a test cannot connect from 65,536 addresses.
t.test("refused calls from many addresses do not keep a new address from connecting", (t) => {
  const limits: SocketLimits = socketLimits({ maxUnauthenticatedPerAddress: LIMIT });
  limits.start();
  t.teardown(() => limits.stop());
  t.ok(limits.allowLateClose("a0"), "a connection may close late while few addresses are counted");
  for (let n = 1; n < 65_536; n++) limits.allowLateClose(`a${n}`);
  t.notOk(limits.allowLateClose("a0"), "no connection may close late now");
  t.not(limits.accepted("new", 0), undefined);
  t.end();
});
