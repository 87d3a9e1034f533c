// Tests of streams below /v1/stream/ for behaviour that the public conformance suite does not test.

import t from "tap";
import { type Broker, spawnBroker, startBroker, tempFolder } from "../support/broker.ts";
import { signedPath } from "../support/signed-path.ts";
import { type Call, callAt, type Reply } from "./http-client.ts";

const JSON_TYPE = { "content-type": "application/json" };
const GAP_MS = 500;
const MAX_READERS = 80;

const broker = await startBroker(t, {
  JINDOU_LOGS_MAX_BYTES: "1024",
  JINDOU_LOGS_MAX_PRODUCERS: "2",
  JINDOU_API_MAX_FOLLOWERS: String(MAX_READERS),
});

const call = (path: string, options?: Call) => callAt(broker.apiPort, path, options);
const put = (path: string, body = "", headers: Call["headers"] = JSON_TYPE) =>
  call(path, { method: "PUT", body, headers });
const post = (path: string, body: string, headers: Call["headers"] = {}) =>
  call(path, { method: "POST", body, headers: { ...JSON_TYPE, ...headers } });
const offsetOf = ({ headers }: Reply) => headers["stream-next-offset"] ?? "";

const producer = (epoch: number, number: number, id = "p") => ({
  ...{ "producer-id": id, "producer-epoch": String(epoch) },
  "producer-seq": String(number),
});

/** Returns the value of a metric. */
async function metric({ apiPort }: Broker, name: string): Promise<number> {
  const { text } = await callAt(apiPort, "/metrics");
  return Number(new RegExp(`^${name} (.*)$`, "m").exec(text)?.[1]);
}

async function until(holds: () => Promise<boolean>): Promise<void> {
  while (!(await holds())) await new Promise((resolve) => setTimeout(resolve, 20));
}

t.test("the messages of a JSON stream keep the text that was appended", async (t) => {
  const path = "/v1/stream/texts";
  t.equal(
    (await put(path, ' [ 1.0 , 1e2,{"b":1, "a":12345678901234567890 ,"b":2}, [[]] ] ')).status,
    201,
  );
  t.equal((await post(path, ' "\\u00e9é" ')).status, 204);
  const { text } = await call(path);
  t.equal(text, '[1.0,1e2,{"b":1, "a":12345678901234567890 ,"b":2},[[]],"\\u00e9é"]');
});

t.test("a body that is not JSON is refused by a JSON stream and changes nothing", async (t) => {
  const path = "/v1/stream/invalid";
  t.equal((await put(path, "[0]")).status, 201);
  for (const body of ["{", "[1,]", "1 2", "nul", "[]", "\ufeff1", '"\\x"', "[1"])
    t.match((await post(path, body)).json, { status: 400, code: "bad_request" }, body);
  const notUtf8 = { method: "POST", body: Buffer.from([0x22, 0xff, 0x22]), headers: JSON_TYPE };
  t.equal((await call(path, notUtf8)).status, 400);
  t.equal((await call(path)).text, "[0]");
});

t.test("a path has 1 to 8 segments, which are ids after percent-decoding", async (t) => {
  const segments = Array.from({ length: 8 }, (_, at) => `s${at}`).join("/");
  t.equal((await put(`/v1/stream/${segments}`)).status, 201);
  t.equal((await put("/v1/stream/%73%30/caf%C3%A9")).status, 201);
  t.equal((await call("/v1/stream/s0/café".replace("é", "%c3%a9"))).status, 200);
  for (const path of [
    `${segments}/s8`,
    "",
    "a//b",
    "a/",
    "a%00",
    "a%2Fb",
    "a%40b",
    "%ff",
    "x".repeat(129),
  ])
    t.equal((await put(`/v1/stream/${path}`)).status, 400, path);
  t.equal((await put("/v1/stream/__ds/subscriptions")).status, 404);
  t.equal((await call("/v1/stream")).status, 404);
});

t.test("a Stream-Seq, Producer-Id or Producer-Seq over its limit is refused", async (t) => {
  const path = "/v1/stream/headers";
  t.equal((await put(path)).status, 201);
  t.equal((await post(path, "1", { "stream-seq": "9".repeat(256) })).status, 204);
  for (const headers of [
    { "stream-seq": "9".repeat(257) },
    producer(0, 0, "x".repeat(129)),
    { ...producer(0, 0), "producer-seq": "9007199254740992" },
  ])
    t.equal((await post(path, "1", headers)).status, 400);
});

t.test("a Content-Type that is too long or not printable is refused", async (t) => {
  const [path, type] = ["/v1/stream/types", "text/plain; x="];
  const utf8 = Buffer.from("é").toString("latin1"); // Node.js sends headers as Latin-1
  const longest = { "content-type": type + "y".repeat(256 - type.length) };
  t.equal((await put(path, "a", longest)).status, 201);
  t.equal((await post(path, "b", longest)).status, 204);
  for (const contentType of [`${longest["content-type"]}y`, `${type}${utf8}y`, `${type}\ty`])
    for (const reply of [
      await put("/v1/stream/other-types", "a", { "content-type": contentType }),
      await post(path, "c", { "content-type": contentType }),
      await post(path, "", { "content-type": contentType, "stream-closed": "true" }),
    ])
      t.match(reply.json, { status: 400, code: "bad_request", error: /Content-Type must/ });
  t.equal((await call("/v1/stream/other-types")).status, 404);
  const { headers, text } = await call(path);
  t.same([headers["stream-closed"], text], [undefined, "ab"]);
});

t.test(
  "appends of one producer that arrive out of order are all stored, in the order of their numbers",
  async (t) => {
    // Tried up to five times, because a busy machine may delay number 0 for longer than the other
    // requests wait for it.
    for (let at = 1, isInTime = false; !isInTime; at++) {
      const path = `/v1/stream/overtaken-${at}`;
      t.equal((await put(path)).status, 201);
      const startMs = performance.now();
      const late = [2, 1].map((number) => post(path, String(number), producer(0, number)));
      await new Promise((resolve) => setTimeout(resolve, GAP_MS / 10));
      t.equal((await post(path, "0", producer(0, 0))).status, 200);
      const replies = await Promise.all(late);
      isInTime = performance.now() - startMs < GAP_MS || at === 5;
      if (!isInTime) continue;
      t.same(
        replies.map(({ status }) => status),
        [200, 200],
      );
      t.equal((await call(path)).text, "[0,1,2]");
    }
  },
);

t.test(
  "a gap in a producer's numbers is refused after half a second, with the expected and the received number",
  async (t) => {
    const path = "/v1/stream/gap";
    const name = "jindou_log_producer_gaps_total";
    t.equal((await put(path)).status, 201);
    t.equal((await post(path, "0", producer(0, 0))).status, 200);
    const before = await metric(broker, name);
    const startMs = performance.now();
    const reply = await post(path, "5", producer(0, 5));
    t.ok(performance.now() - startMs >= GAP_MS - 5, "the refusal takes half a second");
    t.equal(reply.status, 409);
    t.match(reply.headers, { "producer-expected-seq": "1", "producer-received-seq": "5" });
    t.match(reply.json.error, /Producer-Seq is 1, but the request has 5.*appendfsync/);
    t.equal(await metric(broker, name), before + 1);
    t.equal((await call(path)).text, "[0]");
  },
);

t.test(
  "at most 16 appends to one stream wait for an earlier Producer-Seq, and the waiting appends to all streams take up at most a quarter of api.maxFollowers",
  async (t) => {
    const paths = ["/v1/stream/gaps-1", "/v1/stream/gaps-2"];
    for (const path of paths) t.equal((await put(path)).status, 201);
    /** Returns the greatest number of readers while appends with gaps wait on the streams. */
    async function mostReaders(streams: readonly string[]): Promise<number> {
      let [most, isDone] = [0, false];
      const appends = streams.flatMap((path) =>
        Array.from({ length: MAX_READERS }, (_, at) => post(path, "1", producer(0, at + 1))),
      );
      const refusals = Promise.all(appends).finally(() => {
        isDone = true;
      });
      while (!isDone) most = Math.max(most, await metric(broker, "jindou_log_readers"));
      for (const { json } of await refusals) t.match(json, { code: "producer_gap" });
      return most;
    }
    t.ok((await mostReaders(paths.slice(1))) <= 16);
    t.ok((await mostReaders(paths)) <= MAX_READERS / 4);
  },
);

t.test(
  "an append that would exceed the byte or producer limit of its stream is answered with 413, and the stream stays readable",
  async (t) => {
    const path = "/v1/stream/full";
    t.equal((await put(path, "[1]")).status, 201);
    t.match((await post(path, `"${"x".repeat(1024)}"`)).json, { status: 413, code: "log_full" });
    for (const id of ["a", "b"]) t.equal((await post(path, "2", producer(0, 0, id))).status, 200);
    t.match((await post(path, "2", producer(0, 0, "c"))).json, { status: 413, code: "log_full" });
    t.equal((await call(path)).text, "[1,2,2]");
  },
);

t.test(
  "a fork with a chain of more than 64 sources is answered with 413 and not created",
  async (t) => {
    const path = (depth: number) => `/v1/stream/chain-${depth}`;
    const fork = (depth: number) =>
      put(path(depth), "", { ...JSON_TYPE, "stream-forked-from": path(depth - 1) });
    t.equal((await put(path(0), "[0]")).status, 201);
    for (let depth = 1; depth <= 64; depth++) t.equal((await fork(depth)).status, 201);
    t.match((await fork(65)).json, {
      status: 413,
      code: "log_full",
      error: /more than 64 streams/,
    });
    t.equal((await call(path(65))).status, 404);
    t.equal((await call(path(64))).text, "[0]");
  },
);

t.test("a read at an offset from before a stream's recreation is refused with 410", async (t) => {
  const path = "/v1/stream/anew";
  const offset = offsetOf(await put(path, "[1]"));
  t.equal((await call(path, { method: "DELETE" })).status, 204);
  t.equal((await put(path, "[2]")).status, 201);
  const url = await signedPath(broker, path, "read");
  // There are more requests than readers allowed at once, so each request must free its place.
  for (const live of ["", "&live=long-poll", ...Array<string>(MAX_READERS + 1).fill("&live=sse")]) {
    const query = `offset=${offset}${live}`;
    for (const reply of [
      await call(`${path}?${query}`),
      await callAt(broker.clientPort, `${url}&${query}`),
    ])
      t.match(reply.json, { status: 410, code: "offset_lost" }, query);
    t.equal((await call(`${path}?${query}`, { method: "HEAD" })).status, 200);
  }
  t.equal(await metric(broker, "jindou_log_readers"), 0);
  const fork = { "stream-forked-from": path, "stream-fork-offset": offset };
  t.equal((await put("/v1/stream/fork-of-anew", "", fork)).status, 400);
  t.equal((await call(`${path}?offset=-1`)).text, "[2]");
});

t.test(
  "a reader at the end of a stream immediately gets the response head and a control event",
  async (t) => {
    const path = "/v1/stream/quiet";
    t.equal((await put(path)).status, 201);
    for (const offset of ["-1", "now"]) {
      const url = `http://127.0.0.1:${broker.apiPort}${path}?offset=${offset}&live=sse`;
      const reply = await fetch(url);
      t.equal(reply.status, 200);
      const reader = reply.body?.getReader();
      const { value } = (await reader?.read()) ?? {};
      await reader?.cancel();
      t.match(Buffer.from(value ?? []).toString(), /^event: control\ndata:.*"upToDate":true/);
    }
    await until(async () => (await metric(broker, "jindou_log_readers")) === 0);
  },
);

t.test("an error names the fork header that was sent without Stream-Forked-From", async (t) => {
  for (const name of ["Stream-Fork-Offset", "Stream-Fork-Sub-Offset"]) {
    const reply = await put("/v1/stream/fork-of-nothing", "", { [name.toLowerCase()]: "1" });
    t.match(reply.json, { status: 400, error: new RegExp(`${name} needs`) });
  }
});

t.test(
  "a reply to a long poll may be cached only if the requested `offset` is not `now`",
  async (t) => {
    const path = "/v1/stream/not-cached";
    const created = await put(path, "[1]");
    const polls = ["now", created.headers["stream-next-offset"]].map((offset) =>
      call(`${path}?offset=${offset}&live=long-poll`, { headers: { "if-none-match": "*" } }),
    );
    await until(async () => (await metric(broker, "jindou_log_readers")) === 2);
    t.equal((await post(path, "[2]")).status, 204);
    const [fromTail, fromOffset] = await Promise.all(polls);
    t.match(fromTail, { status: 200, text: "[2]", headers: { "cache-control": /no-store$/ } });
    t.notOk(fromTail?.headers.etag);
    t.match(fromOffset, { status: 304, headers: { "cache-control": /max-age=60/ } });
  },
);

t.test("a waiting reader is answered with 410 when its stream is deleted", async (t) => {
  const path = "/v1/stream/deleted";
  t.equal((await put(path, "[1]")).status, 201);
  const poll = call(`${path}?offset=now&live=long-poll`);
  await until(async () => (await metric(broker, "jindou_log_readers")) === 1);
  t.equal((await call(path, { method: "DELETE" })).status, 204);
  t.match((await poll).json, { status: 410, code: "stream_deleted" });
});

t.test(
  "a reader over `api.maxFollowers` is answered with 503, and readers that have disconnected are not counted",
  async (t) => {
    const path = "/v1/stream/readers";
    t.equal((await put(path)).status, 201);
    const leave = new AbortController();
    const url = `http://127.0.0.1:${broker.apiPort}${path}?offset=-1&live=`;
    const readers = Array.from({ length: MAX_READERS }, (_, at) =>
      fetch(url + (at % 3 === 0 ? "sse" : "long-poll"), { signal: leave.signal }).catch(
        () => undefined,
      ),
    );
    await until(async () => (await metric(broker, "jindou_log_readers")) === MAX_READERS);
    t.match((await call(`${path}?offset=-1&live=sse`)).json, { status: 503, code: "overloaded" });
    leave.abort();
    await Promise.all(readers);
    await until(async () => (await metric(broker, "jindou_log_readers")) === 0);
    t.pass("no reader is counted");
  },
);

t.test("reads of a range return equal bytes before and after a restart", async (t) => {
  const folder = await tempFolder(t);
  const path = "/v1/stream/restarted";
  const first = await spawnBroker(t, {}, folder);
  const request = (port: number, options?: Call) => callAt(port, path, options);
  const created = await request(first.apiPort, { method: "PUT", body: "[1]", headers: JSON_TYPE });
  const offset = offsetOf(created);
  for (let at = 0; at < 20; at++) {
    const append = { method: "POST", body: `[${at},"${"x".repeat(at)}"]`, headers: JSON_TYPE };
    t.equal((await request(first.apiPort, append)).status, 204);
  }
  const read = (port: number, query: string) => callAt(port, `${path}?offset=${query}`);
  const before = [await read(first.apiPort, "-1"), await read(first.apiPort, offset)];
  await first.kill();
  const second = await spawnBroker(t, {}, folder);
  const after = [await read(second.apiPort, "-1"), await read(second.apiPort, offset)];
  for (const [at, reply] of before.entries()) {
    t.equal(after[at]?.text, reply.text);
    t.equal(after[at]?.headers.etag, reply.headers.etag);
    t.equal(after[at]?.headers["stream-next-offset"], reply.headers["stream-next-offset"]);
  }
});
