// What the parsers of the two drivers accept. docs/http.md has the same table.

import type { Test } from "tap";
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
  /** Bytes that the client sends, in as many packets. */
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
    name: "Expect: 100-Continue in any case",
    sent: ["POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-Continue\r\ncontent-length: 2\r\n\r\n"],
    uws: "",
    portable: "HTTP/1.1 100",
  },
  {
    name: "a chunked body",
    sent: [`${CHUNKED}\r\n2\r\nab\r\n0\r\n\r\n`],
    uws: "HTTP/1.1 200",
    portable: "HTTP/1.1 200",
    has: "<posted ab>",
  },
  {
    name: "a chunk extension",
    sent: [`${CHUNKED}\r\n2;a=b\r\nab\r\n0\r\n\r\n`],
    uws: "",
    portable: "HTTP/1.1 200",
    has: "<posted ab>",
  },
  {
    name: "a trailer",
    sent: [`${CHUNKED}trailer: a\r\n\r\n2\r\nab\r\n0\r\na: b\r\n\r\n`],
    uws: "HTTP/1.1 505",
    portable: "HTTP/1.1 200",
    has: "<posted ab>",
  },
  {
    name: "a target in absolute form, whose host replaces the Host header",
    sent: ["GET http://example.org/?a HTTP/1.1\r\nhost: x\r\n\r\n"],
    uws: "HTTP/1.1 505",
    portable: "HTTP/1.1 200",
    has: "<got a from example.org>",
  },
  {
    name: "an empty line before a request",
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
    name: "an upgrade to HTTP/2 that the server ignores",
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
      // A later call is answered, so this one would have been answered by now.
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

t.test(
  "a head of 15 KiB is accepted, and a head of more than 16 KiB is answered with 431",
  async (t) => {
    const { port } = await serve(t, routes);
    const withCookie = (bytes: number) =>
      `GET /?a HTTP/1.1\r\nhost: x\r\ncookie: ${"c".repeat(bytes)}\r\n\r\n`;
    const accepted = new RawClient(t, port);
    accepted.write(withCookie(15 * 1024));
    await accepted.has("<got a");
    const refused = new RawClient(t, port);
    refused.write(withCookie(17 * 1024));
    await refused.closed();
    t.match(refused.text, /^HTTP\/1.1 431 /);
    if (IS_PORTABLE) t.match(refused.text, /head too large/);
  },
);
