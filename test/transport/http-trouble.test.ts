// HTTP calls that fail: aborted calls, malformed requests, and handlers that break their contract.

import { networkInterfaces } from "node:os";
import type { HttpReply, HttpRequest } from "../../src/transport/types.ts";
import { t } from "../support/suite.ts";
import { bodyText, get, post, serve } from "./http-calls.ts";
import { HOST, httpEndpoint, RawClient, startListener, text, until } from "./support.ts";

t.test("a call whose peer disconnects while the handler runs gets no reply", async (t) => {
  const answers: ((reply: HttpReply) => void)[] = [];
  const requests: HttpRequest[] = [];
  const addresses: string[] = [];
  const { port, call, errors } = await serve(t, [
    post("/wait", (request) => {
      if (bodyText(request) === "read") addresses.push(request.remoteAddress);
      requests.push(request);
      return new Promise((resolve) => answers.push(resolve));
    }),
    get("/now", () => text("now")),
  ]);
  for (const body of ["read", "none"]) {
    const index = requests.length;
    const client = new RawClient(t, port);
    client.write(`POST /wait HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\n${body}`);
    await until(() => requests.length > index);
    client.socket.destroy();
    await call("/now"); // lets the server notice the close
    answers[index]?.(text("late"));
    t.equal(requests[index]?.remoteAddress, body === "read" ? HOST : "");
  }
  t.match(await call("/now"), { status: 200, body: "now" });
  t.strictSame(addresses, [HOST]);
  t.strictSame(errors, []);
});

t.test("an incomplete body never reaches the handler", async (t) => {
  let calls = 0;
  const { port, call } = await serve(t, [
    post("/count", () => {
      calls += 1;
      return text("ok");
    }),
    get("/now", () => text("now")),
  ]);
  const client = new RawClient(t, port);
  client.write("POST /count HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nhalf");
  client.socket.end();
  await client.closed();
  await call("/now");
  t.equal(calls, 0);
});

t.test(
  "an error in a handler is reported, and the request is answered with an empty 500 response",
  async (t) => {
    const bug = new Error("bug");
    const fail = (): never => {
      throw bug;
    };
    const { call, errors } = await serve(
      t,
      [
        get("/throws", fail),
        post("/throws", fail),
        get("/rejects", () => Promise.reject(bug)),
        get("/rejects-later", async () => {
          await new Promise((resolve) => setImmediate(resolve));
          return fail();
        }),
      ],
      { notFound: fail },
    );
    const calls = [
      ["GET", "/throws"],
      ["POST", "/throws"],
      ["GET", "/rejects"],
      ["GET", "/rejects-later"],
      ["GET", "/missing"],
    ] as const;
    for (const [method, path] of calls)
      t.match(await call(path, { method }), { status: 500, body: "" });
    t.strictSame(
      errors,
      calls.map(([method, path]) => ({
        error: bug,
        message: `Could not handle ${method} ${path}`,
      })),
    );
  },
);

t.test("a reply that cannot be written closes the connection and is reported", async (t) => {
  const headers = { "x-bad": 1n } as unknown as Record<string, string>;
  const { port, call, errors } = await serve(t, [
    get("/sound", () => text("sound")),
    get("/unsound", () => ({ status: 200, headers, body: "" })),
    get("/unsound-later", async () => ({ status: 200, headers, body: "" })),
  ]);
  for (const path of ["/unsound", "/unsound-later"]) {
    const client = new RawClient(t, port);
    client.write(`GET ${path} HTTP/1.1\r\nhost: x\r\n\r\n`);
    await client.closed();
  }
  t.equal(errors.length, 2);
  t.match(await call("/sound"), { status: 200 });
});

t.test("a malformed request closes only its own connection", async (t) => {
  const { port, call } = await serve(t, [get("/", () => text("ok")), post("/", () => text("ok"))]);
  const nonsense = [
    "\x16\x03\x01 hello this is TLS\r\n\r\n",
    "GET / HTTP/9.9\r\nhost: x\r\n\r\n",
    "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
    "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1x\r\n\r\n",
    "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    `GET / HTTP/1.1\r\nhost: x\r\nx-long: ${"x".repeat(100_000)}\r\n\r\n`,
  ];
  for (const bytes of nonsense) {
    const client = new RawClient(t, port);
    client.write(bytes);
    await client.closed();
    t.notMatch(client.text, /^HTTP\/1.1 200/, JSON.stringify(bytes.slice(0, 40)));
  }
  t.match(await call("/"), { status: 200 });
});

t.test("a slow reader receives a large reply completely", async (t) => {
  const body = "0123456789".repeat(800_000);
  const { port } = await serve(t, [get("/big", () => text(body))]);
  const client = new RawClient(t, port);
  client.socket.pause();
  client.write("GET /big HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
  await until(() => client.socket.bytesWritten > 0);
  await new Promise((resolve) => setImmediate(resolve));
  client.socket.resume();
  await client.closed();
  t.ok(client.text.endsWith(body));
});

const hasV6 = Object.values(networkInterfaces()).some((addresses) =>
  addresses?.some(({ family }) => family === "IPv6"),
);

t.test(
  "an IPv6 listener reports an IPv4 peer with its IPv4 address",
  { skip: hasV6 ? false : "this machine has no IPv6" },
  async (t) => {
    const http = httpEndpoint([get("/me", ({ remoteAddress }) => text(`<${remoteAddress}>`))]);
    const { port } = await startListener(t, { host: "[::]", http });
    for (const [host, address] of [
      [HOST, HOST],
      ["::1", "::1"],
    ] as const) {
      const client = new RawClient(t, port, host);
      client.write("GET /me HTTP/1.1\r\nhost: x\r\n\r\n");
      await client.has(`<${address}>`);
    }
    t.pass("both addresses were returned");
  },
);
