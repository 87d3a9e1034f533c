// Tests of HEAD on the paths that can be called with GET, sent over sockets to a real broker.

import type { Test } from "tap";
import { type Broker, startBroker } from "../support/broker.ts";
import { t } from "../support/suite.ts";
import { RawClient } from "../transport/support.ts";

const TOKEN = "token: secret\r\n";
const PARAMETERS = { uid: "alice", channel_id: "g", channel_type: "2" };
/** Headers whose values differ between two replies, or that only a reply with a body has. */
const VARYING = /^(date|content-length|transfer-encoding):/;

interface Head {
  readonly status: string;
  readonly headers: readonly string[];
}

function headOf(text: string): Head {
  const [status = "", ...lines] = text.slice(0, text.indexOf("\r\n\r\n")).split("\r\n");
  const headers = lines.map((line) => line.toLowerCase()).filter((line) => !VARYING.test(line));
  return { status, headers: headers.sort() };
}

/** Sends one request on a connection of its own and returns the head of the reply. */
async function ask(t: Test, { apiPort }: Broker, request: string): Promise<Head> {
  const client = new RawClient(t, apiPort);
  client.write(`${request}\r\n`);
  await client.has("\r\n\r\n");
  client.socket.destroy();
  return headOf(client.text);
}

const requestOf = (method: string, path: string, headers = "") =>
  `${method} ${path} HTTP/1.1\r\nhost: 127.0.0.1\r\n${headers}`;

/** Starts a broker with a group, an active stream in the group and a credential for calls. */
async function startUsed(t: Test): Promise<Broker> {
  const broker = await startBroker(t, { JINDOU_API_TOKEN: "secret" });
  const group = { channel_id: "g", channel_type: 2 };
  await broker.call("/channel", { ...group, subscribers: ["alice"] }, { token: "secret" });
  const event = { type: "___TextMessageStart", data: "" };
  const start = { ...group, client_msg_no: "answer", from_uid: "alice", event };
  await broker.call("/event", start, { token: "secret" });
  return broker;
}

/** Returns the paths of GET calls, without and with a query, from the OpenAPI document. */
async function getPaths(broker: Broker): Promise<readonly string[]> {
  const { body } = await broker.call("/openapi.json", undefined, { token: "secret" });
  const templates = Object.entries<object>(body.paths)
    .filter(([, operations]) => "get" in operations)
    .map(([path]) => path);
  return templates
    .map((path) =>
      path
        .replace("{channel_type}", "2")
        .replace("{channel_id}", "g")
        .replace("{client_msg_no}", "answer"),
    )
    .flatMap((path) => [path, `${path}?${new URLSearchParams(PARAMETERS)}`]);
}

t.test("HEAD has the status and the headers of GET on every path", async (t) => {
  const broker = await startUsed(t);
  const paths = await getPaths(broker);
  t.ok(paths.length > 20);
  const missing = ["/stream/2/g/none", "/channel/state?channel_id=none&channel_type=2"];
  for (const path of [...paths, ...missing])
    for (const headers of ["", TOKEN, "token: wrong\r\n"]) {
      const get = await ask(t, broker, requestOf("GET", path, headers));
      const head = await ask(t, broker, requestOf("HEAD", path, headers));
      t.same(head, get, path);
    }
});

t.test("a reply to HEAD has no body or Content-Length and keeps the connection open", async (t) => {
  const broker = await startUsed(t);
  for (const path of ["/healthz", "/readyz", "/metrics", "/channel/state?channel_id=g", "/connz"]) {
    const client = new RawClient(t, broker.apiPort);
    const heads = 3;
    for (let count = 1; count <= heads; count++) {
      client.write(`${requestOf("HEAD", path, TOKEN)}\r\n`);
      while (client.text.split("\r\n\r\n").length <= count)
        await new Promise((resolve) => setTimeout(resolve, 1));
    }
    const replies = client.text.split("\r\n\r\n").slice(0, -1);
    t.equal(client.text, replies.map((reply) => `${reply}\r\n\r\n`).join(""), "only heads");
    for (const reply of replies) {
      t.match(reply, /^HTTP\/1.1 (200|400)/);
      t.notMatch(reply, /content-length|transfer-encoding/i);
    }
    client.write(`${requestOf("GET", "/healthz")}\r\n`);
    await client.has('{"status":"ok"}');
  }
});

t.test("HEAD for the events of a stream does not follow the stream", async (t) => {
  const broker = await startUsed(t);
  const request = requestOf("HEAD", "/stream/2/g/answer", `accept: text/event-stream\r\n${TOKEN}`);
  const client = new RawClient(t, broker.apiPort);
  client.write(`${request}\r\n`);
  await client.has("\r\n\r\n");
  t.match(client.text, /^HTTP\/1.1 200 /);
  t.match(client.text, /content-type: text\/event-stream/);
  client.write(`${requestOf("GET", "/healthz")}\r\n`);
  await client.has('{"status":"ok"}');
  t.notMatch(client.text, "event:");
});

t.test("HEAD for the event feed neither waits for events nor follows them", async (t) => {
  const broker = await startUsed(t);
  await broker.call("/events/feed", { feed: "on" }, { token: "secret" });
  const place = "/events?after=now";
  for (const headers of [TOKEN, `accept: text/event-stream\r\n${TOKEN}`]) {
    const startMs = performance.now();
    const head = await ask(t, broker, requestOf("HEAD", `${place}&wait=60`, headers));
    t.ok(performance.now() - startMs < 30_000, "the reply does not wait");
    const get = await ask(t, broker, requestOf("GET", place, headers));
    const kept = head.headers.filter((line) => !line.startsWith("keep-alive:")); // not in a feed
    t.equal(head.status, get.status);
    t.same(
      kept,
      get.headers.filter((line) => !line.startsWith("keep-alive:")),
      "as GET",
    );
  }
});

t.test("HEAD on a path without GET is answered with 405 and the allowed methods", async (t) => {
  const broker = await startUsed(t);
  const head = await ask(t, broker, requestOf("HEAD", "/message/send", TOKEN));
  t.match(head.status, " 405 ");
  t.ok(head.headers.includes("allow: post"));
  const put = await ask(t, broker, requestOf("PUT", "/healthz"));
  t.ok(put.headers.includes("allow: get, head"));
});
