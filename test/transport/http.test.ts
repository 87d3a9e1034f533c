// HTTP calls over real sockets: routes, bodies and replies.

import type { HttpReply, HttpRequest, HttpRoute } from "../../src/transport/types.ts";
import { t } from "../support/suite.ts";
import { bodyText, get, post, serve } from "./http-calls.ts";
import { HOST, IS_PORTABLE, RawClient, text, until } from "./support.ts";

t.test("each reply on a persistent connection has its own headers", async (t) => {
  const shared = { "x-one": "1", "x-two": "2" };
  const replies: readonly HttpReply[] = [
    { status: 200, headers: shared, body: "" },
    { status: 200, headers: { ...shared, "x-three": "3" }, body: "" },
    { status: 202, headers: shared, body: "" },
    { status: 200, body: "" },
  ];
  const { call } = await serve(
    t,
    replies.map((reply, at) => get(`/${at}`, () => reply)),
  );
  for (const at of [0, 0, 1, 1, 0, 2, 3, 3, 0]) {
    const { status, headers } = await call(`/${at}`);
    const sent = Object.fromEntries([...headers].filter(([name]) => name.startsWith("x-")));
    t.same(
      { status, headers: sent },
      { status: replies[at]?.status, headers: replies[at]?.headers ?? {} },
    );
  }
});

t.test("a handler gets the path, query, headers and body, and its reply is sent", async (t) => {
  let received: HttpRequest | undefined;
  let address = "";
  const handle = (request: HttpRequest): HttpReply => {
    received = request;
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
  t.match(received, { method: "POST", path: "/thing", query: "a=1&b=%20" });
  t.strictSame(received?.headers, { "x-wanted": "Value" });
  t.strictSame(received?.params, []);
  t.equal(received && bodyText(received), "the body");
  t.equal(address, HOST);
  t.equal(received?.remoteAddress, HOST, "an address that was read stays available");
  t.equal(unread?.remoteAddress, "", "an address that was not read is lost after the reply");
  t.equal(unread?.query, "", "a URL without a query has an empty query");
});

t.test(
  "a reply that keeps the connection open announces how long an idle connection is kept",
  async (t) => {
    const { call, port } = await serve(t, [
      get("/a", () => text("a")),
      { ...get("/public", () => text("p")), isPublic: true },
    ]);
    const expected = IS_PORTABLE ? "timeout=75" : "timeout=7";
    t.equal((await call("/a")).headers.get("keep-alive"), expected);
    t.equal((await call("/public")).headers.get("keep-alive"), null, "the connection is closed");
    const client = new RawClient(t, port);
    client.write("HEAD /a HTTP/1.1\r\nhost: x\r\n\r\n");
    await client.has("\r\n\r\n");
    t.match(client.text.toLowerCase(), `keep-alive: ${expected}\r\n`);
  },
);

t.test("an asynchronous reply is sent when its promise resolves", async (t) => {
  const { call } = await serve(t, [
    get("/later", async () => {
      await new Promise((resolve) => setImmediate(resolve));
      return text("later", 202);
    }),
  ]);
  t.match(await call("/later"), { status: 202, body: "later" });
});

t.test("a binary body and an empty body are sent unchanged", async (t) => {
  const { call } = await serve(t, [
    get("/bytes", () => ({ status: 200, body: Buffer.from("ünï") })),
    get("/nothing", () => ({ status: 204, body: "" })),
  ]);
  t.match(await call("/bytes"), { status: 200, body: "ünï" });
  const nothing = await call("/nothing");
  t.match(nothing, { status: 204, body: "" });
  t.equal(nothing.headers.get("content-length"), null);
});

t.test(
  "segments of a path are decoded, and a path with a segment that cannot be decoded is answered with 404",
  async (t) => {
    const { call } = await serve(t, [
      get("/user/:uid/device/:flag", ({ path, params }) => text(JSON.stringify([path, params]))),
    ]);
    const decoded = await call("/user/J%C3%BCrgen%2F1/device/0");
    t.strictSame(JSON.parse(decoded.body), ["/user/J%C3%BCrgen%2F1/device/0", ["Jürgen/1", "0"]]);
    t.match(await call("/user/%zz/device/0"), { status: 404 });
    t.match(await call("/user/%ff/device/0"), { status: 404 });
    t.match(await call("/user//device/0"), { status: 404 });
  },
);

t.test(
  "a route for GET, PUT or DELETE whose pattern ends in * serves all longer paths",
  async (t) => {
    const handle = ({ method, path, body }: HttpRequest) =>
      text(`${method} ${path} <${Buffer.from(body)}>`);
    const route = (method: HttpRoute["method"]) => ({ method, path: "/files/*", handle });
    const { call } = await serve(t, [route("GET"), route("PUT"), route("DELETE")]);
    const put = { method: "PUT", body: "new" };
    t.equal((await call("/files/a", put)).body, "PUT /files/a <new>");
    t.equal((await call("/files/a/b%2Fc", put)).body, "PUT /files/a/b%2Fc <new>");
    t.equal((await call("/files/a", { method: "PUT" })).body, "PUT /files/a <>");
    t.equal((await call("/files/a/", { method: "DELETE" })).body, "DELETE /files/a/ <>");
    t.equal((await call("/files/a?b=c")).body, "GET /files/a <>");
    t.equal((await call("/files", put)).status, 404);
    const post = await call("/files/a/b", { method: "POST", body: "x" });
    t.equal(post.status, 405);
    t.equal(post.headers.get("allow"), "DELETE, GET, HEAD, PUT");
  },
);

t.test("a handler is notified if its peer disconnects before the reply", async (t) => {
  let isWaiting = false;
  let isAborted = false;
  const wait = async (request: HttpRequest): Promise<HttpReply> => {
    isWaiting = true;
    await new Promise<void>((resolve) => {
      request.onAborted(() => {
        isAborted = true;
        resolve();
      });
    });
    return text("late");
  };
  const { port } = await serve(t, [get("/wait", wait)]);
  const client = new RawClient(t, port);
  client.write("GET /wait HTTP/1.1\r\nhost: x\r\n\r\n");
  await until(() => isWaiting);
  client.socket.destroy();
  await until(() => isAborted);
  t.pass("the handler was notified");
});

t.test("a handler that calls `onAborted` after a disconnect is notified at once", async (t) => {
  let calls = 0;
  const wait = async (request: HttpRequest): Promise<HttpReply> => {
    await new Promise<void>((resolve) => request.onAborted(resolve));
    request.onAborted(() => {
      calls += 1;
    });
    return text("late");
  };
  let isWaiting = false;
  const handle = (request: HttpRequest) => {
    isWaiting = true;
    return wait(request);
  };
  const { port } = await serve(t, [get("/wait", handle)]);
  const client = new RawClient(t, port);
  client.write("GET /wait HTTP/1.1\r\nhost: x\r\n\r\n");
  await until(() => isWaiting);
  client.socket.destroy();
  await until(() => calls > 0);
  t.equal(calls, 1);
});

t.test("an unknown path is answered with 404 for every method", async (t) => {
  const { call } = await serve(t, [get("/a", () => text("a"))]);
  for (const method of ["GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
    t.match(await call("/b/c", { method }), {
      status: 404,
      body: `none ${method} /b/c`,
    });
  t.match(await call("/a/", {}), { status: 404 });
  t.match(await call("/A", {}), { status: 404 });
});

t.test(
  "a call to a known path with a wrong method is answered with 405 and the allowed methods",
  async (t) => {
    const { call } = await serve(t, [
      get("/a", () => text("a")),
      post("/a", () => text("a")),
      post("/b/:id", () => text("b")),
    ]);
    const cases = [
      ["PUT", "/a", "GET, HEAD, POST"],
      ["OPTIONS", "/a", "GET, HEAD, POST"],
      ["DELETE", "/b/1", "POST"],
      ["GET", "/b/1", "POST"],
    ] as const;
    for (const [method, path, allow] of cases) {
      const reply = await call(path, { method });
      t.match(reply, { status: 405, body: `use ${allow}` });
      t.equal(reply.headers.get("allow"), allow);
    }
  },
);

t.test(
  "the reply to HEAD on a GET route has only a status and headers, and the connection is kept",
  async (t) => {
    const later = async () => text("later", 503);
    const { port } = await serve(t, [get("/a", () => text("got a")), get("/later", later)]);
    const client = new RawClient(t, port);
    for (const [path, status] of [
      ["/a", 200],
      ["/later", 503],
      ["/a", 200],
    ] as const) {
      const before = client.text.length;
      client.write(`HEAD ${path} HTTP/1.1\r\nhost: x\r\n\r\n`);
      await until(() => client.text.slice(before).includes("\r\n\r\n"));
      const reply = client.text.slice(before);
      t.ok(reply.startsWith(`HTTP/1.1 ${status} `), path);
      t.match(reply, /content-type: text\/plain\r\n/);
      t.notMatch(reply, /content-length/i);
      t.ok(reply.endsWith("\r\n\r\n"), "the reply has no body");
    }
  },
);

t.test(
  "a connection is closed after the reply if close is among the options of the header Connection",
  async (t) => {
    const later = async () => text("later");
    const routes = [get("/a", () => text("got a")), get("/later", later)];
    const { port } = await serve(t, [...routes, post("/b", () => text("posted b"))]);
    for (const request of ["GET /a", "GET /later", "POST /b"])
      for (const header of [
        "connection: keep-alive, close",
        "connection: Close ,te",
        "connection: keep-alive\r\nconnection: close",
        "connection: close",
      ]) {
        const client = new RawClient(t, port);
        client.write(`${request} HTTP/1.1\r\nhost: x\r\n${header}\r\ncontent-length: 0\r\n\r\n`);
        await client.closed();
        t.match(client.text, /^HTTP\/1.1 200 OK/, `${request} with ${header}`);
      }
    const client = new RawClient(t, port);
    client.write("HEAD /a HTTP/1.1\r\nhost: x\r\nconnection: te, close\r\n\r\n");
    await client.has("\r\n\r\n");
    t.match(
      client.text,
      /connection: close\r\n/,
      "the reply to a HEAD asks the client to close the connection",
    );
    const kept = new RawClient(t, port);
    for (const header of ["connection: keep-alive, closed", "x: close"]) {
      const before = kept.text.length;
      kept.write(`GET /a HTTP/1.1\r\nhost: x\r\n${header}\r\n\r\n`);
      await until(() => kept.text.slice(before).endsWith("got a"));
    }
    t.notOk(kept.isClosed);
  },
);

t.test("a HEAD call to a route without GET is answered with 405 and without a body", async (t) => {
  const { port } = await serve(t, [post("/a", () => text("posted a"))]);
  const client = new RawClient(t, port);
  client.write("HEAD /a HTTP/1.1\r\nhost: x\r\n\r\n");
  await client.has("\r\n\r\n");
  t.match(client.text, /^HTTP\/1.1 405 /);
  t.match(client.text, /allow: POST\r\n/);
  t.match(client.text, /connection: close\r\n/);
  t.notMatch(client.text, "use POST");
});

t.test("a body that arrives in pieces reaches the handler as a whole", async (t) => {
  const { port } = await serve(t, [post("/echo", (request) => text(`<${bodyText(request)}>`))]);
  const sized = new RawClient(t, port);
  sized.write("POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 6\r\n\r\n");
  for (const byte of "abcdef") {
    sized.write(byte);
    await new Promise((resolve) => setImmediate(resolve));
  }
  await sized.has("<abcdef>");

  const chunked = new RawClient(t, port);
  chunked.write("POST /echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n");
  chunked.write("1\r\nd\r\n");
  chunked.write("0\r\n\r\n");
  await chunked.has("<abcd>");
  t.pass("both bodies arrived completely");
});

t.test("a handler may keep the body after the call", async (t) => {
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

t.test("a body of the maximum size is accepted, and a larger body is refused", async (t) => {
  let calls = 0;
  const { port, call } = await serve(t, [
    post("/count", () => {
      calls += 1;
      return text("ok");
    }),
  ]);
  const send = (size: number) => call("/count", { method: "POST", body: "x".repeat(size) });
  t.match(await send(1000), { status: 200 });
  const refused = await send(1001);
  t.match(refused, { status: 413, body: "too large" });
  t.equal(refused.headers.get("connection"), "close");

  const huge = new RawClient(t, port);
  huge.write("POST /count HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999\r\n\r\n");
  await huge.has("too large"); // before any byte of the body was sent
  t.match(huge.text, /^HTTP\/1.1 413 /);
  t.equal(calls, 1);
});

t.test("a body without a declared length is refused when it exceeds the limit", async (t) => {
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
  client.write("POST /count HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n");
  const chunk = `c8\r\n${"x".repeat(200)}\r\n`;
  client.write(chunk.repeat(20)); // the limit lies within one chunk
  await client.closed();
  t.match(client.text, /^HTTP\/1.1 413 /);
  t.strictSame([calls, refusals], [0, 1]);
});

t.test("calls that are sent together on a connection get their replies in order", async (t) => {
  const { port } = await serve(t, [
    get("/n/:n", ({ params }) => text(`[${params[0]}]`)),
    post("/n", (request) => text(`[${bodyText(request)}]`)),
  ]);
  const client = new RawClient(t, port);
  const requestFor = (n: number) =>
    n % 2 === 0
      ? `GET /n/${n} HTTP/1.1\r\nhost: x\r\n\r\n`
      : `POST /n HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\n${n}`;
  client.write([0, 1, 2, 3, 4, 5].map(requestFor).join(""));
  await client.has("[5]");
  t.strictSame(client.text.match(/\[\d\]/g), ["[0]", "[1]", "[2]", "[3]", "[4]", "[5]"]);
});

t.test(
  "a call sent on a connection that waits for an asynchronous reply closes only that connection",
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
