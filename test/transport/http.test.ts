import { networkInterfaces } from "node:os";
import t, { type Test } from "tap";
import type {
  HttpEndpoint,
  HttpReply,
  HttpRequest,
  HttpRoute,
} from "../../src/transport/types.ts";
import {
  HOST,
  httpEndpoint,
  RawClient,
  type Started,
  startListener,
  text,
  until,
} from "./support.ts";

const post = (path: string, handle: HttpRoute["handle"]): HttpRoute => ({
  method: "POST",
  path,
  handle,
});
const get = (path: string, handle: HttpRoute["handle"]): HttpRoute => ({
  method: "GET",
  path,
  handle,
});
const bodyText = (request: HttpRequest): string =>
  Buffer.from(request.body).toString();

async function serve(
  t: Test,
  routes: readonly HttpRoute[],
  overrides: Partial<HttpEndpoint> = {},
): Promise<Started & { call(path: string, init?: RequestInit): Call }> {
  const http = httpEndpoint(routes, overrides);
  const started = await startListener(t, { http });
  const call = async (path: string, init: RequestInit = {}) => {
    const url = `http://${HOST}:${started.port}${path}`;
    const response = await fetch(url, init);
    const { status, headers } = response;
    return { status, headers, body: await response.text() };
  };
  return { ...started, call };
}
type Call = Promise<{ status: number; headers: Headers; body: string }>;

t.test("a handler gets the whole call and its reply goes out", async (t) => {
  let got: HttpRequest | undefined;
  let address = "";
  const handle = (request: HttpRequest): HttpReply => {
    got = request;
    address = request.remoteAddress;
    return { status: 201, headers: { "x-made": "yes" }, body: "made" };
  };
  let unread: HttpRequest | undefined;
  const keep = (request: HttpRequest): HttpReply => {
    unread = request;
    return text("ok");
  };
  const routes = [post("/thing", handle), get("/", keep)];
  const headers = ["x-wanted", "x-absent"];
  const { call } = await serve(t, routes, { headers });
  await call("/");
  const reply = await call("/thing?a=1&b=%20", {
    method: "POST",
    headers: { "X-Wanted": "Value", "X-Other": "no" },
    body: "the body",
  });
  t.match(reply, { status: 201, body: "made" });
  t.equal(reply.headers.get("x-made"), "yes");
  t.match(got, { method: "POST", path: "/thing", query: "a=1&b=%20" });
  t.strictSame(got?.headers, { "x-wanted": "Value", "x-absent": "" });
  t.strictSame(got?.params, []);
  t.equal(got && bodyText(got), "the body");
  t.equal(address, HOST);
  t.equal(got?.remoteAddress, HOST, "what was read stays");
  t.equal(unread?.remoteAddress, "", "after the reply it is too late");
  t.equal(unread?.query, "", "a URL without a query");
});

t.test("a promised reply goes out when it settles", async (t) => {
  const { call } = await serve(t, [
    get("/later", async () => {
      await new Promise((resolve) => setImmediate(resolve));
      return text("later", 202);
    }),
  ]);
  t.match(await call("/later"), { status: 202, body: "later" });
});

t.test("a binary body and an empty status go out as they are", async (t) => {
  const { call } = await serve(t, [
    get("/bytes", () => ({ status: 200, body: Buffer.from("ünï") })),
    get("/nothing", () => ({ status: 204, body: "" })),
  ]);
  t.match(await call("/bytes"), { status: 200, body: "ünï" });
  const nothing = await call("/nothing");
  t.match(nothing, { status: 204, body: "" });
  t.equal(nothing.headers.get("content-length"), null);
});

t.test("parts of a path are decoded; what cannot be is no path", async (t) => {
  const { call } = await serve(t, [
    get("/user/:uid/device/:flag", ({ path, params }) =>
      text(JSON.stringify([path, params])),
    ),
  ]);
  const decoded = await call("/user/J%C3%BCrgen%2F1/device/0");
  t.strictSame(JSON.parse(decoded.body), [
    "/user/J%C3%BCrgen%2F1/device/0",
    ["Jürgen/1", "0"],
  ]);
  t.match(await call("/user/%zz/device/0"), { status: 404 });
  t.match(await call("/user/%ff/device/0"), { status: 404 });
  t.match(await call("/user//device/0"), { status: 404 });
});

t.test("an unknown path is not found, whatever the method", async (t) => {
  const { call } = await serve(t, [get("/a", () => text("a"))]);
  for (const method of ["GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
    t.match(await call("/b/c", { method }), {
      status: 404,
      body: `none ${method} /b/c`,
    });
  t.match(await call("/a/", {}), { status: 404 });
  t.match(await call("/A", {}), { status: 404 });
});

t.test("a known path with another method names those it takes", async (t) => {
  const { call } = await serve(t, [
    get("/a", () => text("a")),
    post("/a", () => text("a")),
    post("/b/:id", () => text("b")),
  ]);
  const cases = [
    ["PUT", "/a", "GET, POST"],
    ["OPTIONS", "/a", "GET, POST"],
    ["DELETE", "/b/1", "POST"],
    ["GET", "/b/1", "POST"],
  ] as const;
  for (const [method, path, allow] of cases) {
    const reply = await call(path, { method });
    t.match(reply, { status: 405, body: `use ${allow}` });
    t.equal(reply.headers.get("allow"), allow);
  }
});

t.test(
  "HEAD is answered without a body and the connection goes on",
  async (t) => {
    const { port } = await serve(t, [get("/a", () => text("got a"))]);
    const client = new RawClient(t, port);
    client.write("HEAD /a HTTP/1.1\r\nhost: x\r\n\r\n");
    await client.has("\r\n\r\n");
    t.match(client.text, /^HTTP\/1.1 405 /);
    t.match(client.text, /content-length: 7\r\n/i);
    t.match(client.text, /allow: GET\r\n/);
    client.write("GET /a HTTP/1.1\r\nhost: x\r\n\r\n");
    await client.has("got a");
    t.notMatch(client.text, "use GET");
  },
);

t.test("a body that comes in pieces is put together", async (t) => {
  const { port } = await serve(t, [
    post("/echo", (request) => text(`<${bodyText(request)}>`)),
  ]);
  const sized = new RawClient(t, port);
  sized.write("POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 6\r\n\r\n");
  for (const byte of "abcdef") {
    sized.write(byte);
    await new Promise((resolve) => setImmediate(resolve));
  }
  await sized.has("<abcdef>");

  const chunked = new RawClient(t, port);
  chunked.write(
    "POST /echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n",
  );
  chunked.write("1\r\nd\r\n");
  chunked.write("0\r\n\r\n");
  await chunked.has("<abcd>");
  t.pass("both came whole");
});

t.test("a body belongs to the handler for good", async (t) => {
  const kept: HttpRequest[] = [];
  const { call } = await serve(t, [
    post("/keep", (request) => {
      kept.push(request);
      return text("ok");
    }),
  ]);
  const bodies = Array.from({ length: 50 }, (_, i) => `body ${i}`.repeat(9));
  for (const body of bodies) await call("/keep", { method: "POST", body });
  t.strictSame(kept.map(bodyText), bodies);
});

t.test("a body may be as long as the limit and no longer", async (t) => {
  let calls = 0;
  const { port, call } = await serve(t, [
    post("/count", () => {
      calls += 1;
      return text("ok");
    }),
  ]);
  const send = (size: number) =>
    call("/count", { method: "POST", body: "x".repeat(size) });
  t.match(await send(1000), { status: 200 });
  const refused = await send(1001);
  t.match(refused, { status: 413, body: "too large" });
  t.equal(refused.headers.get("connection"), "close");

  const huge = new RawClient(t, port);
  huge.write(
    "POST /count HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999\r\n\r\n",
  );
  await huge.has("too large"); // at once: not a byte of the body was sent
  t.match(huge.text, /^HTTP\/1.1 413 /);
  t.equal(calls, 1);
});

t.test(
  "a body without a declared length is cut off at the limit",
  async (t) => {
    let calls = 0;
    let refusals = 0;
    const count = () => {
      calls += 1;
      return text("ok");
    };
    const tooLarge = () => {
      refusals += 1;
      return text("too large", 413);
    };
    const { port } = await serve(t, [post("/count", count)], { tooLarge });
    const client = new RawClient(t, port);
    client.write(
      "POST /count HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n",
    );
    const chunk = `c8\r\n${"x".repeat(200)}\r\n`;
    client.write(chunk.repeat(20)); // the limit is in the middle of one piece
    await client.closed();
    t.match(client.text, /^HTTP\/1.1 413 /);
    t.strictSame([calls, refusals], [0, 1]);
  },
);

t.test("calls sent together are answered in order", async (t) => {
  const { port } = await serve(t, [
    get("/n/:n", ({ params }) => text(`[${params[0]}]`)),
    post("/n", (request) => text(`[${bodyText(request)}]`)),
  ]);
  const client = new RawClient(t, port);
  const one = (n: number) =>
    n % 2 === 0
      ? `GET /n/${n} HTTP/1.1\r\nhost: x\r\n\r\n`
      : `POST /n HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\n${n}`;
  client.write([0, 1, 2, 3, 4, 5].map(one).join(""));
  await client.has("[5]");
  t.strictSame(client.text.match(/\[\d\]/g), [
    "[0]",
    "[1]",
    "[2]",
    "[3]",
    "[4]",
    "[5]",
  ]);
});

t.test(
  "a call sent behind an unanswered one ends the connection only",
  async (t) => {
    const answers: ((reply: HttpReply) => void)[] = [];
    const { port, call, errors } = await serve(t, [
      get("/wait", () => new Promise((resolve) => answers.push(resolve))),
      get("/now", () => text("now")),
    ]);
    const client = new RawClient(t, port);
    client.write("GET /wait HTTP/1.1\r\nhost: x\r\n\r\n".repeat(2));
    await client.closed();
    t.equal(answers.length, 1);
    answers[0]?.(text("late"));
    t.match(await call("/now"), { status: 200 });
    t.equal(client.text, "");
    t.strictSame(errors, []);
  },
);

t.test("a call given up while its handler works is not answered", async (t) => {
  const answers: ((reply: HttpReply) => void)[] = [];
  const requests: HttpRequest[] = [];
  const addresses: string[] = [];
  const { port, call, errors } = await serve(t, [
    post("/wait", (taken) => {
      if (bodyText(taken) === "read") addresses.push(taken.remoteAddress);
      requests.push(taken);
      return new Promise((resolve) => answers.push(resolve));
    }),
    get("/now", () => text("now")),
  ]);
  for (const body of ["read", "none"]) {
    const asked = requests.length;
    const client = new RawClient(t, port);
    client.write(
      `POST /wait HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\n${body}`,
    );
    await until(() => requests.length > asked);
    client.socket.destroy();
    await call("/now"); // lets the server see it
    answers[asked]?.(text("late"));
    t.equal(requests[asked]?.remoteAddress, body === "read" ? HOST : "");
  }
  t.match(await call("/now"), { status: 200, body: "now" });
  t.strictSame(addresses, [HOST]);
  t.strictSame(errors, []);
});

t.test("a body given up half way never reaches the handler", async (t) => {
  let calls = 0;
  const { port, call } = await serve(t, [
    post("/count", () => {
      calls += 1;
      return text("ok");
    }),
    get("/now", () => text("now")),
  ]);
  const client = new RawClient(t, port);
  client.write(
    "POST /count HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nhalf",
  );
  client.socket.end();
  await client.closed();
  await call("/now");
  t.equal(calls, 0);
});

t.test(
  "a handler that fails is reported and answered with a bare 500",
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
        where: `${method} ${path}`,
      })),
    );
  },
);

t.test(
  "a reply that cannot be written closes the connection and is reported",
  async (t) => {
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
  },
);

t.test("what is no HTTP ends its own connection only", async (t) => {
  const { port, call } = await serve(t, [
    get("/", () => text("ok")),
    post("/", () => text("ok")),
  ]);
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
    t.notMatch(
      client.text,
      /^HTTP\/1.1 200/,
      JSON.stringify(bytes.slice(0, 40)),
    );
  }
  t.match(await call("/"), { status: 200 });
});

t.test(
  "a large reply arrives whole at a reader that takes its time",
  async (t) => {
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
  },
);

const hasV6 = Object.values(networkInterfaces()).some((addresses) =>
  addresses?.some(({ family }) => family === "IPv6"),
);

t.test(
  "a peer has one address over IPv4, also on an IPv6 listener",
  { skip: hasV6 ? false : "no IPv6 here" },
  async (t) => {
    const http = httpEndpoint([
      get("/me", ({ remoteAddress }) => text(`<${remoteAddress}>`)),
    ]);
    const { port } = await startListener(t, { host: "[::]", http });
    for (const [host, address] of [
      [HOST, HOST],
      ["::1", "::1"],
    ] as const) {
      const client = new RawClient(t, port, host);
      client.write("GET /me HTTP/1.1\r\nhost: x\r\n\r\n");
      await client.has(`<${address}>`);
    }
    t.pass("both came");
  },
);
