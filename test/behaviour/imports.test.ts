// The import of another server's data over HTTP: its phases, its lines, and what users and backends
// see after it was closed.

import { once } from "node:events";
import { type IncomingMessage, request } from "node:http";
import { json } from "node:stream/consumers";
import { connect } from "../../src/client/index.ts";
import { HOOK_SECRET, startHookServer } from "../support/hook-server.ts";
import { jsonRpcWire } from "../support/jsonrpc-wire.ts";
import { connectNative } from "../support/native-client.ts";
import { t } from "../support/suite.ts";
import { nativeWire } from "../support/wire.ts";
import {
  codeOf,
  eventually,
  group,
  person,
  range,
  startWorld,
  TIMEOUT_MS,
  untilReceived,
  type World,
  wire,
} from "./world.ts";

const G = group("g");
const HOUR_S = 3600;
const SENT_S = Math.floor(Date.now() / 1000) - 3 * 24 * HOUR_S;
/** Id of a WuKongIM message that JavaScript cannot represent as a number. */
const LABEL = "9007199254740993";

/** An id of 65 characters that has 130 UTF-16 units, which are more than an id may have. */
const TOO_LONG = "😀".repeat(65);

const base64 = (text: string) => Buffer.from(text).toString("base64");
const NDJSON = { "content-type": "application/x-ndjson" };

async function importText(world: World, body: string, headers: Record<string, string> = NDJSON) {
  const url = `http://127.0.0.1:${world.apiPort}/admin/import`;
  const response = await fetch(url, { method: "POST", headers, body });
  // biome-ignore lint/suspicious/noExplicitAny: tests read any field of a body without a schema
  const parsed: any = await response.json();
  return { status: response.status, body: parsed };
}

async function importLines(world: World, lines: readonly object[]) {
  return importText(world, lines.map((line) => JSON.stringify(line)).join("\n"));
}

const message = (seq: number, fields: object = {}) => ({
  kind: "message",
  ...wire(G),
  from_uid: "ann",
  message_seq: seq,
  message_id: String(BigInt(LABEL) + BigInt(seq)),
  client_msg_no: `no-${seq}`,
  timestamp: SENT_S + seq,
  payload: base64(`{"type":1,"content":"text ${seq}"}`),
  ...fields,
});

const byNumber = (a: number, b: number) => a - b;

const state = async (world: World) => (await world.call("/admin/import")).body.state;

// Covers [decisions: Imported messages]
t.test(
  "no node of a cluster serves clients while an import is open, and no node accepts its lines after it was closed",
  async (t) => {
    const world = await startWorld(t, { JINDOU_AUTH_CLIENTS: "none" });
    const early = await connectNative(t, {
      port: world.clientPort,
      uid: "early",
      timeoutMs: TIMEOUT_MS,
    });
    t.equal(await state(world), "none");
    t.match(await importLines(world, [message(1)]), {
      status: 409,
      body: { code: "import_closed" },
    });
    t.match(await world.call("/admin/import/close", {}), {
      status: 409,
      body: { code: "import_closed" },
    });
    t.match(await world.call("/admin/import/open", {}), { status: 200, body: { state: "open" } });
    t.equal((await early.closed).code, 4102, "sessions end");
    t.match(await world.call("/admin/import/open", {}), { status: 200, body: { state: "open" } });

    for (let node = 0; node < 3; node++) {
      t.match(await world.call("/readyz"), { status: 503 });
      const send = { from_uid: "a", ...wire(G), payload: base64('{"type":1}') };
      const refused = await world.call("/message/send", send);
      t.match(refused, { status: 503, body: { code: "importing" } });
      t.type(refused.headers.get("retry-after"), "string");
      t.match(await world.call("/channel", wire(G)), { status: 503, body: { code: "importing" } });
      t.match(await world.call("/user/onlinestatus", ["a"]), { status: 200 });
      t.match(await world.call("/healthz"), { status: 200 });
      const late = connectNative(t, { port: world.clientPort, uid: "late", timeoutMs: TIMEOUT_MS });
      t.not(await codeOf(late).catch(() => "closed"), "ok");
      t.match(await importLines(world, [message(node + 1)]), { status: 200, body: { stored: 1 } });
    }
    t.match((await world.call("/admin/import")).body, { state: "open", stored: { message: 3 } });

    t.match(await world.call("/admin/import/close", {}), {
      status: 200,
      body: { state: "closed" },
    });
    t.match(await world.call("/admin/import/close", {}), {
      status: 200,
      body: { state: "closed" },
    });
    for (let node = 0; node < 3; node++) {
      t.match(await world.call("/readyz"), { status: 200 });
      const line = { kind: "token", uid: "ann", device_flag: 0, token: "old" };
      t.match(await importLines(world, [line]), { status: 409, body: { code: "import_closed" } });
    }
    t.match(await world.call("/admin/import/open", {}), {
      status: 409,
      body: { code: "import_closed" },
    });
    t.same((await world.ok("/user/onlinestatus", ["ann"]))[0].online, 0);
  },
);

t.test(
  "while an import is open, stream reads by clients are refused with 503, and those by backends are not",
  async (t) => {
    const world = await startWorld(t);
    const read = (port: number, path: string, headers: Record<string, string> = {}) =>
      fetch(`http://127.0.0.1:${port}/v1/stream/${path}`, { headers });
    t.match(await world.call("/admin/import/open", {}), { status: 200 });
    const log = "channel/2/g/s1";
    for (const port of [world.clientPort, world.apiPort])
      for (const reply of [
        await read(port, log, { "x-uid": "alice", "x-token": "token-alice" }),
        await read(port, `${log}?uid=alice&token=token-alice`),
        await read(port, "answers/42?sig=signature"),
      ]) {
        t.equal(reply.status, 503);
        t.match(await reply.json(), { code: "importing" });
      }
    const reply = await read(world.apiPort, log);
    t.equal(reply.status, 404, "a backend is told that the stream does not exist");
    t.match(await world.call("/admin/import/close", {}), { status: 200 });
  },
);

t.test("a call whose body is still arriving when an import opens stores nothing", async (t) => {
  const world = await startWorld(t);
  const send = { from_uid: "a", ...wire(person("b")), payload: base64('{"type":1}') };
  const body = JSON.stringify(send);
  const call = request({
    ...{ port: world.apiPort, path: "/message/send", method: "POST" },
    headers: { "content-type": "application/json", "content-length": body.length },
  });
  const replied = once(call, "response");
  await new Promise<unknown>((sent) => call.write(body.slice(0, 9), sent));
  t.match(await world.call("/healthz"), { status: 200 });
  t.match(await world.call("/admin/import/open", {}), { status: 200 });
  call.end(body.slice(9));
  const [reply] = (await replied) as [IncomingMessage];
  t.match(await json(reply), { code: "importing" });
  t.match(await world.call("/admin/import/close", {}), { status: 200 });
  t.match(await world.ok("/message/send", send), { message_seq: 1 });
});

t.test(
  "a message that the send hook accepts after an import has opened is not stored",
  async (t) => {
    const hook = await startHookServer(t);
    const world = await startWorld(t, {
      ...{ JINDOU_AUTH_CLIENTS: "none", JINDOU_HOOKS_SEND_URL: hook.url },
      ...{ JINDOU_HOOKS_SEND_SECRET: HOOK_SECRET, JINDOU_HOOKS_SEND_TIMEOUT_MS: "30000" },
    });
    const waiting: ((reply: object) => void)[] = [];
    hook.decide = () => new Promise((resolve) => waiting.push(resolve));
    const client = { port: world.clientPort, timeoutMs: TIMEOUT_MS };
    const ann = await connectNative(t, { ...client, uid: "ann" });
    ann.send(person("ben"), "late").catch(() => {});
    ann.send(person("ben"), "late", { syncOnce: true }).catch(() => {});
    await eventually(() => waiting.length === 2);
    t.match(await world.call("/admin/import/open", {}), { status: 200 });
    for (const accept of waiting) accept({ allow: true });
    await eventually(async () => {
      const pages = await Promise.all(range(1, 3).map(() => world.call("/metrics")));
      return pages.some(({ body }) => /hook_requests_total.*"allowed"} 2/.test(String(body)));
    });
    t.match(await world.call("/admin/import/close", {}), { status: 200 });
    const send = { from_uid: "ann", ...wire(person("ben")), payload: base64('{"type":1}') };
    t.match(await world.ok("/message/send", send), { message_seq: 1 });
    await world.ok("/message/send", { ...send, client_msg_no: "new", header: { sync_once: 1 } });
    const ben = await connectNative(t, { ...client, uid: "ben" });
    await eventually(() => ben.commands.length > 0);
    t.match(ben.commands, [{ message: { clientMsgNo: "new" } }]);
  },
);

t.test("an import into a store that contains data is refused and changes nothing", async (t) => {
  const world = await startWorld(t);
  await world.register("ann");
  t.match(await world.call("/admin/import/open", {}), {
    status: 409,
    body: { code: "import_refused", error: /user tokens/ },
  });
  t.equal(await state(world), "none");
  t.match(await world.call("/readyz"), { status: 200 });
});

t.test(
  "each line of an import is stored, reported as unchanged, or refused independently of other lines, and users find the imported data",
  async (t) => {
    const world = await startWorld(t);
    await world.call("/admin/import/open", {});
    const people = [
      { kind: "token", uid: "ann", device_flag: 1, device_level: 1, token: "token-ann" },
      { kind: "token", uid: "bob", device_flag: 0, token: "token-bob" },
      { kind: "token", uid: "cid", device_flag: 0, token: "" },
      { kind: "user", uid: "cid" },
      { kind: "system_uid", uid: "bot" },
      { kind: "channel", ...wire(G), large: 0 },
      { kind: "members", ...wire(G), uids: ["ann", "bob"] },
      { kind: "members", ...wire(G), uids: ["cid"], reset: 0 },
      { kind: "list", ...wire(G), list: "denylist", uids: ["cid"] },
    ];
    t.same((await importLines(world, people)).body, { stored: 7, unchanged: 2, refused: [] });
    t.same(
      (await importLines(world, people)).body.stored,
      2,
      "the first members line of a channel replaces its members",
    );

    const messages = [message(2), message(3), message(9)];
    const bob = { ...message(1, { ...wire(person("bob")), client_msg_no: "p1" }) };
    const positions = [{ kind: "position", uid: "bob", ...wire(G), read_seq: 2 }];
    t.same((await importLines(world, [...messages, bob, ...positions])).body, {
      ...{ stored: 5, unchanged: 0, refused: [] },
    });
    const wrong = [
      message(9, { payload: base64('{"type":2}') }),
      message(10, { payload: "no base64" }),
      message(11, { message_id: 0 }),
      message(12, { message_id: "18446744073709551616" }),
      message(13, { from_uid: "a@b" }),
      { kind: "members", ...wire(group("none")), uids: ["ann"] },
      { kind: "plugin" },
      { kind: "__proto__" },
      message(14, { payload: base64(`{"type":1,"content":"${"x".repeat(70_000)}"}`) }),
      message(15),
      { kind: "token", uid: TOO_LONG, device_flag: 0, token: "t" },
      { kind: "members", ...wire(G), uids: ["ann", TOO_LONG] },
      message(16, { from_uid: TOO_LONG }),
      message(16, { client_msg_no: TOO_LONG }),
      message(16, { topic: TOO_LONG }),
      { kind: "position", uid: "bob", ...wire(group(TOO_LONG)), read_seq: 2 },
    ];
    const text = `${wrong.map((line) => JSON.stringify(line)).join("\n")}\n\nno json\n[]\nnull\n`;
    const { body } = await importText(world, text);
    t.match(body, { stored: 1, unchanged: 0 });
    t.same(
      body.refused.map(({ line, code }: { line: number; code: string }) => [line, code]),
      [
        [1, "import_conflict"],
        [2, "bad_payload"],
        [3, "bad_request"],
        [4, "bad_request"],
        [5, "bad_id"],
        [6, "channel_not_found"],
        [7, "bad_request"],
        [8, "bad_request"],
        [9, "too_large"],
        [11, "bad_id"],
        [12, "bad_id"],
        [13, "bad_id"],
        [14, "bad_request"],
        [15, "bad_request"],
        [16, "bad_id"],
        [18, "bad_request"],
        [19, "bad_request"],
        [20, "bad_request"],
      ],
    );
    t.match(await importText(world, "{}", { "content-type": "application/json" }), { status: 415 });
    t.match(await importText(world, "\n \n"), { status: 400 });
    t.match(await importText(world, "{}\n".repeat(20_001)), { status: 400 });
    const stream = message(16, {
      payload: base64('{"type":1,"content":""}'),
      stream_data: base64("whole text"),
    });
    t.match((await importLines(world, [stream])).body, { stored: 1 });

    const range = `channel_id=g&channel_type=2`;
    t.match((await world.call(`/admin/import?${range}&to_seq=9`)).body.channel, {
      ...{ head_seq: 16, through_seq: 9, count: 3, checksum: /^[0-9a-f]{64}$/ },
    });
    t.match(await world.call("/admin/import?channel_id=g"), { status: 400 });
    await world.ok("/admin/import/close", {});

    const history = (await world.call(`/channel/messages?${range}&after=0`)).body;
    t.match(history, {
      head_seq: 16,
      messages: [
        { message_seq: 2, source_id: "9007199254740995", timestamp: SENT_S + 2, from_uid: "ann" },
        { message_seq: 3 },
        { message_seq: 9, client_msg_no: "no-9" },
        { message_seq: 15 },
        { message_seq: 16, payload: base64('{"type":1,"content":"whole text"}') },
      ],
    });
    const [first] = history.messages;
    const find = (ids: readonly (string | number)[]) =>
      world.ok("/messages", { ...wire(G), message_ids: ids });
    t.match((await find([first.message_id])).messages, [{ message_seq: 2 }]);
    t.match((await find(["9007199254740995", "9007199254741002"])).messages, [
      { message_seq: 2, message_id: first.message_id, source_id: "9007199254740995" },
      { message_seq: 9 },
    ]);
    t.same((await find(["1", "18446744073709551615"])).messages, []);
    for (const id of ["18446744073709551616", "99999999999999999999", 2 ** 64, 1e20]) {
      t.same((await find([id])).messages, [], `no message has the id ${id}`);
      t.match(await world.ok("/message", { ...wire(G), message_id: id }), { status: 404 });
    }
    t.match(await world.ok("/message", { ...wire(G), message_id: "9007199254741002" }), {
      message_seq: 9,
    });

    const client = await world.connect(t, "bob");
    const { conversations } = await client.conversations();
    t.match(
      conversations.map(({ channel, unread, headSeq }) => [channel.id, unread, headSeq]).sort(),
      [
        ["ann", 0, 1],
        ["g", 4, 16],
      ],
    );
    t.match((await world.send("cid", G, "no")).body, { code: "denylisted" });
    const sent = await world.send("ann", G, "new");
    t.match(sent.body, { message_seq: 17 });
    t.match(await world.connect(t, "ann", { flag: 1 }), {});
  },
);

t.test(
  "a client that resumes an imported channel whose seqs have gaps gets each missed message once, and then live messages",
  async (t) => {
    const world = await startWorld(t);
    await world.call("/admin/import/open", {});
    const imported = [2, 3, 9, 15];
    const uids = ["ann", "bob", "sdk"];
    await importLines(world, [
      ...uids.map((uid) => ({ kind: "token", uid, device_flag: 0, token: `token-${uid}` })),
      { kind: "channel", ...wire(G) },
      { kind: "members", ...wire(G), uids },
      ...imported.map((seq) => message(seq)),
      ...imported.map((seq) => message(seq, { ...wire(person("bob")), client_msg_no: `p-${seq}` })),
    ]);
    await world.ok("/admin/import/close", {});
    // The positions are at a message, inside each gap, before the first message, and at the newest
    // message.
    for (const [format, wireOf] of [
      ["native", nativeWire],
      ["JSON-RPC", jsonRpcWire],
    ] as const)
      for (const lastSeq of [0, 1, 2, 5, 8, 9, 12, 15]) {
        const channels = [G, person("ann")];
        const resume = channels.map((channel) => ({ channel, lastSeq }));
        const client = await world.connect(t, "bob", { resume, wire: wireOf("bob") });
        t.match(
          client.connack.resume,
          channels.map(() => ({ status: "ok", headSeq: 15 })),
        );
        const missed = imported.filter((seq) => seq > lastSeq);
        await untilReceived(client, 2 * missed.length);
        for (const channel of channels)
          t.same(
            client.messages.filter((m) => m.channel.type === channel.type).map((m) => m.messageSeq),
            missed,
            `${format}: messages after ${lastSeq}`,
          );
        client.kill();
        await client.closed;
      }
    const url = `ws://127.0.0.1:${world.clientPort}`;
    const cursors = [{ channel: G, lastSeq: 5 }];
    const sdk = connect({ url, uid: "sdk", token: "token-sdk", deviceFlag: 0, cursors });
    t.teardown(() => sdk.close());
    const seqsOfSdk: number[] = [];
    sdk.on("message", ({ messageSeq }) => void seqsOfSdk.push(messageSeq));
    const page = await sdk.history(G, { limit: 10 });
    t.same(page.messages.map(({ messageSeq }) => messageSeq).toSorted(byNumber), imported);
    const bob = await world.connect(t, "bob", { resume: [{ channel: G, lastSeq: 12 }] });
    await untilReceived(bob, 1);
    await world.untilSubscribed();
    t.match((await world.send("ann", G, "live")).body, { message_seq: 16 });
    t.equal((await untilReceived(bob, 2)).at(-1), "live");
    await eventually(() => seqsOfSdk.includes(16));
    t.same(seqsOfSdk, [9, 15, 16], "the SDK also gets the messages");
  },
);

t.test(
  "POST /messages finds a message by from_uid and client_msg_no within the dedupe window, even after 5,000 newer messages",
  async (t) => {
    const world = await startWorld(t);
    await world.call("/admin/import/open", {});
    const recentS = Math.floor(Date.now() / 1000) - 3600;
    const newest = 5200;
    const lines = range(1, newest).map((seq) =>
      message(seq, { timestamp: recentS, payload: base64('{"type":1}') }),
    );
    await importLines(world, [{ kind: "channel", ...wire(G) }]);
    for (let at = 0; at < newest; at += 2600)
      t.same((await importLines(world, lines.slice(at, at + 2600))).body.refused, []);
    await world.ok("/admin/import/close", {});
    const find = async (fields: object) => {
      const { messages } = await world.ok("/messages", { ...wire(G), ...fields });
      return messages.map(({ message_seq: seq }: { readonly message_seq: number }) => seq);
    };
    const names = { client_msg_nos: ["no-1", "no-5200", "x".repeat(5000)] };
    t.same(await find(names), [newest], "the search covers the newest 5,000 messages");
    t.same(await find({ ...names, from_uid: "ann" }), [1, newest]);
    t.same(await find({ ...names, from_uid: "bob" }), [], "no message of another sender is found");
    await world.ok("/channel/subscriber_add", { ...wire(G), subscribers: ["bob"] });
    await world.send("bob", G, "of bob", { client_msg_no: "no-1" });
    t.same(await find({ ...names, from_uid: "bob" }), [newest + 1]);
    t.same(await find({ ...names, from_uid: "ann" }), [1, newest]);
  },
);

t.test(
  "in the wukongim dialect, an imported message has the id that its old server assigned",
  async (t) => {
    const world = await startWorld(t, { JINDOU_API_DIALECT: "wukongim" });
    await world.call("/admin/import/open", {});
    const recent = message(5, { timestamp: Math.floor(Date.now() / 1000) - 60 });
    await importLines(world, [
      { kind: "channel", ...wire(G) },
      { kind: "members", ...wire(G), uids: ["ann", "bob"] },
      message(3, {
        setting: 2,
        payload: base64('{"type":100,"content":""}'),
        stream_data: base64("whole text"),
      }),
      message(4),
      recent,
    ]);
    t.match(await world.call("/admin/import/close", {}), { status: 200 });
    const post = async (path: string, body: string) => {
      const url = `http://127.0.0.1:${world.apiPort}${path}`;
      const headers = { "content-type": "application/json" };
      const response = await fetch(url, { method: "POST", headers, body });
      return response.text();
    };
    const [id, newId] = ["9007199254740997", "9007199254740998"];
    const page = await post(
      "/channel/messagesync",
      JSON.stringify({ ...wire(G), login_uid: "ann" }),
    );
    for (const label of [id, newId]) {
      t.match(page, `"message_id":${label},`, "the number has all digits");
      t.match(page, `"message_idstr":"${label}"`);
    }
    t.notMatch(page, "source_id");
    const [stream, ...others] = JSON.parse(page).messages;
    t.match(stream, {
      ...{ setting: 2, end: 1, stream_data: base64("whole text") },
      payload: base64('{"type":100,"content":"whole text"}'),
      event_meta: {
        completed: true,
        events: [
          { event_key: "main", status: "closed", snapshot: { kind: "text", text: "whole text" } },
        ],
      },
    });
    for (const other of others) t.notOk("stream_data" in other);
    const target = '"channel_id":"g","channel_type":2';
    for (const written of ["18446744073709551616", '"99999999999999999999"']) {
      t.match(await post("/messages", `{${target},"message_ids":[${written}]}`), '"messages":[]');
      t.match(await post("/message", `{${target},"message_id":${written}}`), '"status":404');
    }
    for (const written of [id, `"${id}"`]) {
      t.match(await post("/messages", `{${target},"message_ids":[${written}]}`), `"message_seq":4`);
      t.match(await post("/message", `{${target},"message_id":${written}}`), `"message_id":${id},`);
    }
    const list = await post("/conversation/sync", '{"uid":"bob","msg_count":5}');
    t.match(JSON.parse(list), [{ unread: 0, last_msg_seq: 5, timestamp: recent.timestamp }]);
    t.match(list, `"message_id":${newId},`);
    const again = { ...wire(G), from_uid: "ann", client_msg_no: "no-5", payload: recent.payload };
    t.match(await world.call("/message/send", again), { body: { data: { message_seq: 5 } } });
    const next = await world.call("/message/send", { ...again, client_msg_no: "new" });
    t.match(next, { body: { data: { message_seq: 6 } } });
  },
);
