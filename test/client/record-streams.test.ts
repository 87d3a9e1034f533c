// Durable streams as an app reads and writes them. The scenario `records` tests the usual case and
// a killed broker. The tests here cover the other content types, lost replies, and platforms that
// lack parts.

import { once } from "node:events";
import { createServer, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import type { Test } from "tap";
import {
  type Client,
  connect,
  type JindouError,
  person,
  type StreamRecord,
} from "../../src/client/index.ts";
import { startBroker } from "../support/broker.ts";
import { signedPath } from "../support/signed-path.ts";
import { t } from "../support/suite.ts";

const broker = await startBroker(t);
const api = `http://127.0.0.1:${broker.apiPort}`;
await broker.call("/user/token", { uid: "zoë", token: "naïve", device_flag: 1 });

function clientOf(t: Test, port = broker.clientPort, reconnect = { minMs: 10, maxMs: 50 }): Client {
  const url = `ws://127.0.0.1:${port}`;
  const client = connect({ url, uid: "zoë", token: "naïve", reconnect });
  t.teardown(() => client.close());
  return client;
}

/** Creates a stream and returns its signed path. */
async function create(
  name: string,
  body: string | Uint8Array = "",
  contentType = "application/json",
): Promise<string> {
  const path = `/v1/stream/records/${name}`;
  const headers = { "content-type": contentType };
  await fetch(api + path, { method: "PUT", body, headers });
  return signedPath(broker, path, "write");
}

async function take<T>(
  records: AsyncIterator<StreamRecord<T>>,
  count: number,
): Promise<StreamRecord<T>[]> {
  const received: StreamRecord<T>[] = [];
  while (received.length < count) {
    const { done, value } = await records.next();
    if (done) break;
    received.push(value);
  }
  return received;
}

t.test(
  "the content type of a stream determines whether its records are JSON values, strings or bytes",
  async (t) => {
    const client = clientOf(t);
    const bytes = new Uint8Array([0, 255, 13, 10, 10]);
    for (const [contentType, ...values] of [
      ["application/json", { a: [1, "é\n"] }, [[]], null, "", 0],
      ["text/plain", " leading", "two\n\nlines: 𝄞", "data:x"],
      ["application/octet-stream", bytes, bytes.slice(1)],
    ] as const) {
      const path = await create(`type-${values.length}`, "", contentType);
      const stream = client.stream(path, { contentType });
      const live = stream.records();
      for (const value of values) {
        const next = take(live, 1);
        await stream.append(value);
        t.same((await next)[0]?.data, value, contentType);
      }
      const [whole] = await take(stream.records(), 1);
      if (contentType === "text/plain") t.equal(whole?.data, values.join(""));
      await stream.close();
      t.equal((await live.next()).done, true, "the end of the stream ends the records");
    }
  },
);

t.test(
  "a reader can continue after any record, even within the records that one request appended",
  async (t) => {
    const client = clientOf(t);
    const stream = client.stream<number>(await create("middle", "[0,1,2,3]"));
    await stream.append(4);
    const all = await take(stream.records(), 5);
    t.same(
      all.map(({ data }) => data),
      [0, 1, 2, 3, 4],
    );
    for (const { data, offset } of all.slice(0, 4)) {
      const rest = await take(stream.records(offset), 4 - data);
      t.same(
        rest.map((record) => [record.data, record.offset]),
        all.slice(data + 1).map((record) => [record.data, record.offset]),
      );
    }
    const later: StreamRecord<number>[] = [];
    const reading = take(stream.records("now"), 1).then((records) => later.push(...records));
    while (later.length === 0) await stream.append(5);
    await reading;
    t.match(later, [{ data: 5 }], "`now` leaves out earlier records");
  },
);

t.test(
  "after a stream was deleted and created again, a read from an old offset starts at the first record, which is marked as restarted",
  async (t) => {
    const client = clientOf(t);
    const path = await create("anew", "[0,1]");
    const records = client.stream<number>(path).records();
    const [, last] = await take(records, 2);
    await fetch(`${api}/v1/stream/records/anew`, { method: "DELETE" });
    await t.rejects(records.next(), { code: "stream_unknown" });
    await create("anew", "[2,3]");
    const again = await take(client.stream<number>(path).records(last?.offset), 2);
    t.match(again, [
      { data: 2, restarted: true },
      { data: 3, restarted: false },
    ]);
  },
);

t.test("a stream whose clientMsgNo has a lone surrogate is refused", async (t) => {
  const client = clientOf(t);
  const stream = client.stream({ channel: person("bot"), clientMsgNo: "\ud800" });
  await t.rejects(stream.finished, { code: "bad_request" });
});

t.test(
  "a waiting iterator of records ends when it is stopped, and rejects when the client closes",
  async (t) => {
    const client = clientOf(t);
    const errors: JindouError[] = [];
    client.on("error", (error) => errors.push(error));
    const path = await create("waiting");
    const records = client.stream(path).records();
    const waiting = records.next();
    await records.return?.();
    t.same(await waiting, { done: true, value: undefined });
    t.same(errors, [], "a stop is not reported as an error");
    const begun = client.stream(await create("begun", "[0,1]")).records();
    t.match(await begun.next(), { value: { data: 0 } });
    const open = client.stream(path);
    const closed = t.rejects(open.records().next(), { code: "closed" });
    await client.close();
    await closed;
    await t.rejects(begun.next(), { code: "closed" }, "nothing is delivered after the close");
    await t.rejects(open.append(1), { code: "closed" });
  },
);

t.test("a closed client makes no further request for a stream that it opened", async (t) => {
  let calls = 0;
  const server = createServer(() => {
    calls += 1; // and never replies
  });
  const client = clientOf(t, await listen(t, server));
  const stream = client.stream("/v1/stream/a?sig=a", { contentType: "text/plain" });
  const records = stream.records();
  const request = once(server, "request");
  const sent = stream.append("a").catch(() => undefined);
  const waiting = t.rejects(stream.append("b"), { code: "closed" });
  await request;
  await client.close();
  await Promise.all([sent, waiting]);
  await t.rejects(records.next(), { code: "closed" });
  t.equal(calls, 1);
});

t.test("a reader ends at once if it or its client is closed in an `error` handler", async (t) => {
  const server = createServer(({ url = "" }, response) => {
    if (url.startsWith("/v1/stream/")) response.writeHead(503).end();
  });
  const port = await listen(t, server);
  const startMs = performance.now();
  for (const isClient of [false, true]) {
    const client = clientOf(t, port, { minMs: 20_000, maxMs: 20_000 });
    const records = client.stream("/v1/stream/a?sig=a").records();
    client.on("error", () => void (isClient ? client.close() : records.return?.()));
    if (isClient) await t.rejects(records.next(), { code: "closed" });
    else t.equal((await records.next()).done, true);
  }
  t.ok(performance.now() - startMs < 5000, "both calls end at once");
});

/**
 * Starts a proxy in front of the broker that loses the replies to the first POSTs, and refuses the
 * next `refusals` POSTs.
 */
async function startLossyProxy(t: Test, losses: number, refusals = 0): Promise<number> {
  let posts = 0;
  const proxy = createServer(async (request, response) => {
    const chunks: Buffer[] = [];
    for await (const chunk of request) chunks.push(chunk);
    const { method = "GET", url } = request;
    if (method === "POST") posts += 1;
    if (method === "POST" && posts > losses && posts <= losses + refusals)
      return void response.writeHead(403).end('{"code":"forbidden"}');
    const headers = Object.entries(request.headers).filter(
      ([name]) => name === "content-type" || name.startsWith("producer-"),
    ) as [string, string][];
    const body = chunks.length === 0 ? undefined : Buffer.concat(chunks);
    const target = `http://127.0.0.1:${broker.clientPort}${url}`;
    const reply = await fetch(target, { method, headers, body: body ?? null });
    if (method === "POST" && posts <= losses) return void request.socket.destroy();
    const text = await reply.text();
    response.writeHead(reply.status, Object.fromEntries(reply.headers)).end(text);
  });
  return listen(t, proxy);
}

async function listen(t: Test, proxy: Server): Promise<number> {
  proxy.listen(0, "127.0.0.1");
  await once(proxy, "listening");
  t.teardown(() => {
    proxy.closeAllConnections();
    proxy.close();
  });
  return (proxy.address() as AddressInfo).port; // it listens on a TCP port
}

t.test("a reader waits until a proxy that replies 503 reaches the broker again", async (t) => {
  const path = await create("proxied", "[1]");
  const bodies = ['{"message":"no healthy upstream"}', "null", "<html>"];
  const target = `http://127.0.0.1:${broker.clientPort}`;
  const proxy = createServer(async ({ url }, response) => {
    const body = bodies.shift();
    if (body !== undefined) return void response.writeHead(503).end(body);
    const reply = await fetch(target + url);
    const text = await reply.text();
    response.writeHead(reply.status, Object.fromEntries(reply.headers)).end(text);
  });
  const client = clientOf(t, await listen(t, proxy));
  t.match(await take(client.stream(path).records(), 1), [{ data: 1 }]);
  t.equal(bodies.length, 0, "all 503 replies were sent");
});

type Answer = (response: ServerResponse) => unknown;

const TAIL = {
  "content-type": "application/json",
  "stream-next-offset": "1_1",
  "stream-up-to-date": "true",
};
const CONTROL = 'event: control\ndata:{"streamNextOffset":"1_1","upToDate":true}\n\n';
const LOST = '{"code":"offset_lost"}';
/** Minimum total time of the pauses that a reader with `PACED` makes after seven failures. */
const SEVEN_PAUSES_MS = 1260;
const PACED = { minMs: 20, maxMs: 60_000 };

/**
 * Asserts that a reader makes growing pauses between `count` requests, which contain seven
 * failures. The server sends one record, and then `later` in reply to each read after this record.
 */
async function makesPauses(
  t: Test,
  { name, later, count = 9 }: { readonly name: string; later: Answer; count?: number },
): Promise<void> {
  const timesMs: number[] = [];
  const server = createServer(({ url = "" }, response) => {
    if (!url.startsWith("/v1/stream/")) return void response.writeHead(404).end();
    timesMs.push(performance.now());
    if (url.includes("offset=-1")) response.writeHead(200, TAIL).end("[1]");
    else later(response);
  });
  const client = clientOf(t, await listen(t, server), PACED);
  client.on("error", () => {});
  const records = client.stream("/v1/stream/a?sig=a").records();
  const reading = (async () => {
    for await (const _ of records);
  })();
  while (timesMs.length < count) await new Promise((resolve) => setTimeout(resolve, 5));
  await records.return?.();
  await reading;
  const tookMs = (timesMs[count - 1] ?? 0) - (timesMs[0] ?? 0);
  t.ok(tookMs >= SEVEN_PAUSES_MS, `${name}: ${count} requests took ${Math.round(tookMs)} ms`);
}

t.test(
  "the pauses between a reader's requests grow while the replies contain no new record",
  async (t) => {
    const answers: Readonly<Record<string, Answer>> = {
      "an empty reply": (response) => response.end(),
      "only comments": (response) => response.end(":\n\n:\n\n"),
      "a page of a proxy": (response) => response.end("<html>\n\n</html>\n\n"),
      "no position": (response) => response.end("event: data\ndata:[1]\n\n"),
      "the same position": (response) => response.end(CONTROL),
      "the same records": (response) => response.end(`event: data\ndata:[1]\n\n${CONTROL}`),
    };
    await Promise.all([
      ...Object.entries(answers).map(([name, later]) => makesPauses(t, { name, later })),
      makesPauses(t, {
        name: "a server that does not know another server's offset",
        later: (response) => response.writeHead(410).end(LOST),
        count: 15,
      }),
    ]);
  },
);

t.test(
  "an append whose reply is lost is repeated only if the stream was opened with a producer, and is stored once",
  async (t) => {
    const client = clientOf(t, await startLossyProxy(t, 3));
    const path = await create("lossy");
    await t.rejects(client.stream(path).append("unnamed"), {
      code: "connection_lost",
      retry: true,
    });
    const stream = client.stream(path, { producer: "zoë's tab" });
    await Promise.all(["a", "b", "c"].map((value) => stream.append(value)));
    const text = await (await fetch(`${api}/v1/stream/records/lossy`)).text();
    t.equal(text, '["unnamed","a","b","c"]');
  },
);

t.test(
  "a producer's first append whose reply is lost is not stored again after a newer producer has appended",
  async (t) => {
    const path = await create("overtaken");
    const text = async () => (await fetch(`${api}/v1/stream/records/overtaken`)).text();
    const lossy = clientOf(t, await startLossyProxy(t, 1));
    const early = lossy.stream(path, { producer: "p" }).append(0);
    const refused = t.rejects(early, { code: "producer_fenced", retry: false });
    while ((await text()) !== "[0]") await sleep(5);
    const late = clientOf(t).stream(path, { producer: "p" });
    await late.append(1);
    await refused;
    await late.append(2);
    t.equal(await text(), "[0,1,2]");
  },
);

t.test(
  "a producer's next record is stored after an append that was stored but whose retry was refused",
  async (t) => {
    const port = await startLossyProxy(t, 1, 1);
    const stream = clientOf(t, port).stream(await create("refused"), { producer: "p" });
    await t.rejects(stream.append("a"), { code: "forbidden", retry: false });
    for (const value of ["b", "c"]) await stream.append(value);
    const text = await (await fetch(`${api}/v1/stream/records/refused`)).text();
    t.equal(text, '["a","b","c"]');
  },
);

t.test("a producer continues after its stream was deleted and created again", async (t) => {
  const stream = clientOf(t).stream(await create("continued"), { producer: "p" });
  for (const value of [0, 1]) await stream.append(value);
  await fetch(`${api}/v1/stream/records/continued`, { method: "DELETE" });
  await create("continued");
  for (const value of [2, 3]) await stream.append(value);
  const text = await (await fetch(`${api}/v1/stream/records/continued`)).text();
  t.equal(text, "[2,3]");
});

t.test(
  "an append of a producer is refused after another producer with the same name has appended",
  async (t) => {
    const client = clientOf(t);
    const path = await create("fenced");
    const early = client.stream(path, { producer: "p" });
    await early.append(0);
    const late = client.stream(path, { producer: "p" });
    await late.append(1);
    await t.rejects(early.append(2), { code: "producer_fenced", retry: false });
    await late.append(3);
    t.equal(await (await fetch(`${api}/v1/stream/records/fenced`)).text(), "[0,1,3]");
  },
);

t.test(
  "an append is rejected as `producer_fenced`, and not repeated, if a proxy has removed the epoch from the reply",
  async (t) => {
    let calls = 0;
    const server = createServer((_, response) => {
      calls += 1;
      response.writeHead(calls < 50 ? 403 : 200).end('{"code":"producer_fenced"}');
    });
    const stream = clientOf(t, await listen(t, server)).stream("/v1/stream/a?sig=a", {
      producer: "p",
    });
    const message = "HTTP status 403";
    await t.rejects(stream.append(0), { code: "producer_fenced", message, retry: false });
    t.ok(calls < 50, "the append was not repeated");
  },
);

t.test("a stream is followed on a platform whose fetch returns only whole bodies", async (t) => {
  const { Response: own } = globalThis;
  t.teardown(() => {
    globalThis.Response = own;
  });
  globalThis.Response = class {} as typeof Response; // as on React Native
  const client = clientOf(t);
  const path = await create("whole", "[0]");
  const records = client.stream(path).records();
  t.match(await take(records, 1), [{ data: 0 }]);
  const next = take(records, 1);
  await client.stream(path).append(1);
  t.match(await next, [{ data: 1 }]);
  await client.stream(path).close();
  t.equal((await records.next()).done, true);
  await makesPauses(t, {
    name: "long polls that do not wait",
    later: (response) => response.writeHead(204, TAIL).end(),
  });
});

t.test(
  "invalid paths, options and data are rejected, and so are reads if `fetch` is not available",
  async (t) => {
    const client = clientOf(t);
    for (const path of ["", "answers/1", "/v1/stream/", "/stream/1", "ws://127.0.0.1/v1/stream/1"])
      t.throws(() => client.stream(path), { code: "bad_option" }, path);
    t.throws(() => client.stream("/v1/stream/a", { from: 1 } as object), { code: "bad_option" });
    const stream = client.stream("/v1/stream/a");
    await t.rejects(stream.append(undefined), { code: "bad_option" });
    const text = client.stream("/v1/stream/a", { contentType: "text/plain" });
    await t.rejects(text.append({}), { code: "bad_option" });
    const { fetch: own } = globalThis;
    t.teardown(() => {
      globalThis.fetch = own;
    });
    Object.assign(globalThis, { fetch: undefined });
    await t.rejects(stream.records().next(), { code: "no_fetch" });
  },
);
