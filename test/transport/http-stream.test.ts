// Replies that come piece by piece, over real sockets.

import type { HttpBody, HttpStream } from "../../src/transport/types.ts";
import { t } from "../support/suite.ts";
import { get, serve } from "./http-calls.ts";
import { RawClient, text, until } from "./support.ts";

const HEAD = "GET /s HTTP/1.1\r\nhost: x\r\n\r\n";

/** A stream the test writes, with what it was told. */
class TestStream implements HttpStream {
  readonly status: number = 200;
  readonly headers = { "content-type": "text/plain", "x-made": "yes" };
  readonly filler = "~";
  readonly told: string[] = [];
  body: HttpBody | undefined;
  first: string | undefined;

  opened(body: HttpBody): void {
    this.told.push("opened");
    this.body = body;
    if (this.first !== undefined) body.write(this.first);
  }
  writable(): void {
    this.told.push("writable");
  }
  closed(): void {
    this.told.push("closed");
  }
}

/** The pieces of a chunked body, as they were cut. */
function chunks(raw: string): string[] {
  const found: string[] = [];
  let at = raw.indexOf("\r\n\r\n") + 4;
  for (;;) {
    const lineEnd = raw.indexOf("\r\n", at);
    const size = Number.parseInt(raw.slice(at, lineEnd), 16);
    if (lineEnd < 0 || Number.isNaN(size)) return found;
    found.push(raw.slice(lineEnd + 2, lineEnd + 2 + size));
    at = lineEnd + 2 + size + 2;
  }
}

t.test("pieces leave as they come; then the connection goes on", async (t) => {
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
  t.same(stream.told, ["opened", "closed"]);
  t.equal(stream.body?.write("late"), false);
  stream.body?.end();
  client.write("GET /after HTTP/1.1\r\nhost: x\r\n\r\n");
  await client.has("after");
  t.notMatch(client.text, "late");
});

t.test("the head of a stream without a first piece goes out", async (t) => {
  const stream = new TestStream();
  const { port } = await serve(t, [get("/s", async () => stream)]);
  const client = new RawClient(t, port);
  client.write(HEAD);
  await client.has("\r\n\r\n");
  await until(() => chunks(client.text).length > 0);
  t.same(chunks(client.text), ["~"]);
});

t.test("the pieces of one turn leave as one", async (t) => {
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

t.test("an ended stream may end in the turn it opens", async (t) => {
  const stream = new TestStream();
  stream.opened = (body) => {
    body.write("all");
    body.end();
  };
  const { call } = await serve(t, [get("/s", () => stream)]);
  t.match(await call("/s"), { status: 200, body: "all" });
  t.same(stream.told, ["closed"]);
});

t.test(
  "a full connection is told, and gets all of it in order when the peer reads on",
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
    t.ok(pieces.length < 1000, "there is a bound");
    t.same(stream.told, ["opened"]);
    client.socket.resume();
    await until(() => stream.told.includes("writable"));
    t.equal(stream.body?.write("last"), true);
    await client.has("last");
    const sent = chunks(client.text).join("").replaceAll("~", "");
    t.ok(sent === `begin ${pieces.join("")}last`, "every byte, in order");
  },
);

t.test("a stream whose peer goes away is closed once", async (t) => {
  const stream = new TestStream();
  const { port, errors } = await serve(t, [get("/s", () => stream)]);
  const client = new RawClient(t, port);
  client.write(HEAD);
  await until(() => stream.told.includes("opened"));
  client.socket.destroy();
  await until(() => stream.told.includes("closed"));
  t.equal(stream.body?.write("late"), false);
  stream.body?.end();
  await new Promise((resolve) => setImmediate(resolve));
  t.same(stream.told, ["opened", "closed"]);
  t.same(errors, []);
});

t.test("a peer that went before the answer never opens it", async (t) => {
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
  await call("/now"); // lets the server see it
  answers[0]?.(stream);
  await until(() => stream.told.length > 0);
  t.same(stream.told, ["closed"]);
});

t.test("a second call on the connection of an open stream ends it", async (t) => {
  const stream = new TestStream();
  const { port } = await serve(t, [get("/s", () => stream)]);
  const client = new RawClient(t, port);
  client.write(HEAD);
  await until(() => stream.told.includes("opened"));
  client.write(HEAD);
  await client.closed();
  t.same(stream.told, ["opened", "closed"]);
});

t.test("closing the listener closes its streams", async (t) => {
  const stream = new TestStream();
  const { port, listener } = await serve(t, [get("/s", () => stream)]);
  const client = new RawClient(t, port);
  client.write(HEAD);
  await until(() => stream.told.includes("opened"));
  listener.close();
  await client.closed();
  t.same(stream.told, ["opened", "closed"]);
});

t.test("a stream that throws is reported and cut off", async (t) => {
  const bug = new Error("bug");
  const stream = new TestStream();
  stream.opened = () => {
    throw bug;
  };
  const { port, errors } = await serve(t, [get("/s", () => stream)]);
  const client = new RawClient(t, port);
  client.write(HEAD);
  await client.closed();
  t.same(errors, [{ error: bug, where: "GET /s" }]);
  t.same(stream.told, ["closed"]);
});

t.test("a route reads headers of its own", async (t) => {
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
