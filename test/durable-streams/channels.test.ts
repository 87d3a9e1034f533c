// Streams of channels as durable streams. Some streams are written by POST /event and read over the
// Durable Streams protocol. Others are written over this protocol and read on sockets, in the
// history and by GET /stream.

import { Unpackr } from "msgpackr";
import { type Client, connect, group, person, type Stream } from "../../src/client/index.ts";
import { SseReader } from "../acceptance/sse-reader.ts";
import {
  type Broker,
  spawnBroker,
  startBroker,
  tempFolder,
  textPayload,
} from "../support/broker.ts";
import { driverSettings } from "../support/driver.ts";
import { openJsonRpc } from "../support/jsonrpc-client.ts";
import { jsonRpcWire } from "../support/jsonrpc-wire.ts";
import { HMAC_KEY, keyFile, mint, SECRET } from "../support/mint.ts";
import { connectNative } from "../support/native-client.ts";
import { signedPath } from "../support/signed-path.ts";
import { t } from "../support/suite.ts";
import { nativeWire } from "../support/wire.ts";
import { connectWkproto } from "../support/wkproto-client.ts";
import { type Call, callAt, type Reply } from "./http-client.ts";

const JSON_TYPE = { "content-type": "application/json" };
const TEXT_TYPE = { "content-type": "text/plain" };
const BOT = { "jindou-from": "bot" };
const UIDS = ["alice", "bot", "eve"] as const;

const JWT = {
  JINDOU_AUTH_CLIENTS: "token+jwt",
  JINDOU_AUTH_JWT_SECRET_FILE: await keyFile(t, SECRET),
  JINDOU_AUTH_JWT_ALGORITHMS: HMAC_KEY.alg,
};

const broker = await startBroker(t, { ...JWT, JINDOU_STREAMS_MAX_STREAM_BYTES: "65536" });
let streams = 0;

const call = (path: string, options?: Call) => callAt(broker.apiPort, path, options);
const put = (path: string, body = "", headers: Call["headers"] = JSON_TYPE) =>
  call(path, { method: "PUT", body, headers: { ...BOT, ...headers } });
const post = (path: string, body: string, headers: Call["headers"] = {}) =>
  call(path, { method: "POST", body, headers: { ...BOT, ...JSON_TYPE, ...headers } });
const close = (path: string) => post(path, "", { "stream-closed": "true" });
const offsetOf = ({ headers }: Reply) => headers["stream-next-offset"] ?? "";
/** Returns the path of a stream that no other test uses. */
const newPath = (channel = "2/lab") => {
  streams += 1;
  return `/v1/stream/channel/${channel}/s${streams}`;
};
const noOf = (path: string) => path.split("/").at(-1) ?? "";

await createPeople(broker);

async function createPeople(node: Broker): Promise<void> {
  for (const uid of UIDS) {
    const device = { uid, token: `${uid}-token`, device_flag: 1, device_level: 0 };
    await node.call("/user/token", device);
  }
  const lab = { channel_id: "lab", channel_type: 2, subscribers: ["alice", "bot"] };
  await node.call("/channel", lab);
}

async function postEvent(no: string, type: string, data = "", more: object = {}): Promise<void> {
  const { status, body } = await broker.call("/event", {
    ...{ client_msg_no: no, channel_id: "lab", channel_type: 2, from_uid: "bot" },
    event: { type, data, ...more },
  });
  if (status !== 200) throw new Error(JSON.stringify(body));
}

/** Returns the message with this client_msg_no from the history, including its stream. */
async function stored(no: string, uid = "alice", channel = { channel_id: "lab", channel_type: 2 }) {
  const { body } = await broker.call("/channel/messagesync", {
    ...{ ...channel, login_uid: uid, limit: 100 },
  });
  // biome-ignore lint/suspicious/noExplicitAny: tests read any field of a body
  return body.messages.find((message: any) => message.client_msg_no === no);
}

/** Starts a client of `uid`, which is closed at the end of the test. */
async function clientOf(t: { teardown(step: () => unknown): void }, uid: string) {
  const url = `ws://127.0.0.1:${broker.clientPort}`;
  const client = connect({ url, uid, token: `${uid}-token`, deviceFlag: 1 });
  t.teardown(() => client.close());
  await client.ready();
  return client;
}

t.test(
  "a stream started with POST /event is a durable stream with one message per event",
  async (t) => {
    const no = noOf(newPath());
    const path = `/v1/stream/channel/2/lab/${no}`;
    t.match((await call(path)).json, { status: 404, code: "stream_unknown" });
    await postEvent(no, "___TextMessageStart", "begin");
    await postEvent(no, "___TextMessageContent", "Hel", { id: "e1", timestamp: 5 });
    await postEvent(no, "___ToolCallStart", "search");
    await postEvent(no, "status", "busy");
    const open = await call(path);
    t.match(open.headers, { "content-type": "application/json", "stream-up-to-date": "true" });
    t.equal(open.headers["stream-closed"], undefined);
    t.match(open.json, [
      { type: "___TextMessageStart", id: "0", index: 0, data: "begin" },
      { type: "___TextMessageContent", id: "e1", index: 1, timestamp: 5, data: "Hel" },
      { type: "___ToolCallStart", id: "2", index: 2, data: "search" },
      { type: "status", id: "3", index: 3, data: "busy" },
    ]);
    t.same(Object.keys(open.json[1]), ["type", "id", "index", "timestamp", "data"]);
    const waiting = call(`${path}?offset=${offsetOf(open)}&live=long-poll`);
    await postEvent(no, "___TextMessageEnd", "done");
    const ended = await waiting;
    t.match(ended.json, [
      { type: "___TextMessageEnd", index: 4, data: "done" },
      { type: "end", state: "closed" },
    ]);
    t.equal(ended.headers["stream-closed"], "true");
    const head = await call(path, { method: "HEAD" });
    t.match(head.headers, { "stream-closed": "true", "stream-next-offset": offsetOf(ended) });
    const late = await post(path, "[1]");
    t.match(late.json, { status: 409, code: "stream_ended" });
    t.equal(late.headers["stream-closed"], "true");
  },
);

t.test("a channel's durable stream is stored as a message, and viewers get it live", async (t) => {
  const client = await clientOf(t, "alice");
  const path = newPath();
  const no = noOf(path);
  const events: string[] = [];
  client.on("event", ({ type, data, clientMsgNo }) => {
    if (clientMsgNo === no) events.push(`${type} ${data}`);
  });
  const created = await put(path);
  t.equal(created.status, 201);
  t.equal(new URL(created.headers.location ?? "").pathname, path);
  t.equal((await put(path)).status, 200, "a repeated PUT finds the stream");
  t.equal((await call(path)).text, "[]");
  const active = await stored(no);
  t.match(active, { from_uid: "bot", stream: { state: "active", text: "" } });
  const live = client.stream({ channel: group("lab"), clientMsgNo: no });
  const records = [
    ...[
      '{"type":"text-delta","id":"1","delta":"Hel"}',
      '{"type":"TEXT_MESSAGE_CONTENT","delta":"lo"}',
    ],
    ...['{"type":"___TextMessageContent","data":"!"}', '{"type":"___ToolCallStart","data":"find"}'],
    ...['{"n": 1.0}', "7"],
  ];
  t.equal((await post(path, records[0] ?? "")).status, 204);
  t.equal((await post(path, `[${records.slice(1).join()}]`)).status, 204);
  t.equal((await close(path)).status, 204);
  const whole = await call(path);
  t.equal(whole.text, `[${[...records, '{"type":"end","state":"closed"}'].join()}]`);
  t.match(await live.finished, { state: "closed", text: "Hello!" });
  const read: unknown[] = [];
  for await (const { data } of client.stream(path)) read.push(data);
  t.same(read, whole.json, "the SDK reads the log with the token of its user");
  t.same(events.slice(-3), ["___ToolCallStart find", 'record {"n": 1.0}', "record 7"]);
  const { stream } = await stored(no);
  t.match(stream, { state: "closed", text: "Hello!", next_index: 8 });
  t.match(stream.events, [
    { index: 4, text_offset: 6, type: "___ToolCallStart", data: "find" },
    { index: 5, type: "record", data: '{"n": 1.0}' },
    { index: 6, type: "record", data: "7" },
  ]);
  t.match((await post(path, "[8]")).json, { status: 409, code: "stream_ended" });
  t.match((await put(path)).json, { status: 409, code: "stream_exists" });
});

t.test("a text/plain durable stream contains only the text of the channel's stream", async (t) => {
  const path = newPath();
  const no = noOf(path);
  t.equal((await put(path, "Grüß", TEXT_TYPE)).status, 201);
  const first = await call(path);
  t.same([first.text, first.headers["content-type"]], ["Grüß", "text/plain"]);
  const waiting = call(`${path}?offset=${offsetOf(first)}&live=long-poll`);
  t.equal((await post(path, " Gott", TEXT_TYPE)).status, 204);
  t.equal((await waiting).text, " Gott");
  t.match((await post(path, "[1]")).json, { status: 409, code: "stream_type" });
  const invalid = { method: "POST", body: Buffer.from([0x61, 0xff]), headers: TEXT_TYPE };
  const refused = await call(path, { ...invalid, headers: { ...BOT, ...TEXT_TYPE } });
  t.match(refused.json, { status: 400, code: "bad_request" });
  await postEvent(no, "___TextMessageContent", "!");
  await postEvent(no, "status", "hidden");
  const over = { "stream-closed": "true" };
  t.equal((await post(path, "?", { ...TEXT_TYPE, ...over })).status, 204);
  const whole = await call(path);
  t.same([whole.text, whole.headers["stream-closed"]], ["Grüß Gott!?", "true"]);
  t.match((await stored(no)).stream, { state: "closed", text: "Grüß Gott!?" });
});

t.test("requests that a channel's durable stream does not support are refused", async (t) => {
  for (const [name, value] of [
    ["stream-ttl", "60"],
    ["stream-expires-at", "2099-01-01T00:00:00Z"],
    ["stream-forked-from", "/v1/stream/a"],
  ] as const)
    t.match((await put(newPath(), "", { [name]: value })).json, { status: 400 }, name);
  const bytes = { "content-type": "application/octet-stream" };
  t.match((await put(newPath(), "", bytes)).json, { status: 409, code: "stream_type" });
  const path = newPath();
  t.equal((await put(path, "[]", {})).status, 201, "JSON is the default");
  for (const body of [
    ...['{"type":"___TextMessageStart","data":""}', '{"type":"___TextMessageEnd"}'],
    ...['{"type":"___Other","data":"x"}', '{"type":"___ToolCallEnd"}'],
    '[1,{"type":"___TextMessageContent","data":2}]',
  ])
    t.match((await post(path, body)).json, { status: 400, code: "bad_request" }, body);
  t.equal((await call(path)).text, "[]", "nothing was appended");
  const removal = await call(path, { method: "DELETE" });
  t.same([removal.status, removal.headers.allow], [405, "GET, HEAD, PUT, POST"]);
  for (const bad of ["3/lab/x", "2/lab", "2/lab/x/y", "2/a@b/x", "1/a@b@c/x", "2/%00/x"])
    t.match((await put(`/v1/stream/channel/${bad}`)).json, { status: 400, code: "bad_id" }, bad);
  t.equal((await close(path)).status, 204);
});

t.test(
  "logs.maxBytes limits the records that are appended through /v1/stream/ to a stream started with POST /event",
  async (t) => {
    const node = await startBroker(t, { JINDOU_LOGS_MAX_BYTES: "2048" });
    await createPeople(node);
    const path = "/v1/stream/channel/2/lab/limited";
    const start = { type: "___TextMessageStart", data: "" };
    const base = { client_msg_no: "limited", channel_id: "lab", channel_type: 2, from_uid: "bot" };
    t.equal((await node.call("/event", { ...base, event: start })).status, 200);
    // Viewers receive only one character of text from this record.
    const record = { type: "text-delta", delta: "x", pad: "y".repeat(1500) };
    const append = () =>
      callAt(node.apiPort, path, {
        method: "POST",
        body: JSON.stringify(record),
        headers: { ...BOT, ...JSON_TYPE },
      });
    t.equal((await append()).status, 204, "the first record fits");
    t.match((await append()).json, { status: 413, code: "log_full" });
    t.equal((await append()).status, 413, "a repeated append is refused too");
  },
);

t.test(
  "durable streams and a stream started with POST /event can be active in one channel at the same time",
  async (t) => {
    const client = await clientOf(t, "alice");
    const no = noOf(newPath());
    const paths = [newPath(), newPath()];
    await postEvent(no, "___TextMessageStart");
    for (const path of paths) t.equal((await put(path, '"a"', TEXT_TYPE)).status, 201);
    const names = [no, ...paths.map(noOf)];
    const late = await clientOf(t, "alice");
    for (const viewer of [client, late])
      for (const clientMsgNo of names)
        t.match(await viewer.stream({ channel: group("lab"), clientMsgNo }).ready(), {
          state: "active",
        });
    t.match(
      await broker.call("/event", {
        ...{ client_msg_no: "second", channel_id: "lab", channel_type: 2, from_uid: "bot" },
        event: { type: "___TextMessageStart" },
      }),
      { status: 400, body: { error: "Stream already running in channel" } },
    );
    await postEvent(no, "___TextMessageEnd");
    await postEvent(noOf(newPath()), "___TextMessageStart"); // durable streams allow this start
    await postEvent(`s${streams}`, "___TextMessageEnd");
    for (const path of paths) t.equal((await close(path)).status, 204);
    for (const clientMsgNo of names)
      t.match(await late.stream({ channel: group("lab"), clientMsgNo }).finished, {
        state: "closed",
      });
  },
);

t.test("a channel with 100 active durable streams accepts no further durable stream", async (t) => {
  await broker.call("/channel", { channel_id: "many", channel_type: 2, subscribers: ["bot"] });
  const paths = Array.from({ length: 100 }, () => newPath("2/many"));
  for (const { status } of await Promise.all(paths.map((path) => put(path)))) t.equal(status, 201);
  const next = newPath("2/many");
  const refused = await put(next);
  t.match(refused.json, { status: 413, code: "log_full", error: /100 active streams/ });
  t.equal((await close(paths[0] ?? "")).status, 204);
  t.equal((await put(next)).status, 201);
});

t.test("a durable stream that a viewer cancels is closed for its writer", async (t) => {
  const path = newPath();
  t.equal((await put(path, "[1]")).status, 201);
  const client = await clientOf(t, "alice");
  const { headers } = await call(path);
  const waiting = call(`${path}?offset=${headers["stream-next-offset"]}&live=long-poll`);
  await client.cancel({ channel: group("lab"), clientMsgNo: noOf(path) });
  t.same((await waiting).json, [{ type: "end", state: "cancelled" }]);
  t.match((await post(path, "[2]")).json, { status: 409, code: "stream_ended" });
  t.equal((await call(path)).text, '[1,{"type":"end","state":"cancelled"}]');
});

/** Headers of a user's client token. */
const tokenOf = (uid: string) => ({ "x-uid": uid, "x-token": `${uid}-token` });

/** Signs a path and returns the path with its signature. */
async function sign(path: string, access: string, fromUid?: string): Promise<string> {
  const body = { path, access, expires_in: 60, from_uid: fromUid };
  const reply = await broker.call("/v1/sign", body);
  if (reply.status !== 200) throw new Error(JSON.stringify(reply.body));
  const { pathname, search } = new URL(reply.body.url);
  return pathname + search;
}

t.test(
  "the error for a stream in a group that was never created shows the cause to a backend but not to a client",
  async (t) => {
    const missing = {
      status: 403,
      code: "channel_not_found",
      error: "The group nowhere does not exist; create it with POST /channel",
    };
    const path = newPath("2/nowhere");
    t.match((await put(path)).json, missing, "PUT");
    t.match((await post(path, "[1]")).json, { status: 404, code: "stream_unknown" }, "POST");
    const payload = textPayload("x");
    const message = { from_uid: "bot", channel_id: "nowhere", channel_type: 2, payload };
    const { code, error } = missing;
    t.match((await broker.call("/message/send", message)).body, { code, error }, "/message/send");
    const stranger = { method: "PUT", headers: { ...JSON_TYPE, "jindou-from": "eve" } };
    const refused = { status: 403, code: "not_subscriber" };
    t.match((await call(newPath(), stranger)).json, refused, "a group that exists");
    const signed = await sign(newPath("2/nowhere"), "write", "bot");
    t.match((await call(signed, { method: "PUT" })).json, refused, "the bearer of a signed URL");
    const viewer = { method: "PUT", headers: { ...JSON_TYPE, ...tokenOf("alice") } };
    const hidden = await callAt(broker.clientPort, newPath("2/nowhere"), viewer);
    t.match(hidden.json, { status: 404, code: "not_in_channel" }, "a client token");
  },
);

t.test("a client token allows only what its user has permission to read or write", async (t) => {
  const viewerCall = (path: string, uid: string, options: Call = {}) =>
    callAt(broker.clientPort, path, {
      ...options,
      headers: { ...tokenOf(uid), ...JSON_TYPE, ...options.headers },
    });
  const path = newPath();
  t.match((await viewerCall(path, "eve", { method: "PUT" })).json, {
    status: 404,
    code: "not_in_channel",
  });
  const impostor = { method: "PUT", headers: { "jindou-from": "bot" } };
  t.equal((await viewerCall(path, "alice", impostor)).status, 201);
  t.match(await stored(noOf(path)), { from_uid: "alice" }, "the token determines the sender");
  t.equal((await viewerCall(path, "alice", { method: "POST", body: "[1]" })).status, 204);
  const other = await viewerCall(path, "bot", { method: "POST", body: "[2]" });
  t.match(
    other.json,
    { status: 403, code: "forbidden" },
    "another member may not append to the stream",
  );
  t.match((await post(path, "[3]")).json, { status: 403, code: "forbidden" });
  const read = await viewerCall(path, "bot");
  t.equal(read.text, "[1]");
  t.match(read.headers, {
    "cache-control": /^private/,
    vary: /x-uid, x-uid\*, x-token, x-token\*/,
  });
  t.match((await viewerCall(path, "eve")).json, { status: 404, code: "not_in_channel" });
  const wrong = { headers: { "x-token": "wrong" } };
  t.match((await viewerCall(path, "alice", wrong)).json, { status: 401 });
  t.match((await callAt(broker.clientPort, path)).json, { status: 401 });
  await broker.call("/channel/whitelist_add", {
    ...{ channel_id: "lab", channel_type: 2, uids: ["bot"] },
  });
  const muted = await viewerCall(path, "alice", { method: "POST", body: "[4]" });
  t.match(muted.json, { status: 403, code: "not_allowlisted" });
  await broker.call("/channel/whitelist_remove", {
    ...{ channel_id: "lab", channel_type: 2, uids: ["bot"] },
  });
  const end = { method: "POST", headers: { "stream-closed": "true" } };
  t.equal((await viewerCall(path, "alice", end)).status, 204);
});

t.test("a token with the claim jd allows only the channels that the claim names", async (t) => {
  const path = newPath();
  async function codes(jd: object) {
    const token = await mint(HMAC_KEY, { sub: "alice", jd });
    const headers = { "x-uid": "alice", "x-token": token, ...JSON_TYPE };
    const codeOf = async (method: string, body?: string) => {
      const { status, json } = await callAt(broker.clientPort, path, {
        ...{ method, headers },
        ...(body !== undefined && { body }),
      });
      return json?.code ?? status;
    };
    return [await codeOf("PUT"), await codeOf("POST", "[1]"), await codeOf("GET")];
  }
  const reading = await codes({ read: ["2:lab"], send: [] });
  t.same(reading, ["forbidden", "forbidden", "stream_unknown"], "the token allows only reading");
  const writing = await codes({ read: ["2:other"], send: ["2:l*"] });
  t.same(writing, [201, 204, "forbidden"], "the token allows only writing");
  t.same(await codes({}), [200, 204, 200], "a token without the claim jd allows everything");
});

t.test("a write with a signed URL is made on behalf of the URL's user", async (t) => {
  const path = newPath();
  const refused = await broker.call("/v1/sign", { path, access: "write", expires_in: 60 });
  t.match(refused, { status: 400, body: { details: [{ path: "from_uid" }] } });
  const url = await sign(path, "write", "alice");
  const callUrl = (options: Call) => callAt(broker.clientPort, url, options);
  t.equal((await callUrl({ method: "PUT", headers: BOT })).status, 201);
  t.equal((await callUrl({ method: "POST", body: "[1]", headers: JSON_TYPE })).status, 204);
  t.match(await stored(noOf(path)), { from_uid: "alice" });
  t.equal((await callUrl({ method: "DELETE" })).status, 403);
  const eve = await sign(newPath(), "write", "eve");
  t.match((await callAt(broker.clientPort, eve, { method: "PUT" })).json, {
    ...{ status: 403, code: "not_subscriber" },
  });
  const reading = await sign(path, "read");
  t.equal((await callAt(broker.clientPort, reading)).text, "[1]");
  t.equal((await callAt(broker.clientPort, reading, { method: "PUT" })).status, 403);
  const end = { method: "POST", headers: { "stream-closed": "true" } };
  t.equal((await callUrl(end)).status, 204);
});

t.test("a personal channel's path contains both uids, or only the other user's", async (t) => {
  const path = newPath("1/alice");
  const no = noOf(path);
  const client = await clientOf(t, "alice");
  t.equal((await put(path, '"hi"', JSON_TYPE)).status, 201);
  const live = client.stream({ channel: person("bot"), clientMsgNo: no });
  t.match(await live.ready(), { fromUid: "bot", state: "active" });
  const pair = `/v1/stream/channel/1/alice@bot/${no}`;
  t.equal((await call(pair)).text, '["hi"]');
  t.equal((await call(pair.replace("@", "%40"))).text, '["hi"]');
  t.equal((await call(`${path}?uid=bot`)).text, '["hi"]');
  t.match((await call(path)).json, { status: 400, code: "bad_request" });
  const own = `/v1/stream/channel/1/bot/${no}`;
  const read = (target: string, uid: string) =>
    callAt(broker.clientPort, target, { headers: tokenOf(uid) });
  t.equal((await read(own, "alice")).text, '["hi"]', "alice names the channel by the uid bot");
  t.equal((await read(pair, "alice")).text, '["hi"]');
  t.match((await read(pair, "eve")).json, { status: 403, code: "forbidden" });
  t.match((await read(own, "eve")).json, { status: 404, code: "stream_unknown" });
  t.equal((await post(pair, '" you"')).status, 204);
  t.equal((await close(pair)).status, 204);
  t.match(await live.finished, { state: "closed" });
  const history = { channel_id: "bot", channel_type: 1 };
  t.match((await stored(no, "alice", history)).stream.events, [
    { type: "record", data: '"hi"' },
    { type: "record", data: '" you"' },
  ]);
});

/** Reads the records of a stream until its end. */
async function recordsOf(client: Client, log: string): Promise<unknown[]> {
  const records: unknown[] = [];
  let offset = "";
  for await (const record of client.stream(log)) {
    records.push(record.data);
    if (offset === "") offset = record.offset;
  }
  const later: unknown[] = [];
  for await (const { data } of client.stream(log).records(offset)) later.push(data);
  t.same(later, records.slice(1), "a reader continues after the offset of a record");
  return records;
}

for (const [name, type, id, writers] of [
  ["group", 2, "lab", { channel_id: "lab", channel_type: 2 }],
  ["personal", 1, "bot", { channel_id: "alice", channel_type: 1 }],
] as const)
  for (const way of ["POST /event", "Durable Streams"])
    t.test(
      `every interface returns the log path of a stream written with ${way} in a ${name} channel, and the SDK reads its records`,
      async (t) => {
        const [viewer, sender] = [await clientOf(t, "alice"), await clientOf(t, "bot")];
        const no = `${noOf(newPath())} a/b@c?`;
        const pair = type === 1 ? "alice@bot" : id;
        const log = `/v1/stream/channel/${type}/${pair}/${no.split(" ")[0]}%20a%2Fb@c%3F`;
        const append = async (eventType: string, data = "") => {
          const event = { client_msg_no: no, ...writers, from_uid: "bot" };
          const { status } =
            way === "POST /event"
              ? await broker.call("/event", { ...event, event: { type: eventType, data } })
              : eventType === "___TextMessageStart"
                ? await put(log)
                : eventType === "___TextMessageEnd"
                  ? await close(log)
                  : await post(log, JSON.stringify({ type: eventType, data }));
          t.ok(status < 300, `${eventType}: ${status}`);
        };
        const arrival = new Promise<Stream | undefined>((resolve) =>
          viewer.on("message", ({ clientMsgNo, stream }) => clientMsgNo === no && resolve(stream)),
        );
        await append("___TextMessageStart");
        const started = await arrival;
        t.match(started, { log, truncated: false });
        const live = recordsOf(viewer, started?.log ?? "");
        await append("___TextMessageContent", "Hi");
        await append("___ToolCallStart", "search");
        await append("___TextMessageEnd");
        const whole = (await call(log)).json;
        t.ok(whole.length >= 3, `the stream has ${whole.length} records`);
        t.same(await live, whole, "a live reader gets all records");
        for (const [client, channel] of [
          [viewer, { type, id }],
          [sender, { type, id: writers.channel_id }],
        ] as const) {
          const { messages } = await client.history(channel, { limit: 1 });
          const stream = messages[0]?.stream;
          t.match(stream, { clientMsgNo: no, text: "Hi", log, truncated: false });
          t.same(await recordsOf(client, stream?.log ?? ""), whole, `${client.uid} reads late`);
        }
        const channel = { channel_id: id, channel_type: type };
        t.match((await stored(no, "alice", channel)).stream, { state: "closed", log });
        const range = `channel_id=${id}&channel_type=${type}&uid=alice&limit=1&order=desc`;
        const page = await broker.call(`/channel/messages?${range}`);
        t.match(page.body.messages, [{ client_msg_no: no, stream: { log } }]);
        const path = `/stream/${type}/${id}/${encodeURIComponent(no)}?uid=alice`;
        t.match((await call(path)).json, { text: "Hi", log });
        const rpc = await openJsonRpc(t, { port: broker.clientPort });
        const login = { protocol: 1, uid: "alice", token: "alice-token", deviceFlag: 1 };
        await rpc.request("connect", login);
        const target = { channelType: type, channelId: id };
        const history = await rpc.request("history", { ...target, limit: 1, reverse: true });
        t.match(history.messages, [{ clientMsgNo: no, stream: { log } }]);
        const snapshot = await rpc.request("stream", { ...target, clientMsgNo: no });
        t.match(snapshot.stream, { state: "closed", log });
      },
    );

t.test(
  "a stream over the size limit for viewers is marked as truncated, live and in the history",
  async (t) => {
    const client = await clientOf(t, "alice");
    const frames: unknown[][] = [];
    const wire = nativeWire("alice");
    const unpackr = new Unpackr({ useRecords: false, int64AsType: "number" });
    const decode: typeof wire.decode = (data, isBinary) => {
      frames.push(unpackr.unpack(data));
      return wire.decode(data, isBinary);
    };
    const native = await connectNative(t, {
      ...{ port: broker.clientPort, uid: "alice", token: "alice-token", flag: 1 },
      wire: { ...wire, decode },
    });
    const rpc = await openJsonRpc(t, { port: broker.clientPort });
    const login = { protocol: 1, uid: "alice", token: "alice-token", deviceFlag: 1 };
    await rpc.request("connect", login);
    const path = newPath();
    const no = noOf(path);
    const piece = "ä".repeat(10_000);
    t.equal((await put(path, piece, TEXT_TYPE)).status, 201);
    const live = client.stream({ channel: group("lab"), clientMsgNo: no });
    t.match(await live.ready(), { truncated: false, log: path });
    for (let count = 0; count < 3; count++) await post(path, piece, TEXT_TYPE);
    t.equal((await post(path, "", { "stream-closed": "true" })).status, 204);
    t.match(await live.finished, { state: "closed", truncated: true, log: path });
    const late = await clientOf(t, "alice");
    const { messages } = await late.history(group("lab"), { limit: 1 });
    t.match(messages[0]?.stream, { text: "ä".repeat(32_768), truncated: true, log: path });
    t.same(await recordsOf(late, path), [piece.repeat(4)]);
    await native.history(group("lab"), { limit: 1, reverse: true });
    await native.stream(group("lab"), no);
    await native.waitFor(() => native.view(group("lab"), no)?.ended === true);
    const framesOf = (op: number) => frames.filter(([code]) => code === op);
    const seq = messages[0]?.messageSeq;
    // Each item of `places` is [messageSeq, index, nextIndex, textOffset, state, truncated].
    const places = framesOf(82).flatMap((frame) => (frame[5] === no ? [frame[10]] : []));
    for (const place of places as unknown[][])
      t.same(place.slice(5), place[1] === 4 ? [true] : [], `the event at ${place[1]}`);
    t.match(places.slice(-2), [
      [seq, 4, 5, Number, 0, true],
      [seq, 5, 6, Number, 1],
    ]);
    const note = [4, 32_768, "4", "record", JSON.stringify({ truncated: 1, log: path })];
    const record = [1, 6, "", "", [note], true];
    t.match(framesOf(72).at(-1)?.[9], record);
    const history = framesOf(68).at(-1)?.[6] as readonly unknown[][] | undefined;
    t.match(history?.at(-1)?.[12], record);
    const target = { channelType: 2, channelId: "lab", clientMsgNo: no };
    t.match((await rpc.request("stream", target)).stream, { truncated: 1, log: path });
    const events = () => rpc.all("event").filter((event) => event.clientMsgNo === no);
    await rpc.waitFor(() => events().some(({ stream }) => stream.state === "closed"));
    for (const { stream } of events())
      t.equal(stream.truncated, stream.index === 4 ? 1 : undefined, `the event at ${stream.index}`);
  },
);

t.test("a fork of a channel's stream does not change when the source changes", async (t) => {
  const path = newPath();
  t.equal((await put(path, "[1]")).status, 201);
  const offset = offsetOf(await post(path, "[2,3]"));
  await post(path, "[4]");
  const fork = `/v1/stream/forks${path.slice("/v1/stream".length)}`;
  const from = { "stream-forked-from": path, "stream-fork-offset": offset };
  t.equal((await put(fork, '["own"]', { ...JSON_TYPE, ...from })).status, 201);
  t.equal((await put(fork, "", from)).status, 200, "a repeated PUT finds the fork");
  t.equal((await call(fork)).text, '[1,2,3,"own"]');
  t.equal(
    (await call(`${fork}?offset=${offset}`)).text,
    '["own"]',
    "the fork has the offsets of its source",
  );
  const part = { ...from, "stream-fork-offset": "0000000000000000_0000000000000000" };
  const all = { "stream-forked-from": path };
  t.equal((await put(`${fork}/all`, "", all)).status, 201);
  t.equal((await call(`${fork}/all`)).text, "[1,2,3,4]");
  t.equal((await put(`${fork}/none`, "", part)).status, 201);
  t.equal((await call(`${fork}/none`)).text, "[]");
  await close(path);
  t.equal((await call(fork)).text, '[1,2,3,"own"]');
  t.equal((await call(fork, { method: "DELETE" })).status, 204);
  const missing = { "stream-forked-from": newPath() };
  t.equal((await put(`${fork}/missing`, "", missing)).status, 404);
  const signed = await sign(`${fork}/signed`, "write");
  const byUrl = (headers: Call["headers"]) =>
    callAt(broker.clientPort, signed, { method: "PUT", headers: { ...all, ...headers } });
  t.equal((await byUrl({})).status, 404, "the source may not be read");
  t.equal((await byUrl(tokenOf("eve"))).status, 404);
  t.equal((await byUrl(tokenOf("alice"))).status, 201, "a member may read the source");
});

t.test(
  "a fork of a source that the caller may not read is answered like a fork of a missing source",
  async (t) => {
    const node = await startBroker(t, { ...JWT, JINDOU_API_DIALECT: "wukongim" });
    await createPeople(node);
    const source = "/v1/stream/channel/2/lab/source";
    const created = { method: "PUT", body: "[1]", headers: { ...BOT, ...JSON_TYPE } };
    t.equal((await callAt(node.apiPort, source, created)).status, 201);
    const url = await signedPath(node, "/v1/stream/fork-of-source", "write");
    const fork = (headers: Call["headers"], from = source) =>
      callAt(node.clientPort, url, {
        ...{ method: "PUT", headers: { "stream-forked-from": from, ...headers } },
      });
    const missing = await fork(tokenOf("alice"), `${source}-that-is-missing`);
    t.match(missing.json, { status: 404, code: "stream_unknown" });
    const jd = { read: ["2:other"], send: [] };
    const elsewhere = await mint(HMAC_KEY, { sub: "alice", jd });
    const isLikeMissing = async (name: string, headers: Call["headers"]) => {
      const { status, json } = await fork(headers);
      t.same({ status, json }, { status: 404, json: missing.json }, name);
    };
    await isLikeMissing("no credential for the source", {});
    await isLikeMissing("not a member", tokenOf("eve"));
    await isLikeMissing("a wrong token", { ...tokenOf("alice"), "x-token": "wrong" });
    await isLikeMissing("a token for another channel", { "x-uid": "alice", "x-token": elsewhere });
    await isLikeMissing("a wrong signature", { "jindou-fork-sig": "wrong" });
    const account = { channel_id: "alice", channel_type: 1 };
    await node.call("/channel/info", { ...account, ban: 1 });
    await isLikeMissing("a banned user", tokenOf("alice"));
    await node.call("/channel/info", { ...account, ban: 0 });
    t.equal((await fork(tokenOf("alice"))).status, 201, "a member may read the source");
  },
);

t.test(
  "viewers get a note in place of a long record, and in place of the rest of a long stream",
  async (t) => {
    const client = await clientOf(t, "alice");
    const path = newPath();
    const no = noOf(path);
    const piece = "ä".repeat(10_000);
    t.equal((await put(path, piece, TEXT_TYPE)).status, 201);
    const live = client.stream({ channel: group("lab"), clientMsgNo: no });
    await live.ready();
    for (let count = 0; count < 5; count++) await post(path, piece, TEXT_TYPE);
    t.equal((await post(path, "", { "stream-closed": "true" })).status, 204);
    const whole = await call(path);
    t.equal(whole.text, piece.repeat(6));
    const seen = await live.finished;
    const notice = JSON.stringify({ truncated: 1, log: path });
    t.match(seen, { state: "closed", nextIndex: 8, notes: [{ type: "record", data: notice }] });
    t.equal(seen.notes.length, 1);
    const { stream } = await stored(no);
    t.match(stream, { state: "closed", next_index: 8, truncated: 1, log: path });
    t.equal(stream.text, "ä".repeat(32_768));
    const large = newPath();
    t.equal((await put(large, JSON.stringify([{ blob: "x".repeat(70_000) }, 2]))).status, 201);
    t.equal((await close(large)).status, 204);
    const { stream: noted } = await stored(noOf(large));
    t.match(noted.events, [
      { index: 1, type: "record", data: JSON.stringify({ truncated: 1, log: large }) },
      { index: 2, type: "record", data: "2" },
    ]);
    t.equal((await call(large)).json[0].blob.length, 70_000);
    const padded = newPath();
    t.equal((await put(padded)).status, 201);
    const record = JSON.stringify({ type: "text-delta", delta: "x", pad: "y".repeat(400_000) });
    for (let count = 0; count < 3; count++) t.equal((await post(padded, record)).status, 204);
    t.equal((await close(padded)).status, 204);
    const { stream: cut } = await stored(noOf(padded));
    t.match(cut, { text: "xxx", truncated: 1, log: padded }, "unseen parts of records count too");
  },
);

t.test(
  "a range of a channel's stream has the same bytes after the node is killed and restarted",
  async (t) => {
    const folder = await tempFolder(t);
    const settings = await driverSettings(folder);
    let node = await spawnBroker(t, settings, folder);
    await createPeople(node);
    const at = (target: string, options?: Call) => callAt(node.apiPort, target, options);
    const paths = ["event", "json", "text"].map((no) => `/v1/stream/channel/2/lab/${no}`);
    const [byEvent = "", asJson = "", asText = ""] = paths;
    const base = { client_msg_no: "event", channel_id: "lab", channel_type: 2, from_uid: "bot" };
    for (const event of [
      ...[{ type: "___TextMessageStart" }, { type: "___TextMessageContent", data: "ä" }],
      ...[
        { type: "note", data: "n" },
        { type: "___TextMessageContent", data: "b" },
      ],
    ])
      t.equal((await node.call("/event", { ...base, event })).status, 200);
    const type = { [asJson]: JSON_TYPE, [asText]: TEXT_TYPE };
    for (const path of [asJson, asText]) {
      const headers = { ...BOT, ...type[path] };
      t.equal((await at(path, { method: "PUT", body: "[0]", headers })).status, 201);
      for (const body of ["[1,2]", '[{"type":"text-delta","delta":"é"}]', "[ [3] ]"])
        t.equal((await at(path, { method: "POST", body, headers })).status, 204);
    }
    const end = { method: "POST", headers: { ...BOT, "stream-closed": "true" } };
    t.equal((await at(asText, end)).status, 204);
    /** Returns the ETag, the next offset and the text of the range that follows each offset. */
    const rangesOf = async (path: string) => {
      const ranges: string[] = [];
      for (const offset of offsets[path] ?? []) {
        const { text, headers } = await at(`${path}?offset=${offset}`);
        ranges.push(`${headers.etag} ${headers["stream-next-offset"]} ${text}`);
      }
      return ranges;
    };
    const offsets: Record<string, string[]> = {};
    for (const path of paths) {
      const fork = { "stream-forked-from": path };
      const forked = `/v1/stream/fork${paths.indexOf(path)}`;
      const headers = { ...fork, "stream-fork-offset": `${"0".repeat(16)}_${"0".repeat(16)}` };
      t.equal((await at(forked, { method: "PUT", headers })).status, 201);
      t.equal((await at(`${forked}/all`, { method: "PUT", headers: fork })).status, 201);
      offsets[path] = ["-1", offsetOf(await at(path, { method: "HEAD" }))];
      offsets[`${forked}/all`] = ["-1"];
    }
    const before = await Promise.all(Object.keys(offsets).map(rangesOf));
    t.same(await Promise.all(Object.keys(offsets).map(rangesOf)), before);
    await node.kill();
    node = await spawnBroker(t, settings, folder);
    t.same(await Promise.all(Object.keys(offsets).map(rangesOf)), before, "after a kill");
    const state = await node.call("/stream/2/lab/json");
    t.match(state.body, { state: "active", text: "é", next_index: 6 }, "the stream continues");
    const json = { method: "POST", body: "[4]", headers: { ...BOT, ...JSON_TYPE } };
    t.equal((await at(asJson, json)).status, 204);
    t.equal(
      (await at(asJson)).text,
      '[0,1,2,{"type":"text-delta","delta":"é"},[3],4]',
      "the append follows the earlier records",
    );
    t.match((await at(byEvent)).json.at(-1), { type: "___TextMessageContent", index: 3 });
    t.equal(await node.terminate(), 0);
  },
);

t.test("clients of each wire format receive the text of a durable stream live", async (t) => {
  const port = broker.clientPort;
  const device = { port, uid: "alice", token: "alice-token", flag: 1 } as const;
  const native = await connectNative(t, device);
  const rpc = await connectNative(t, { ...device, wire: jsonRpcWire("alice") });
  const phone = await connectWkproto(t, { port, uid: "alice", token: "alice-token" });
  const path = newPath();
  const no = noOf(path);
  t.equal((await put(path, '{"type":"text-delta","delta":"Hel"}')).status, 201);
  const feed = new SseReader(0);
  const reading = feed.read(broker.apiPort, `/stream/2/lab/${no}`);
  t.equal((await post(path, '{"type":"text-delta","delta":"lo"}')).status, 204);
  t.equal((await post(path, '{"n":1}')).status, 204);
  t.equal((await close(path)).status, 204);
  for (const viewer of [native, rpc]) {
    await viewer.waitFor(() => viewer.view(group("lab"), no)?.ended === true, "the end");
    const view = viewer.view(group("lab"), no);
    t.match(view, { text: "Hello", nextIndex: 5, problems: [] });
  }
  await reading;
  t.match(feed, {
    text: "Hello",
    isDone: true,
    otherEvents: [{}, { index: 3, data: '{"n":1}' }, {}],
  });
  // On WKProto, the id of content is the client_msg_no.
  const isOwn = ({ packet, fields }: (typeof phone.received)[number], type: string) =>
    packet === "EVENT" && fields.type === type && fields.id === no;
  await phone.nth(1, (packet) => isOwn(packet, "___TextMessageEnd"));
  const texts = phone.received
    .filter((packet) => isOwn(packet, "___TextMessageContent"))
    .map(({ fields }) => String(fields.data));
  t.equal(texts.join(""), "Hello", "the session receives all content");
});

t.test("a durable stream is interrupted if its writer is silent for the idle time", async (t) => {
  const quick = await startBroker(t, { JINDOU_STREAMS_IDLE_TIMEOUT_MS: "300" });
  await createPeople(quick);
  const path = "/v1/stream/channel/2/lab/silent";
  const at = (target: string, options?: Call) => callAt(quick.apiPort, target, options);
  const created = await at(path, {
    method: "PUT",
    body: "[1]",
    headers: { ...BOT, ...JSON_TYPE },
  });
  t.equal(created.status, 201);
  const end = await at(`${path}?offset=${offsetOf(created)}&live=sse`);
  const [data, control] = end.text.split("\n\n").slice(-3);
  t.equal(data, 'event: data\ndata:[{"type":"end","state":"interrupted"}]');
  t.match(control, /^event: control\ndata:\{.*"streamClosed":true/);
  t.match((await quick.call("/stream/2/lab/silent")).body, { state: "interrupted" });
});
