// Tests what the parsers of the two drivers accept. docs/http.md has the same table.

import type { Test } from "tap";
import { BodyBudget } from "../../src/transport/http-body.ts";
import { t } from "../support/suite.ts";
import { bodyText, get, post, serve } from "./http-calls.ts";
import {
  httpEndpoint,
  IS_PORTABLE,
  RawClient,
  socketEndpoint,
  startListener,
  text,
  until,
} from "./support.ts";

const routes = [
  get("/", ({ query, headers }) => text(`<got ${query} from ${headers.host ?? ""}>`)),
  post("/", (request) => text(`<posted ${bodyText(request)}>`)),
];

const CHUNKED = "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n";

interface Row {
  readonly name: string;
  /** Bytes that the client sends, one packet for each text. */
  readonly sent: readonly string[];
  /** Beginning of the status line, or `""` if the connection closes or hangs without a reply. */
  readonly uws: string;
  readonly portable: string;
  /** Text that the reply of the portable driver contains. */
  readonly has?: string;
}

const ROWS: readonly Row[] = [
  {
    name: "a request in HTTP/1.0 without a Host header",
    sent: ["GET /?a HTTP/1.0\r\n\r\n"],
    uws: "HTTP/1.1 505",
    portable: "HTTP/1.1 200",
    has: "<got a from >",
  },
  {
    name: "a request in HTTP/1.1 without a Host header",
    sent: ["GET / HTTP/1.1\r\n\r\n"],
    uws: "",
    portable: "HTTP/1.1 400",
  },
  {
    name: "a request with Expect: 100-Continue in mixed case",
    sent: ["POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-Continue\r\ncontent-length: 2\r\n\r\n"],
    uws: "",
    portable: "HTTP/1.1 100",
  },
  {
    name: "a request with a chunked body",
    sent: [`${CHUNKED}\r\n2\r\nab\r\n0\r\n\r\n`],
    uws: "HTTP/1.1 200",
    portable: "HTTP/1.1 200",
    has: "<posted ab>",
  },
  {
    name: "a request with a chunk extension",
    sent: [`${CHUNKED}\r\n2;a=b\r\nab\r\n0\r\n\r\n`],
    uws: "",
    portable: "HTTP/1.1 200",
    has: "<posted ab>",
  },
  {
    name: "a request with a trailer that its head announces",
    sent: [`${CHUNKED}trailer: a\r\n\r\n`, "2\r\nab\r\n0\r\na: b\r\n\r\n"],
    uws: "HTTP/1.1 400",
    portable: "HTTP/1.1 200",
    has: "<posted ab>",
  },
  {
    name: "a request with a trailer that its head does not announce",
    sent: [`${CHUNKED}\r\n2\r\nab\r\n0\r\na: b\r\n\r\n`],
    uws: "HTTP/1.1 505",
    portable: "HTTP/1.1 200",
    has: "<posted ab>",
  },
  {
    name: "a request with a chunk that does not end with CR and LF",
    sent: [`${CHUNKED}\r\n2\r\nabXX0\r\n\r\n`],
    uws: "HTTP/1.1 200",
    portable: "HTTP/1.1 400",
  },
  {
    name: "a request with 97 headers in addition to Host",
    sent: [`GET /?a HTTP/1.1\r\nhost: x\r\n${"a: b\r\n".repeat(97)}\r\n`],
    uws: "HTTP/1.1 200",
    portable: "HTTP/1.1 200",
  },
  {
    name: "a request with 98 headers in addition to Host",
    sent: [`GET /?a HTTP/1.1\r\nhost: x\r\n${"a: b\r\n".repeat(98)}\r\n`],
    uws: "HTTP/1.1 431",
    portable: "HTTP/1.1 200",
  },
  {
    name: "a request whose target has a non-ASCII letter",
    sent: ["GET /?é HTTP/1.1\r\nhost: x\r\n\r\n"],
    uws: "HTTP/1.1 200",
    portable: "HTTP/1.1 400",
  },
  {
    name: "a request with an invalid header name",
    sent: ["GET / HTTP/1.1\r\nhost: x\r\na b: c\r\n\r\n"],
    uws: "",
    portable: "HTTP/1.1 400",
  },
  {
    name: "a request with an unknown Expect value",
    sent: ["GET /?a HTTP/1.1\r\nhost: x\r\nexpect: x\r\n\r\n"],
    uws: "HTTP/1.1 200",
    portable: "HTTP/1.1 200",
    has: "<got a from x>",
  },
  {
    name: "a request with the method CONNECT",
    sent: ["CONNECT a:80 HTTP/1.1\r\nhost: a\r\n\r\n"],
    uws: "HTTP/1.1 505",
    portable: "HTTP/1.1 400",
  },
  {
    name: "a request in HTTP/2.0",
    sent: ["GET / HTTP/2.0\r\nhost: x\r\n\r\n"],
    uws: "HTTP/1.1 505",
    portable: "HTTP/1.1 400",
  },
  {
    name: "a connection that begins in HTTP/2",
    sent: ["PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"],
    uws: "HTTP/1.1 505",
    portable: "HTTP/1.1 400",
  },
  {
    name: "a connection that begins with TLS",
    sent: ["\x16\x03\x01\0\xa5\x01\0\0\xa1\x03\x03"],
    uws: "HTTP/1.1 505",
    portable: "HTTP/1.1 400",
  },
  {
    name: "a request whose target in absolute form names a different host than its Host header",
    sent: ["GET http://example.org/?a HTTP/1.1\r\nhost: x\r\n\r\n"],
    uws: "HTTP/1.1 505",
    portable: "HTTP/1.1 200",
    has: "<got a from example.org>",
  },
  {
    name: "a request after an empty line",
    sent: ["\r\nGET /?a HTTP/1.1\r\nhost: x\r\n\r\n"],
    uws: "",
    portable: "HTTP/1.1 200",
    has: "<got a from x>",
  },
  {
    name: "a request line in two packets",
    sent: ["GET ", "/?a HTTP/1.1\r\nhost: x\r\n\r\n"],
    uws: "HTTP/1.1 505",
    portable: "HTTP/1.1 200",
    has: "<got a from x>",
  },
  {
    name: "a request for an upgrade to HTTP/2, which the server ignores,",
    sent: [
      "POST / HTTP/1.1\r\nhost: x\r\nconnection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\ncontent-length: 2\r\n\r\n",
      "ab",
    ],
    uws: "HTTP/1.1 200",
    portable: "HTTP/1.1 200",
    has: "<posted ab>",
  },
];

/** Serves calls and sockets, because a parser treats upgrades differently if there are sockets. */
async function serveBoth(t: Test): Promise<number> {
  const { endpoint } = socketEndpoint();
  const http = httpEndpoint(routes, { headers: ["host"] });
  const { port } = await startListener(t, { http, sockets: endpoint });
  return port;
}

for (const { name, sent, uws, portable, has } of ROWS) {
  const expected = IS_PORTABLE ? portable : uws;
  const outcome = expected === "" ? "gets no reply" : `is answered with ${expected}`;
  t.test(`${name} ${outcome}`, async (t) => {
    const port = await serveBoth(t);
    const client = new RawClient(t, port);
    for (const packet of sent) {
      client.write(packet);
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
    if (expected === "") {
      // A later call is answered, so a reply to this call would have arrived by now.
      const later = new RawClient(t, port);
      later.write("GET / HTTP/1.1\r\nhost: x\r\n\r\n");
      await later.has("<got");
      t.equal(client.text, "");
      return;
    }
    await until(() => client.text.includes("\r\n\r\n") || client.isClosed);
    t.ok(client.text.startsWith(expected), client.text.slice(0, 80));
    if (IS_PORTABLE && has !== undefined) await client.has(has);
  });
}

t.test("a call whose head announces a trailer runs only on the portable driver", async (t) => {
  let calls = 0;
  const { port } = await serve(t, [
    post("/", () => {
      calls += 1;
      return text("done");
    }),
  ]);
  const client = new RawClient(t, port);
  client.write(`${CHUNKED}TRAILER: a, b\r\n\r\n2\r\nab\r\n0\r\na: b\r\n\r\n`);
  await until(() => client.text.includes("\r\n\r\n"));
  t.equal(calls, IS_PORTABLE ? 1 : 0);
  const { status } = await fetch(`http://127.0.0.1:${port}/`, {
    method: "POST",
    body: "ab",
    headers: { trailer: "a", te: "trailers" },
  });
  t.equal(status, 200, "a body that is not chunked has no trailer");
});

t.test("a call that follows a malformed head in the same packet does not run", async (t) => {
  let calls = 0;
  const { port } = await serve(t, [
    post("/", () => {
      calls += 1;
      return text("done");
    }),
  ]);
  const call = "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nab";
  for (const head of [
    "GET / HTTP/1.1\r\nhost: a b\r\n\r\n",
    "POST / HTTP/1.1\r\nhost: x\r\nhost: y\r\ncontent-length: 0\r\n\r\n",
    "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\ncontent-length: 52\r\n\r\n",
    "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip\r\n\r\n",
    `GET /${"a".repeat(17_000)} HTTP/1.1\r\nhost: x\r\n\r\n`,
  ]) {
    const client = new RawClient(t, port);
    client.write(head + call);
    await client.closed();
    t.notMatch(client.text, "done");
  }
  t.equal(calls, 0);
});

t.test("a refused call gets one reply, even if its body is not valid", async (t) => {
  const refused = { ...post("/", () => text("done")), admit: () => text("no", 401) };
  const { port } = await serve(t, [refused]);
  const client = new RawClient(t, port);
  client.write(`${CHUNKED}\r\n`);
  await client.has("no");
  client.write("xyz\r\n");
  await client.closed();
  t.equal(client.text.split("HTTP/1.1 ").length, 2);
  const late = new RawClient(t, port);
  late.write(`${CHUNKED}\r\nxyz\r\nab\r\n`);
  await late.closed();
  t.equal(late.text.split("HTTP/1.1 ").length, 2);
});

const HANDSHAKE =
  "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

t.test("a WebSocket handshake with an invalid header, version or body is refused", async (t) => {
  const { seen, endpoint } = socketEndpoint();
  const { port } = await startListener(t, { http: httpEndpoint(routes), sockets: endpoint });
  const without = (header: string) => HANDSHAKE.replace(new RegExp(`${header}: [^\\r]*\\r\\n`), "");
  for (const [name, headers, version = "1.1"] of [
    ["no Upgrade", without("upgrade")],
    ["another Upgrade", HANDSHAKE.replace("upgrade: websocket", "upgrade: websockets")],
    ["no Connection", without("connection")],
    ["another Connection", HANDSHAKE.replace("connection: upgrade", "connection: keep-alive")],
    ["a key with invalid letters", HANDSHAKE.replace("dGhlI", "!!!!!")],
    ["two keys", HANDSHAKE + HANDSHAKE.slice(HANDSHAKE.indexOf("sec-websocket-key"))],
    ["HTTP/1.0", HANDSHAKE, "1.0"],
    ["a body", `${HANDSHAKE}content-length: 2\r\n`],
  ] as const) {
    const client = new RawClient(t, port);
    client.write(`GET /none HTTP/${version}\r\nhost: x\r\n${headers}\r\n`);
    await until(() => client.text.includes("\r\n\r\n"));
    t.match(client.text, /^HTTP\/1\.1 (400|404|505) /, name);
  }
  t.equal(seen.length, 0);
  for (const headers of [
    HANDSHAKE.replace("connection: upgrade", "Connection: keep-alive, Upgrade"),
    HANDSHAKE.replace("upgrade: websocket", "Upgrade: WebSocket"),
    `${HANDSHAKE}content-length: 0\r\n`,
  ]) {
    const client = new RawClient(t, port);
    client.write(`GET / HTTP/1.1\r\nhost: x\r\n${headers}\r\n`);
    await client.has("HTTP/1.1 101 ");
  }
});

t.test(
  "an upgrade in the same packet as an earlier request affects only its connection",
  async (t) => {
    const { endpoint } = socketEndpoint();
    const pending = get("/pending", () => new Promise<never>(() => {}));
    const http = httpEndpoint([...routes, pending]);
    const { port, errors } = await startListener(t, { http, sockets: endpoint });
    const h2c = "connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAA\r\n";
    for (const path of ["/?a", "/pending", "/none"])
      for (const headers of [HANDSHAKE, h2c, `${HANDSHAKE}content-length: 2\r\n`]) {
        const client = new RawClient(t, port);
        client.write(
          `GET ${path} HTTP/1.1\r\nhost: x\r\n\r\nGET / HTTP/1.1\r\nhost: x\r\n${headers}\r\n`,
        );
        await until(() => client.isClosed || client.text.includes("\r\n\r\n"));
      }
    const later = new RawClient(t, port);
    later.write(`GET / HTTP/1.1\r\nhost: x\r\n${HANDSHAKE}\r\n`);
    await later.has("HTTP/1.1 101 ");
    t.same(errors, []);
  },
);

t.test("a client that closes its half of the connection gets no late reply", async (t) => {
  const port = await serveBoth(t);
  const { port: later } = await serve(t, [
    get("/", () => new Promise((resolve) => setTimeout(() => resolve(text("late")), 50))),
  ]);
  const client = new RawClient(t, later);
  client.socket.end("GET / HTTP/1.1\r\nhost: x\r\n\r\n");
  await client.closed();
  t.equal(client.text, "");
  const other = new RawClient(t, port);
  other.write("GET / HTTP/1.1\r\nhost: x\r\n\r\n");
  await other.has("<got");
});

t.test(
  "a head larger than 16 KiB is answered with 431 and reported, whether its path, query or headers are large",
  async (t) => {
    const { endpoint } = socketEndpoint();
    const problems: string[] = [];
    const http = httpEndpoint(routes);
    const onHeadRefused = (problem: string) => void problems.push(problem);
    const { port } = await startListener(t, { http, sockets: endpoint, onHeadRefused });
    const filler = (bytes: number) => "c".repeat(bytes);
    const heads: readonly ((bytes: number) => string)[] = [
      (bytes) => `GET /?a HTTP/1.1\r\nhost: x\r\ncookie: ${filler(bytes)}\r\n\r\n`,
      (bytes) => `GET /?${filler(bytes)} HTTP/1.1\r\nhost: x\r\n\r\n`,
      (bytes) => `GET /${filler(bytes)} HTTP/1.1\r\nhost: x\r\n\r\n`,
      (bytes) =>
        `POST / HTTP/1.1\r\nhost: x\r\n${"a: b\r\n".repeat(50)}b: ${filler(bytes - 300)}\r\ncontent-length: 0\r\n\r\n`,
      (bytes) => `GET / HTTP/1.1\r\nhost: x\r\n${HANDSHAKE}cookie: ${filler(bytes)}\r\n\r\n`,
    ];
    for (const [at, headOf] of heads.entries()) {
      const accepted = new RawClient(t, port);
      accepted.write(headOf(15 * 1024));
      await until(() => accepted.text.includes("\r\n\r\n"));
      t.match(accepted.text, /^HTTP\/1.1 (200|404|101) /, `head ${at}`);
      const refused = new RawClient(t, port);
      refused.write(headOf(17 * 1024));
      await refused.closed();
      t.match(refused.text, /^HTTP\/1.1 431 /, `head ${at}`);
      t.match(refused.text, /head too large/, `head ${at}`);
      t.equal(problems.length, at + 1, "the refused head is counted");
    }
    t.same([...new Set(problems)], ["too_large"]);
    const huge = new RawClient(t, port);
    huge.write(heads[0]?.(64 * 1024) ?? "");
    await huge.closed();
    t.match(huge.text, /^HTTP\/1.1 431 /);
  },
);

t.test(
  "partially received heads count against the budget for bodies, and a head that does not fit is answered with 503",
  { skip: IS_PORTABLE ? false : "uWebSockets.js does not report partial heads" },
  async (t) => {
    const bodies = new BodyBudget(20_000);
    const problems: string[] = [];
    const { endpoint } = socketEndpoint();
    const { port } = await startListener(t, {
      http: httpEndpoint(routes),
      sockets: endpoint,
      bodies,
      onHeadRefused: (problem) => void problems.push(problem),
    });
    const start = `GET /?a HTTP/1.1\r\nhost: x\r\ncookie: ${"c".repeat(12_000)}`;
    const [kept, session, first, second] = [0, 1, 2, 3].map(() => new RawClient(t, port));
    if (!kept || !session || !first || !second) throw new Error("a client is missing");
    session.write(`GET / HTTP/1.1\r\nhost: x\r\n${HANDSHAKE}\r\n`);
    await session.has("101");
    session.write(Buffer.concat([Buffer.from([0x82, 0x80 + 126, 0x10, 0]), Buffer.alloc(4096)]));
    kept.write("GET /?a HTTP/1.1\r\nhost: x\r\n\r\n");
    await kept.has("<got a");
    kept.write(start);
    await until(() => bodies.bytes > 12_000);
    t.ok(bodies.bytes < 13_000, "requests that are over and frames of sockets do not count");
    first.write(start);
    await first.has("busy");
    t.match(first.text, /^HTTP\/1.1 503 /);
    t.same(problems, ["no_room"]);
    kept.write("\r\n\r\n");
    await until(() => kept.text.split("<got a").length === 3);
    second.write(start);
    await until(() => bodies.bytes > 12_000);
    second.socket.destroy();
    await until(() => bodies.bytes === 0);
  },
);
