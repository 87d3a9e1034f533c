// The address of a client as endpoints see it, over real connections: peers that are trusted
// proxies and peers that are not, X-Forwarded-For and the PROXY protocol. All of 127.0.0.0/8 is
// local, so a test can choose the address of its peer.

import type { Test } from "tap";
import type { HttpRoute } from "../../src/transport/types.ts";
import { localProxyHeader, proxyHeader, proxyHeader6 } from "../support/proxy-header.ts";
import { t } from "../support/suite.ts";
import {
  connectionAt,
  httpEndpoint,
  RawClient,
  socketEndpoint,
  socketLimits,
  startListener,
  text,
  until,
} from "./support.ts";

const PROXY = "127.0.0.1";
const STRANGER = "127.0.0.2";
const TRUSTED = [PROXY, "10.0.0.0/8", "fd00::/8"];
const HOST = "127.0.0.1";

const isLinux = process.platform === "linux";
const skip = isLinux ? false : "needs the loopback addresses of Linux";

const routes: readonly HttpRoute[] = [
  { method: "GET", path: "/", handle: ({ remoteAddress }) => text(`<${remoteAddress}>`) },
  { method: "POST", path: "/echo", handle: () => text("ok") },
  {
    method: "GET",
    path: "/later",
    async handle({ remoteAddress }) {
      await new Promise((resolve) => setTimeout(resolve, 20));
      return text(`<${remoteAddress}>`);
    },
  },
  {
    method: "GET",
    path: "/scheme",
    handle: ({ scheme }) => text(`<${scheme}>`),
  },
  {
    method: "GET",
    path: "/stream",
    handle: ({ remoteAddress }) => ({
      ...{ status: 200, headers: {}, filler: "\n" },
      opened(body) {
        body.write(`<${remoteAddress}>`);
        body.end();
      },
      writable() {},
      closed() {},
    }),
  },
];

async function serve(t: Test, trustedProxies: readonly string[]) {
  const { seen, endpoint } = socketEndpoint();
  const { port } = await startListener(t, {
    http: httpEndpoint(routes),
    sockets: endpoint,
    trustedProxies,
  });
  return { port, seen };
}

interface Peer {
  readonly from?: string;
  /** Bytes that precede the request. */
  readonly before?: Buffer;
  readonly forwardedFor?: readonly string[];
}

function request(path: string, { before = Buffer.alloc(0), forwardedFor = [] }: Peer): Buffer {
  const lines = forwardedFor.map((value) => `X-Forwarded-For: ${value}\r\n`).join("");
  return Buffer.concat([
    before,
    Buffer.from(`GET ${path} HTTP/1.1\r\nhost: x\r\n${lines}\r\n`, "latin1"),
  ]);
}

/** Returns the address that the endpoint saw. */
async function addressOf(t: Test, port: number, peer: Peer, path = "/"): Promise<string> {
  const client = new RawClient(t, port, HOST, peer.from ?? PROXY);
  client.write(request(path, peer));
  await until(() => />/.test(client.text) || client.isClosed);
  client.socket.destroy();
  return /<(.*)>/.exec(client.text)?.[1] ?? client.text;
}

const UPGRADE =
  "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

const upgradeRequest = (peer: Peer) =>
  Buffer.from(`${request("/", peer).toString("latin1").slice(0, -2)}${UPGRADE}`, "latin1");

const forged = { forwardedFor: ["9.9.9.9"], before: proxyHeader("8.8.8.8") };

t.test(
  "X-Forwarded-For and PROXY headers of an untrusted peer do not change its address",
  { skip },
  async (t) => {
    for (const trusted of [[], TRUSTED]) {
      const { port, seen } = await serve(t, trusted);
      for (const path of ["/", "/later", "/stream"])
        t.equal(await addressOf(t, port, { ...forged, from: STRANGER }, path), STRANGER, path);
      new RawClient(t, port, HOST, STRANGER).write(upgradeRequest(forged));
      const { connection } = await connectionAt(seen, 0);
      t.equal(connection.remoteAddress, STRANGER, "a client socket");
    }
  },
);

t.test("X-Forwarded-Proto is used only if a trusted proxy sends it", async (t) => {
  const schemeOf = async (trusted: readonly string[], header: string) => {
    const { port } = await serve(t, trusted);
    const client = new RawClient(t, port);
    client.write(`GET /scheme HTTP/1.1\r\nhost: x\r\n${header}\r\n`);
    await until(() => />/.test(client.text));
    return /<(.*)>/.exec(client.text)?.[1];
  };
  t.equal(await schemeOf(TRUSTED, "X-Forwarded-Proto: https\r\n"), "https");
  t.equal(await schemeOf(TRUSTED, "X-Forwarded-Proto: http\r\n"), "http");
  t.equal(await schemeOf(TRUSTED, ""), "http");
  t.equal(await schemeOf([], "X-Forwarded-Proto: https\r\n"), "http");
});

t.test(
  "X-Forwarded-For and PROXY headers do not change a loopback peer's address if no proxy is trusted",
  async (t) => {
    const { port } = await serve(t, []);
    t.equal(await addressOf(t, port, forged), PROXY);
  },
);

for (const [hops, client] of [
  [["203.0.113.7"], "203.0.113.7"],
  [["6.6.6.6, 203.0.113.7"], "203.0.113.7"],
  [["6.6.6.6, 203.0.113.7, 10.1.1.1"], "203.0.113.7"],
  [["6.6.6.6", "203.0.113.7", "10.1.1.1"], "203.0.113.7"],
  [["6.6.6.6 ,203.0.113.7,  10.1.1.1,10.2.2.2 "], "203.0.113.7"],
  [["203.0.113.7:4711"], "203.0.113.7"],
  [["2001:DB8:0:0::7"], "2001:db8::7"],
  [["[2001:db8::7]"], "2001:db8::7"],
  [["[2001:db8::7]:4711, fd00::1"], "2001:db8::7"],
  [["::ffff:203.0.113.7"], "203.0.113.7"],
  [["6.6.6.6, ::ffff:10.1.1.1"], "6.6.6.6"],
  [["203.0.113.7, , 10.1.1.1,"], "203.0.113.7"],
  [["10.3.3.3, 10.1.1.1"], "10.3.3.3"],
  [["6.6.6.6, unknown, 10.1.1.1"], "10.1.1.1"],
  [["6.6.6.6, 300.1.1.1"], PROXY],
  [["6.6.6.6, 1.2.3.4:x"], PROXY],
  [["6.6.6.6, [::1"], PROXY],
  [["6.6.6.6, <script>"], PROXY],
  [[""], PROXY],
  [[], PROXY],
] as const)
  t.test(
    `the client address is ${client} if a trusted proxy sends X-Forwarded-For ${JSON.stringify(hops)}`,
    async (t) => {
      const { port, seen } = await serve(t, TRUSTED);
      const peer = { forwardedFor: hops };
      t.equal(await addressOf(t, port, peer), client);
      t.equal(await addressOf(t, port, peer, "/later"), client);
      new RawClient(t, port).write(upgradeRequest(peer));
      t.equal((await connectionAt(seen, 0)).connection.remoteAddress, client, "a client socket");
    },
  );

t.test("each request on a proxy's connection has its own client address", async (t) => {
  const { port } = await serve(t, TRUSTED);
  const client = new RawClient(t, port);
  client.write(request("/", { forwardedFor: ["203.0.113.1"] }));
  await client.has("<203.0.113.1>");
  client.write(request("/", { forwardedFor: ["203.0.113.2"] }));
  await client.has("<203.0.113.2>");
  client.write(request("/", {}));
  await client.has(`<${PROXY}>`);
});

for (const [name, before, forwardedFor, client] of [
  ["an IPv4 address", proxyHeader("203.0.113.7"), [], "203.0.113.7"],
  ["an IPv6 address", proxyHeader6("20010db8000000000000000000000007"), [], "2001:db8::7"],
  ["an IPv4 address in IPv6", proxyHeader6(`${"0".repeat(20)}ffffcb007107`), [], "203.0.113.7"],
  [
    "a stranger's address, followed by X-Forwarded-For,",
    proxyHeader("203.0.113.7"),
    ["6.6.6.6"],
    "203.0.113.7",
  ],
  [
    "a proxy's address, followed by X-Forwarded-For,",
    proxyHeader("10.1.1.1"),
    ["203.0.113.7"],
    "203.0.113.7",
  ],
  ["no address", localProxyHeader(), [], PROXY],
] as const)
  t.test(
    `a trusted proxy's PROXY header with ${name} sets the client address to ${client}`,
    async (t) => {
      const { port, seen } = await serve(t, TRUSTED);
      const peer = { before, forwardedFor };
      t.equal(await addressOf(t, port, peer), client);
      t.equal(await addressOf(t, port, peer, "/later"), client);
      new RawClient(t, port).write(upgradeRequest(peer));
      t.equal((await connectionAt(seen, 0)).connection.remoteAddress, client, "a client socket");
    },
  );

for (const [name, first, reply] of [
  ["a call", request("/", {}), "<203.0.113.7>"],
  ["a call with an asynchronous reply", request("/later", {}), "<203.0.113.7>"],
  ["a streamed reply", request("/stream", {}), "<203.0.113.7>"],
  ["a call to an unknown path", request("/none", {}), "404"],
  ["an ambiguous head", Buffer.from("GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n"), "400"],
  ["a HEAD request", Buffer.from("HEAD / HTTP/1.1\r\nhost: a\r\n\r\n"), "200"],
  ["a POST", Buffer.from("POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\n\r\n1"), "ok"],
  ["a refused upgrade", Buffer.from(String(upgradeRequest({})).replace("13", "12")), "426"],
] as const)
  t.test(
    `a client behind a proxy cannot send a PROXY header of its own after ${name}`,
    async (t) => {
      const { port, seen } = await serve(t, TRUSTED);
      const own = { before: proxyHeader("6.6.6.6") };
      const proxied = Buffer.concat([proxyHeader("203.0.113.7"), first]);
      const clients: RawClient[] = [];
      for (const second of [request("/", own), upgradeRequest(own)]) {
        const pipelined = new RawClient(t, port);
        pipelined.write(Buffer.concat([proxied, second]));
        const waiting = new RawClient(t, port);
        waiting.write(proxied);
        await waiting.has(reply);
        waiting.write(second);
        clients.push(pipelined, waiting);
      }
      for (const client of clients) await client.closed();
      for (const client of clients) t.notMatch(client.text, /6\.6\.6\.6/);
      t.equal(seen.length, 0, "no client socket was opened");
    },
  );

t.test("an incomplete PROXY header does not block other clients", async (t) => {
  const { port } = await serve(t, TRUSTED);
  for (const from of [PROXY, STRANGER]) {
    const header = proxyHeader("203.0.113.7");
    const client = new RawClient(t, port, HOST, from);
    client.write(header.subarray(0, 14));
    t.equal(await addressOf(t, port, {}), PROXY, "another client is served in the meantime");
    client.write(Buffer.concat([header.subarray(14), request("/", {})]));
    await client.has(from === PROXY ? "<203.0.113.7>" : `<${STRANGER}>`);
  }
});

t.test("a client behind a proxy cannot send a PROXY header before its first request", async (t) => {
  const { port, seen } = await serve(t, TRUSTED);
  const own = { before: proxyHeader("6.6.6.6") };
  for (const first of [request("/", own), upgradeRequest(own)]) {
    const client = new RawClient(t, port);
    client.write(proxyHeader("203.0.113.7"));
    await new Promise((resolve) => setTimeout(resolve, 50));
    client.write(first);
    await new Promise((resolve) => setTimeout(resolve, 200));
    t.notMatch(client.text, /6\.6\.6\.6|101/);
  }
  t.equal(seen.length, 0, "no client socket was opened");
});

t.test("clients behind one proxy are limited by their own addresses", async (t) => {
  const LIMIT = 3;
  const replies: (() => void)[] = [];
  const limits = socketLimits({ maxUnauthenticatedPerAddress: LIMIT, capacity: () => 100 });
  const login: HttpRoute = {
    ...{ method: "POST", path: "/login", isPublic: true },
    handle: () => new Promise((resolve) => replies.push(() => resolve(text("ok")))),
  };
  const { port } = await startListener(t, {
    http: httpEndpoint([login]),
    trustedProxies: TRUSTED,
    limits,
  });
  const call = (client: string) => {
    const raw = new RawClient(t, port);
    raw.write(
      `POST /login HTTP/1.1\r\nhost: x\r\nx-forwarded-for: ${client}\r\ncontent-length: 2\r\n\r\n{}`,
    );
    return raw;
  };
  for (let n = 1; n <= LIMIT; n++) {
    call("203.0.113.1");
    await until(() => replies.length === n);
  }
  await call("203.0.113.1").closed();
  call("203.0.113.2");
  await until(() => replies.length === LIMIT + 1);
  t.equal(replies.length, LIMIT + 1);
});
