// Streamed replies over real sockets.

import type { HttpBody, HttpStream } from "../../src/transport/types.ts";
import { t } from "../support/suite.ts";
import { get, serve } from "./http-calls.ts";
import { RawClient, text, until } from "./support.ts";

const HEAD = "GET /s HTTP/1.1\r\nhost: x\r\n\r\n";

/** A stream that the test writes to. It records which of its methods were called. */
class TestStream implements HttpStream {
  readonly status: number = 200;
  readonly headers = { "content-type": "text/plain", "x-made": "yes" };
  readonly filler = "~";
  readonly calls: string[] = [];
  body: HttpBody | undefined;
  first: string | undefined;

  opened(body: HttpBody): void {
    this.calls.push("opened");
    this.body = body;
    if (this.first !== undefined) body.write(this.first);
  }
  writable(): void {
    this.calls.push("writable");
  }
  closed(): void {
    this.calls.push("closed");
  }
}

/** Returns the chunks of a chunked body. */
function chunks(raw: string): string[] {
  const chunkTexts: string[] = [];
  let at = raw.indexOf("\r\n\r\n") + 4;
  for (;;) {
    const lineEnd = raw.indexOf("\r\n", at);
    const size = Number.parseInt(raw.slice(at, lineEnd), 16);
    if (lineEnd < 0 || Number.isNaN(size)) return chunkTexts;
    chunkTexts.push(raw.slice(lineEnd + 2, lineEnd + 2 + size));
    at = lineEnd + 2 + size + 2;
  }
}

t.test("a streamed reply sends each piece immediately, and its connection is reused", async (t) => {
  const stream = new TestStream();
  stream.first = "one";
  const { port } = await serve(t, [get("/s", () => stream), get("/after", () => text("after"))]);
  const client = new RawClient(t, port);
  client.write(HEAD);
  await client.has("one");
  t.match(client.text, /^HTTP\/1.1 200 OK\r\n/);
  t.match(client.text, /x-made: yes\r\n/);
  t.equal(stream.body?.write("two"), true);
  await client.has("two");
  stream.body?.write("three");
  stream.body?.end();
  await client.has("\r\n0\r\n\r\n");
  t.same(chunks(client.text), ["one", "two", "three", ""]);
  t.same(stream.calls, ["opened", "closed"]);
  t.equal(stream.body?.write("late"), false);
  stream.body?.end();
  client.write("GET /after HTTP/1.1\r\nhost: x\r\n\r\n");
  await client.has("after");
  t.notMatch(client.text, "late");
});

t.test(
  "the head of a streamed reply without a first piece is sent immediately, followed by filler bytes",
  async (t) => {
    const stream = new TestStream();
    const { port } = await serve(t, [get("/s", async () => stream)]);
    const client = new RawClient(t, port);
    client.write(HEAD);
    await client.has("\r\n\r\n");
    await until(() => chunks(client.text).length > 0);
    t.same(chunks(client.text), ["~"]);
  },
);

t.test("pieces that a streamed reply writes in one turn are sent as one chunk", async (t) => {
  const stream = new TestStream();
  stream.first = "-";
  const { port } = await serve(t, [get("/s", () => stream)]);
  const client = new RawClient(t, port);
  client.write(HEAD);
  await client.has("-");
  for (const piece of ["x1", "x2", "x3"]) stream.body?.write(piece);
  await client.has("x3");
  t.same(chunks(client.text), ["-", "x1x2x3"]);
});

t.test("a streamed reply may end in the turn in which it opens", async (t) => {
  const stream = new TestStream();
  stream.opened = (body) => {
    body.write("all");
    body.end();
  };
  const { call } = await serve(t, [get("/s", () => stream)]);
  t.match(await call("/s"), { status: 200, body: "all" });
  t.same(stream.calls, ["closed"]);
});

t.test(
  "the source of a streamed reply is notified when a full buffer has room again, and the peer gets every byte in order",
  async (t) => {
    const stream = new TestStream();
    stream.first = "begin ";
    const { port } = await serve(t, [get("/s", () => stream)]);
    const client = new RawClient(t, port);
    client.write(HEAD);
    await client.has("begin ");
    client.socket.pause();
    const pieces: string[] = [];
    while (pieces.length < 1000) {
      const piece = `${pieces.length}:${"x".repeat(100_000)};`;
      pieces.push(piece);
      if (stream.body?.write(piece) === false) break;
      await new Promise((resolve) => setImmediate(resolve));
    }
    t.ok(pieces.length < 1000, "`write` returns false at some point");
    t.same(stream.calls, ["opened"]);
    client.socket.resume();
    await until(() => stream.calls.includes("writable"));
    t.equal(stream.body?.write("last"), true);
    await client.has("last");
    const sent = chunks(client.text).join("").replaceAll("~", "");
    t.ok(sent === `begin ${pieces.join("")}last`, "every byte arrived in order");
  },
);

t.test("a streamed reply whose peer disconnects is closed once", async (t) => {
  const stream = new TestStream();
  const { port, errors } = await serve(t, [get("/s", () => stream)]);
  const client = new RawClient(t, port);
  client.write(HEAD);
  await until(() => stream.calls.includes("opened"));
  client.socket.destroy();
  await until(() => stream.calls.includes("closed"));
  t.equal(stream.body?.write("late"), false);
  stream.body?.end();
  await new Promise((resolve) => setImmediate(resolve));
  t.same(stream.calls, ["opened", "closed"]);
  t.same(errors, []);
});

t.test("a streamed reply is not opened if its peer has already disconnected", async (t) => {
  const answers: ((stream: HttpStream) => void)[] = [];
  const stream = new TestStream();
  const { port, call } = await serve(t, [
    get("/s", () => new Promise((resolve) => answers.push(resolve))),
    get("/now", () => text("now")),
  ]);
  const client = new RawClient(t, port);
  client.write(HEAD);
  await until(() => answers.length > 0);
  client.socket.destroy();
  await call("/now"); // lets the server notice the close
  answers[0]?.(stream);
  await until(() => stream.calls.length > 0);
  t.same(stream.calls, ["closed"]);
});

t.test("a second call on the connection of a streamed reply ends the reply", async (t) => {
  const stream = new TestStream();
  const { port } = await serve(t, [get("/s", () => stream)]);
  const client = new RawClient(t, port);
  client.write(HEAD);
  await until(() => stream.calls.includes("opened"));
  client.write(HEAD);
  await client.closed();
  t.same(stream.calls, ["opened", "closed"]);
});

t.test("closing the listener closes its streamed replies", async (t) => {
  const stream = new TestStream();
  const { port, listener } = await serve(t, [get("/s", () => stream)]);
  const client = new RawClient(t, port);
  client.write(HEAD);
  await until(() => stream.calls.includes("opened"));
  listener.close();
  await client.closed();
  t.same(stream.calls, ["opened", "closed"]);
});

t.test("an error that a streamed reply throws is reported and closes the reply", async (t) => {
  const bug = new Error("bug");
  const stream = new TestStream();
  stream.opened = () => {
    throw bug;
  };
  const { port, errors } = await serve(t, [get("/s", () => stream)]);
  const client = new RawClient(t, port);
  client.write(HEAD);
  await client.closed();
  t.same(errors, [{ error: bug, message: "Could not handle GET /s" }]);
  t.same(stream.calls, ["closed"]);
});

t.test("a route can read headers in addition to those that its endpoint reads", async (t) => {
  const route = get("/own", ({ headers }) => text(JSON.stringify(headers)));
  const { call } = await serve(t, [{ ...route, headers: ["x-own"] }, get("/all", route.handle)], {
    headers: ["x-all"],
  });
  const sent = { headers: { "x-own": "o", "x-all": "a" } };
  t.same(JSON.parse((await call("/own", sent)).body), {
    "x-all": "a",
    "x-own": "o",
  });
  t.same(JSON.parse((await call("/all", sent)).body), { "x-all": "a" });
});

t.test("a HEAD call to the route of a streamed reply gets only the head", async (t) => {
  const stream = new TestStream();
  const { port } = await serve(t, [get("/s", () => stream), get("/after", () => text("after"))]);
  const client = new RawClient(t, port);
  client.write(HEAD.replace("GET", "HEAD"));
  await client.has("\r\n\r\n");
  t.match(client.text, /^HTTP\/1.1 200 OK\r\n/);
  t.match(client.text, /x-made: yes\r\n/);
  t.notMatch(client.text, /transfer-encoding|content-length/i);
  t.same(stream.calls, ["closed"]);
  client.write("GET /after HTTP/1.1\r\nhost: x\r\n\r\n");
  await client.has("after");
});
