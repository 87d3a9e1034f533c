// Streams of WuKongIM 2.2.4 and later: a public backend begins a stream with `is_stream` on
// `/message/send`, and `/message/event` adds its text and ends it. The frames that clients receive
// are compared with frames that were captured from a server of WuKongIM 2.2.5.

import { readFileSync } from "node:fs";
import type { Test } from "tap";
import type { ChannelRef } from "../../src/broker/model.ts";
import { type Json, type JsonRpcClient, openJsonRpc } from "../support/jsonrpc-client.ts";
import { t } from "../support/suite.ts";
import { connectWkproto } from "../support/wkproto-client.ts";
import { base64 } from "./formats/jsonrpc.ts";
import { person, startWorld, type World, wire } from "./world.ts";

const SETTINGS = { JINDOU_API_DIALECT: "wukongim" };
const world = await startWorld(t, SETTINGS);

const { sessions } = JSON.parse(
  readFileSync(new URL("../compat/wukongim/goldens/jsonrpc.json", import.meta.url), "utf8"),
) as { sessions: readonly { name: string; frames: readonly { dir: string; text: string }[] }[] };

/** Payload of the stream's message in the captured sessions. */
const ANCHOR = { type: 1, content: "" };
const OWN_PAYLOAD = { type: 100, content: "" };

interface Stream {
  readonly channel: ChannelRef;
  readonly sender: string;
  readonly viewer: string;
  readonly no: string;
  begin(fields?: object): Promise<Json>;
  /** Identifies the stream in the bodies of calls. */
  readonly place: object;
  /** Posts an event. Returns the response. */
  post(id: string, type: string, payload?: unknown, fields?: object): Promise<Json>;
  delta(id: string, delta: string, fields?: object): Promise<Json>;
  sync(fields?: object): Promise<Json>;
  /** Returns the stream's message as `/channel/messagesync` returns it. */
  message(fields?: object): Promise<Json>;
}

async function newStream(kind: "group" | "personal" = "group", at: World = world): Promise<Stream> {
  const [sender, viewer, no] = [at.name("ann"), at.name("ben"), at.name("st")];
  const channel = kind === "group" ? await at.newGroup([sender, viewer]) : person(viewer);
  return streamOf({ channel, sender, viewer, no }, at);
}

function streamOf(
  { channel, sender, viewer, no }: Pick<Stream, "channel" | "sender" | "viewer" | "no">,
  at: World,
): Stream {
  const place = { ...wire(channel), from_uid: sender, client_msg_no: no };
  const post: Stream["post"] = (id, type, payload, fields) =>
    at.call("/message/event", {
      ...{ ...place, event_id: id, event_type: type, payload },
      ...fields,
    });
  return {
    ...{ channel, sender, viewer, no, place, post },
    begin: (fields) =>
      at.call("/message/send", {
        ...{ ...place, is_stream: 1, payload: base64(OWN_PAYLOAD) },
        ...fields,
      }),
    delta: (id, delta, fields) => post(id, "stream.delta", { kind: "text", delta }, fields),
    sync: async (fields) => (await at.ok("/message/eventsync", { ...place, ...fields })).data,
    async message(fields) {
      const body = { ...wire(channel), login_uid: sender, limit: 10, ...fields };
      const { messages } = await at.ok("/channel/messagesync", body);
      return messages.find(({ client_msg_no }: Json) => client_msg_no === no);
    },
  };
}

async function openClient(t: Test, uid: string): Promise<JsonRpcClient> {
  await world.register(uid, { flag: 1 });
  const client = await openJsonRpc(t, { port: world.clientPort });
  const token = `token-${uid}`;
  await client.request("connect", { uid, token, deviceId: `device-${uid}`, deviceFlag: 1 });
  await world.untilSubscribed();
  return client;
}

const dataOf = ({ data }: Json) => (typeof data === "string" ? JSON.parse(data) : data);

/** Returns the notifications of the captured session that concern the stream, with these uids. */
function captured(name: string, uids: { readonly ann: string; readonly ben: string }): Json[] {
  const { frames = [] } = sessions.find((session) => session.name === name) ?? {};
  return frames
    .filter(({ dir, text }) => dir === "s>c" && text.includes("st-1"))
    .map(({ text }) =>
      JSON.parse(text.replaceAll(/\bann\b/g, uids.ann).replaceAll(/\bben\b/g, uids.ben)),
    );
}

/** Returns a notification without the ids and the time that each server chooses. */
function comparable({ method, params }: Json, no: string): Json {
  if (method === "event") {
    const { id, type, timestamp, data } = params;
    const fields = { ...dataOf({ data }), message_id: 0 };
    return { id, type, timestamp, fields: { ...fields, client_msg_no: no } };
  }
  const { setting, channelId, channelType, fromUid, payload } = params;
  return { setting, channelId, channelType, fromUid, payload };
}

t.test(
  "a stream of /message/event is pushed to clients of WuKongIM's JSON-RPC as WuKongIM 2.2.5 pushes it",
  async (t) => {
    const stream = await newStream("personal");
    const { sender, viewer, no } = stream;
    const uids = { ann: sender, ben: viewer };
    const clients = [await openClient(t, sender), await openClient(t, viewer)];
    const { body } = await stream.begin({ payload: base64(ANCHOR) });
    await stream.delta("ev-1", "wör", { occurred_at: 1_700_000_000_001 });
    await stream.post(
      "ev-2",
      "stream.close",
      { end_reason: 0 },
      { occurred_at: 1_700_000_000_002 },
    );
    for (const [index, name] of ["easysdk-sender", "easysdk-receiver"].entries()) {
      const client = clients[index];
      if (client === undefined) throw new Error("a client is missing");
      const expected = captured(name, uids);
      await client.waitFor(() => client.notifications.length >= expected.length);
      t.same(
        client.notifications.map((notification) => comparable(notification, no)),
        expected.map((notification) => comparable(notification, no)),
      );
      const [delta] = client.all("event");
      t.equal(dataOf(delta).message_id, body.data.message_id, "events name the stream's message");
      t.same(
        Object.keys(dataOf(delta)),
        Object.keys(dataOf(expected.at(-1).params)),
        "the fields of an event have the captured order",
      );
    }
  },
);

t.test(
  "a stream of /message/event is pushed over WKProto, and only to clients of version 5",
  async (t) => {
    const stream = await newStream();
    const { sender, viewer, no } = stream;
    await world.register(sender, { flag: 1 });
    await world.register(viewer, { flag: 1 });
    const port = world.clientPort;
    const v5 = await connectWkproto(t, { port, uid: sender, version: 5 });
    const v4 = await connectWkproto(t, { port, uid: viewer, version: 4 });
    await world.untilSubscribed();
    const { body } = await stream.begin();
    await stream.delta("ev-1", "wör", { occurred_at: 1_700_000_000_001 });
    await stream.post(
      "ev-3",
      "stream.close",
      { end_reason: 0 },
      { occurred_at: 1_700_000_000_003 },
    );
    const message = await v5.next("RECV");
    t.equal(message.setting, 2, "the message has the stream bit");
    t.same(JSON.parse(String(message.plain)), OWN_PAYLOAD, "the message has its own payload");
    const common = {
      ...{ client_msg_no: no, channel_id: stream.channel.id, channel_type: 2, from_uid: sender },
      ...{ message_id: body.message_id, event_key: "main" },
    };
    const delta = await v5.next("EVENT");
    t.match(delta, { id: "ev-1", type: "stream.delta", timestamp: "1700000000001" });
    t.same(JSON.parse(String(delta.data)), {
      ...{ ...common, msg_event_seq: 0, stream_status: "open" },
      payload: { kind: "text", delta: "wör" },
    });
    const close = await v5.next("EVENT", ({ id }) => id === "ev-3");
    t.match(close, { id: "ev-3", type: "stream.close", timestamp: "1700000000003" });
    t.same(JSON.parse(String(close.data)), {
      ...{ ...common, msg_event_seq: 1, stream_status: "closed" },
      payload: { end_reason: 0 },
    });
    await world.send(sender, stream.channel, "after");
    await v4.text("after");
    t.notOk(v4.received.some(({ packet }) => packet === "EVENT"));
  },
);

for (const kind of ["group", "personal"] as const)
  t.test(
    `a backend that streams into a ${kind} channel gets the replies that WuKongIM 2.2.5 documents`,
    async (t) => {
      const stream = await newStream(kind);
      const { no, sender } = stream;
      const place = { ...wire(stream.channel), from_uid: sender };
      const begun = await stream.begin();
      const { message_id } = begun.body.data;
      t.match(begun, {
        status: 200,
        body: { status: 200, data: { message_id: Number, message_seq: 1, client_msg_no: no } },
      });
      t.notOk((await stream.message()).event_meta, "a stream without events has no event_meta");
      const state = { client_msg_no: no, event_key: "main", msg_event_seq: 0, ...place };
      t.same((await stream.delta("e-1", "Half a ")).body, {
        status: 200,
        data: { ...state, event_id: "e-1", stream_status: "open" },
      });
      await stream.delta("e-2", "sent");
      t.same((await stream.sync()).events, [], "an open stream has no stored events");
      const hint = { event_sync_hint: { client_msg_no: no, from_msg_event_seq: 0 } };
      const snapshot = { kind: "text", text: "Half a sent" };
      const open = await stream.message();
      t.match(open, {
        ...{ setting: 2, message_id, payload: base64(OWN_PAYLOAD), end: undefined },
        ...{ stream_data: btoa("Half a sent"), ...hint },
      });
      t.same(open.event_meta, {
        ...{ has_events: true, completed: false, event_count: 1, open_event_count: 1 },
        events: [{ event_key: "main", status: "open", snapshot }],
      });
      t.same((await stream.post("e-4", "stream.close", undefined, { occurred_at: 5000 })).body, {
        status: 200,
        data: { ...state, event_id: "e-4", msg_event_seq: 1, stream_status: "closed" },
      });
      t.same((await stream.post("e-6", "stream.finish")).body.data, {
        ...{ ...state, event_id: "e-6", event_key: "__finish__" },
        ...{ msg_event_seq: 2, stream_status: "closed" },
      });
      const done = await stream.message();
      t.match(done, { end: 1, end_reason: undefined, error: undefined, ...hint });
      t.equal(done.stream_data, btoa("Half a sent"));
      const meta = {
        ...{ has_events: true, completed: true, event_version: 1, last_msg_event_seq: 1 },
        event_count: 1,
      };
      const lane = { event_key: "main", status: "closed", last_msg_event_seq: 1 };
      t.same(done.event_meta, { ...meta, events: [{ ...lane, snapshot }] });
      const basic = await stream.message({ event_summary_mode: "basic" });
      t.same(basic.event_meta, { ...meta, events: [lane] }, "the mode basic leaves out the text");
      t.equal(basic.stream_data, btoa("Half a sent"));
      const events = [
        {
          ...{ msg_event_seq: 1, event_id: "e-4", event_key: "main", event_type: "stream.close" },
          ...{ visibility: "", occurred_at: 5000, payload: snapshot },
        },
        {
          ...{ msg_event_seq: 2, event_id: "e-4", event_key: "__finish__" },
          ...{ event_type: "stream.finish", visibility: "", occurred_at: 5000, payload: {} },
        },
      ];
      const page = {
        ...{ client_msg_no: no, from_msg_event_seq: 0, next_msg_event_seq: 2, more: 0 },
        ...{ events, filtered_by_event_key: "" },
      };
      t.same(await stream.sync(), page);
      t.same(await stream.sync({ limit: 1 }), {
        ...{ ...page, next_msg_event_seq: 1, more: 1, events: events.slice(0, 1) },
      });
      t.same((await stream.sync({ from_msg_event_seq: 1 })).events, events.slice(1));
      t.same((await stream.sync({ event_key: "main" })).events, events.slice(0, 1));
      t.same((await stream.sync({ client_msg_no: "unknown" })).events, []);
      if (kind === "group") return;
      const stored = { from_uid: "", channel_id: `${stream.viewer}@${sender}` };
      t.same((await stream.sync(stored)).events, events, "both uids joined by @ name the channel");
    },
  );

t.test(
  "stream.close and stream.finish end a stream as closed, stream.cancel as cancelled, and stream.error as error, but native viewers see an error as closed",
  async (t) => {
    for (const [type, payload, status, ending, state] of [
      ["stream.close", { end_reason: 7 }, "closed", { end: 1, end_reason: 7 }, "closed"],
      ["stream.finish", undefined, "closed", { end: 1 }, "closed"],
      ["stream.cancel", { end_reason: 3 }, "cancelled", { end: 1, end_reason: 3 }, "cancelled"],
      ["stream.error", { error: "no tokens" }, "error", { end: 1, error: "no tokens" }, "closed"],
    ] as const) {
      const stream = await newStream();
      const viewer = await world.join(t, stream.viewer);
      const client = await openClient(t, stream.sender);
      await stream.begin({ payload: base64({ type: 100, name: "answer" }) });
      await stream.delta("e-1", "text");
      const { body } = await stream.post("e-2", type, payload);
      t.match(body.data, { stream_status: status, msg_event_seq: 1 }, type);
      await client.waitFor(() => client.all("event").length === 2);
      const [, end] = client.all("event");
      t.match(end, { id: "e-2", type });
      t.match(dataOf(end), { stream_status: status, msg_event_seq: 1 });
      t.same(dataOf(end).payload, payload);
      const message = await stream.message();
      const { end: isOver, end_reason, error, event_meta } = message;
      t.same(
        { end: isOver, end_reason, error },
        { end_reason: undefined, error: undefined, ...ending },
      );
      t.equal(event_meta.events[0].status, status);
      await viewer.ping();
      const view = viewer.view(stream.channel, stream.no);
      t.match({ ...view }, { text: "text", state }, `${type} for a native viewer`);
      const { messages } = await viewer.history(stream.channel);
      const stored = messages.find(({ clientMsgNo }) => clientMsgNo === stream.no);
      t.equal(stored?.stream?.text, "text", "a native viewer reads the text from history");
      t.match(await stream.delta("e-3", "late"), { status: 400, body: { status: 400 } });
    }
  },
);

t.test(
  "a further end event of an ended stream is pushed and leaves the stream's text unchanged, and a repeated event is not pushed again",
  async (t) => {
    const stream = await newStream();
    const client = await openClient(t, stream.viewer);
    await stream.begin();
    await stream.post("e-0", "stream.open");
    await stream.delta("e-1", "a");
    t.equal((await stream.delta("e-1", "a")).status, 200);
    await stream.delta("e-2", "b");
    await stream.post("e-3", "stream.close");
    t.match((await stream.post("e-3", "stream.close")).body.data, { msg_event_seq: 1 });
    const other = await stream.post("e-3", "stream.close", { end_reason: 2 });
    t.match(other.body.data, { msg_event_seq: 1 }, "the same id with a different payload");
    await stream.post("e-4", "stream.finish", { by: "bot" });
    await client.waitFor(() => client.all("event").some(({ type }) => type === "stream.finish"));
    t.same(
      client.all("event").map(({ id, type }) => [id, type]),
      [
        ["e-0", "stream.open"],
        ["e-1", "stream.delta"],
        ["e-2", "stream.delta"],
        ["e-3", "stream.close"],
        ["e-3", "stream.close"],
        ["e-4", "stream.finish"],
      ],
    );
    const finish = dataOf(client.all("event").at(-1));
    t.match(finish, { event_key: "__finish__", msg_event_seq: 2, stream_status: "closed" });
    t.same(finish.payload, { by: "bot" });
    t.equal((await stream.message()).stream_data, btoa("ab"));
    const [ids, again] = [await stream.message(), await stream.begin()];
    t.equal(again.body.message_id, ids.message_id, "a repeated send returns the first ids");
  },
);

t.test(
  "two concurrent events that end a stream are answered and pushed as if they were sent one after the other",
  async (t) => {
    const user = world.name("ben");
    const client = await openClient(t, user);
    for (let round = 0; round < 10; round++) {
      const channel = await world.newGroup([user]);
      await world.untilSubscribed();
      const stream = streamOf({ channel, sender: user, viewer: user, no: world.name("st") }, world);
      await stream.begin();
      const [close, finish] = await Promise.all([
        stream.post("e-1", "stream.close"),
        stream.post("e-2", "stream.finish"),
      ]);
      const seqs = [close.body.data.msg_event_seq, finish.body.data.msg_event_seq];
      const hasFinished = (await stream.sync()).events[0].event_id === "e-2";
      t.same(seqs, hasFinished ? [1, 1] : [1, 2], "the seqs are those of two consecutive calls");
      const types = () =>
        client
          .all("event")
          .filter((event) => dataOf(event).client_msg_no === stream.no)
          .map(({ type }) => type);
      await client.waitFor(() => types().length >= 2);
      t.same(types().sort(), ["stream.close", "stream.finish"]);
    }
  },
);

t.test(
  "the reply to an event that ends a stream contains the stream's stored state, even if a viewer cancels the stream at the same time",
  async (t) => {
    for (let round = 0; round < 10; round++) {
      const stream = await newStream();
      const viewer = await world.join(t, stream.viewer);
      await stream.begin();
      const [{ body }] = await Promise.all([
        stream.post("e-1", "stream.close"),
        viewer.cancel(stream.channel, stream.no),
      ]);
      const { status } = (await stream.message()).event_meta.events[0];
      t.equal(body.data.stream_status, status);
      viewer.kill();
    }
  },
);

t.test(
  "a client of WuKongIM that joins an active stream gets the text so far as a snapshot, and then the later text",
  async (t) => {
    const stream = await newStream();
    await stream.begin();
    await stream.delta("e-1", "so ");
    await stream.delta("e-2", "far");
    const late = await openClient(t, stream.viewer);
    const snapshot = await late.next("event");
    t.equal(snapshot.type, "stream.snapshot");
    t.match(dataOf(snapshot), {
      ...{ client_msg_no: stream.no, stream_status: "open", msg_event_seq: 0 },
      payload: { kind: "text", text: "so far" },
    });
    await stream.delta("e-3", ", then more");
    t.match(dataOf(await late.next("event")), { payload: { kind: "text", delta: ", then more" } });
  },
);

t.test(
  "an event without from_uid belongs to the sender of the stream's message, and its type and visibility are passed on unchanged",
  async (t) => {
    const stream = await newStream();
    const client = await openClient(t, stream.viewer);
    await stream.begin();
    const fields = { from_uid: undefined, visibility: "public", event_key: "", message_id: "7" };
    const { body } = await stream.delta("e-1", "text", { ...fields, event_type: "Stream.Delta" });
    t.match(body.data, { from_uid: stream.sender, event_key: "main", stream_status: "open" });
    const event = await client.next("event");
    t.equal(event.type, "Stream.Delta");
    t.match(dataOf(event), { from_uid: stream.sender, visibility: "public" });
  },
);

t.test(
  "a snapshot is accepted as the first text of a stream, and refused after other text",
  async (t) => {
    const stream = await newStream();
    const client = await openClient(t, stream.viewer);
    await stream.begin();
    const snapshot = (id: string, text: string) =>
      stream.post(id, "stream.snapshot", { kind: "text", text });
    t.match((await snapshot("e-1", "first")).body.data, { stream_status: "open" });
    const event = await client.next("event");
    t.match(event, { id: "e-1", type: "stream.snapshot" });
    t.same(dataOf(event).payload, { kind: "text", text: "first" });
    t.match(await snapshot("e-2", "second"), { status: 400, body: { msg: /stream\.delta/ } });
    t.equal((await stream.message()).stream_data, btoa("first"));
  },
);

t.test(
  "a viewer's cancel ends a stream of /message/event, and the backend's next delta is answered with the status cancelled",
  async (t) => {
    const stream = await newStream();
    const viewer = await world.join(t, stream.viewer);
    await stream.begin();
    await stream.delta("e-1", "text");
    await viewer.cancel(stream.channel, stream.no);
    const { status, body } = await stream.delta("e-2", " more");
    t.match([status, body.data.stream_status], [200, "cancelled"]);
    const message = await stream.message();
    t.equal(message.stream_data, btoa("text"));
    t.equal(message.event_meta.events[0].status, "cancelled");
  },
);

t.test(
  "events that a stream cannot contain, and messages that cannot begin a stream, are refused with an explanation",
  async (t) => {
    const stream = await newStream();
    const text = { kind: "text", delta: "x" };
    t.match(await stream.delta("e-1", "x"), { status: 400, body: { msg: /is_stream 1/ } });
    for (const [fields, msg] of [
      [{ header: { no_persist: 1 } }, /header\.no_persist/],
      [{ header: { sync_once: 1 } }, /header\.sync_once/],
      [{ subscribers: [stream.viewer] }, /subscribers/],
      [{ payload: base64({ type: 99, cmd: "x", param: {} }) }, /payload/],
      [{ payload: "!" }, /base64/],
      [{ payload: btoa("no json") }, /JSON/],
    ] as const)
      t.match(await stream.begin(fields), { status: 400, body: { msg, status: 400 } });
    t.equal((await stream.begin()).status, 200);
    const other = await stream.begin({ client_msg_no: world.name("st") });
    t.match(other, { status: 400, body: { msg: /already running/ } });
    for (const [fields, msg] of [
      [{ event_key: "tool" }, /event_key must be main/],
      [{ event_type: "tool.call" }, /event_type must be one of/],
      [{ event_type: "" }, /event_type/],
      [{ payload: { kind: "json", delta: {} } }, /payload of stream\.delta/],
      [{ payload: "x" }, /payload of stream\.delta/],
      [{ payload: null }, /payload of stream\.delta/],
      [{ payload: { kind: "text" } }, /payload of stream\.delta/],
      [{ event_type: "stream.snapshot" }, /payload of stream\.snapshot/],
      [{ visibility: "private" }, /visibility/],
      [{ event_id: "" }, /event_id/],
      [{ event_id: "x".repeat(81) }, /event_id/],
      [{ event_id: "😀".repeat(41) }, /event_id/],
      [{ client_msg_no: "" }, /client_msg_no/],
      [{ channel_type: 3 }, /channel_type/],
    ] as const) {
      const reply = await stream.post("e-1", "stream.delta", text, fields);
      t.match(reply, { status: 400, body: { msg, status: 400 } }, JSON.stringify(fields));
    }
    t.equal((await stream.message()).stream_data, "", "refused events add nothing");
    const longest = { visibility: "public", occurred_at: 8_640_000_000_000_000 };
    t.equal((await stream.post("x".repeat(80), "stream.delta", text, longest)).status, 200);
    const event = { client_msg_no: "plain", ...wire(stream.channel), from_uid: stream.sender };
    for (const occurred_at of [-1, 1_765_000_000_000_000_000])
      t.equal((await stream.post("e-2", "stream.delta", text, { occurred_at })).status, 200);
    const end = await stream.post("y".repeat(80), "stream.finish", undefined, longest);
    t.equal(end.status, 200, "the longest id");
    await world.ok("/event", { ...event, event: { type: "___TextMessageStart" } });
    const mixed = await stream.delta("e-1", "x", { client_msg_no: "plain" });
    t.match(mixed, { status: 400, body: { msg: /POST \/event/ } });
  },
);

/** JSON that a parser would change. */
const PAYLOAD = String.raw`{ "b" :1234567890123456789,"a":1e400, "a":0.10,"2":{"z":[1.0,"\u0041"]},
"1":null,"end_reason":7 }`;

/** Makes a call whose body contains `payload` unchanged. Returns the text of the response. */
async function callWithText(path: string, fields: object, payload: string): Promise<string> {
  const response = await fetch(`http://127.0.0.1:${world.apiPort}${path}`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: `${JSON.stringify(fields).slice(0, -1)},"payload":${payload}}`,
  });
  const text = await response.text();
  if (response.status !== 200) throw new Error(`${path} failed: ${text}`);
  return text;
}

// Covers [decisions: A payload's text]
t.test(
  "the payload of an event reaches clients and /message/eventsync as the bytes that the backend sent",
  async (t) => {
    for (const [type, stored] of [
      ["stream.close", [`${PAYLOAD.slice(0, -1)},"kind":"text","text":"so far"}`, "{}"]],
      ["stream.finish", ['{"kind":"text","text":"so far"}', PAYLOAD]],
    ] as const) {
      const stream = await newStream();
      const { sender, viewer, place } = stream;
      const jsonRpc = await openClient(t, sender);
      await world.register(viewer, { flag: 1 });
      const wkproto = await connectWkproto(t, { port: world.clientPort, uid: viewer, version: 5 });
      await world.untilSubscribed();
      const post = (id: string, event_type: string) =>
        callWithText("/message/event", { ...place, event_id: id, event_type }, PAYLOAD);
      await stream.begin();
      await post("e-0", "stream.open");
      await stream.delta("e-1", "so far");
      await post("e-2", type);
      await post("e-3", "stream.cancel");
      const late = await openClient(t, sender);
      const end = `,"payload":${PAYLOAD}}`;
      for (const id of ["e-0", "e-2", "e-3"]) {
        const { data } = await wkproto.next("EVENT", (event) => event.id === id);
        t.equal(String(data).slice(-end.length), end, `${id} of ${type} over WKProto`);
        await jsonRpc.waitFor(() => jsonRpc.all("event").some((event) => event.id === id));
        const event = jsonRpc.all("event").find((event) => event.id === id);
        t.equal(event?.data.slice(-end.length), end, `${id} of ${type} over JSON-RPC`);
      }
      await late.waitFor(() => late.all("event").some((event) => event.id === "e-2"));
      const lateEnd = late.all("event").find((event) => event.id === "e-2");
      t.equal(lateEnd?.data.slice(-end.length), end, `${type} for a client that joins late`);
      const page = await callWithText("/message/eventsync", place, "{}");
      for (const payload of stored) t.ok(page.includes(`,"payload":${payload}}`), page);
      t.match(await stream.message(), { end: 1, end_reason: 7, stream_data: btoa("so far") });
    }
  },
);

// Covers [decisions: Event id]
t.test(
  "events of a stream of /message/event that share one event id are all added, even if they are equal",
  async (t) => {
    for (const isClientMsgNo of [true, false]) {
      const before = await startWorld(t, SETTINGS);
      let stream = await newStream("group", before);
      const id = isClientMsgNo ? stream.no : "chatcmpl-1";
      const text = "hahanonoha!!ha";
      const viewer = await before.join(t, stream.viewer);
      await stream.begin();
      if (!isClientMsgNo) await stream.post(id, "stream.open");
      for (const chunk of ["ha", "ha", "no", "no", "ha"])
        t.match(await stream.delta(id, chunk), { body: { data: { stream_status: "open" } } });
      for (const fields of [{ visibility: "public" }, { event_type: "STREAM.DELTA" }])
        t.equal((await stream.delta(id, "!", fields)).status, 200);
      await viewer.ping();
      t.equal(viewer.view(stream.channel, stream.no)?.text, "hahanonoha!!", "a viewer's text");
      await before.close();
      const after = await startWorld(t, SETTINGS, before.dataPath);
      stream = streamOf(stream, after);
      t.equal((await stream.delta(id, "ha")).status, 200);
      t.equal((await stream.message()).stream_data, btoa(text), "the text after a restart");
      t.equal((await stream.post(id, "stream.close")).body.data.stream_status, "closed");
      t.match(await stream.message(), { stream_data: btoa(text), end: 1 });
      const late = await stream.delta(id, "ha");
      t.equal(late.status, 400, "an event with a shared id is not a retry after the end either");
    }
    const stream = await newStream();
    await stream.begin();
    await stream.post("e-1", "stream.snapshot", { kind: "text", text: "ha" });
    await stream.delta("e-1", "ha");
    t.equal((await stream.message()).stream_data, btoa("haha"), "a delta after a snapshot");
  },
);

// Covers [decisions: Event id]
t.test(
  "a retry of any event of a stream of /message/event is recognised, even after a restart or the end of the stream",
  async (t) => {
    const before = await startWorld(t, SETTINGS);
    let stream = await newStream("group", before);
    const viewer = await before.join(t, stream.viewer);
    const thrice = async (post: () => Promise<Json>) => {
      const replies = await Promise.all([post(), post(), post()]);
      return replies.map(({ status, body }) => `${status} ${body.data?.stream_status}`);
    };
    const [OPEN, CLOSED] = ["open", "closed"].map((status) => Array(3).fill(`200 ${status}`));
    const open = () => stream.post("e-0", "stream.open");
    const snapshot = () => stream.post("e-1", "stream.snapshot", { kind: "text", text: "a" });
    const deltas = [
      () => stream.delta("e-2", "b", { occurred_at: 5000 }),
      () => stream.delta("e-3", "c", { visibility: "public" }),
    ];
    const close = () =>
      stream.post("e-4", "stream.close", { end_reason: 1 }, { occurred_at: 6000 });
    await stream.begin();
    for (const post of [open, snapshot, snapshot, ...deltas]) t.same(await thrice(post), OPEN);
    await viewer.ping();
    t.match(viewer.view(stream.channel, stream.no), { text: "abc", nextIndex: 5, repeated: 0 });
    await before.close();
    const after = await startWorld(t, SETTINGS, before.dataPath);
    stream = streamOf(stream, after);
    for (const post of [open, ...deltas]) t.same(await thrice(post), OPEN);
    t.equal((await stream.message()).stream_data, btoa("abc"));
    t.same(await thrice(close), CLOSED);
    for (const post of [...deltas, close]) t.same(await thrice(post), CLOSED);
    t.match(await stream.message(), { stream_data: btoa("abc"), end: 1, end_reason: 1 });
    const { status } = await stream.delta("e-2", "b", { occurred_at: 7000 });
    t.equal(status, 400, "an event with a different time is not a retry");
  },
);

t.test(
  "the start of a stream is not sent again to a client that has later events of the stream but acknowledged no message",
  async (t) => {
    const quick = await startWorld(t, { ...SETTINGS, JINDOU_CLIENT_RESEND_AFTER_S: "1" });
    const stream = await newStream("group", quick);
    const { viewer, sender, channel, no } = stream;
    await quick.register(viewer, { flag: 1 });
    const client = await connectWkproto(t, { port: quick.clientPort, uid: viewer, version: 5 });
    await quick.untilSubscribed();
    await stream.begin();
    await stream.delta("e-1", "text");
    await stream.post("e-2", "stream.close", { end_reason: 0 });
    await quick.send(sender, channel, "later");
    const starts = () => client.received.filter(({ fields }) => fields.clientMsgNo === no);
    await client.nth(3, ({ packet, fields }) => packet === "RECV" && fields.clientMsgNo !== no);
    t.same(
      starts().map(({ packet }) => packet),
      ["RECV"],
    );
  },
);
