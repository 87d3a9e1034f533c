// JSON-RPC on a real broker. The responses equal those that WuKongIM's servers gave to real clients
// (test/compat/wukongim/goldens/jsonrpc.json), except where WuKongIM's responses are defective. The
// extended form adds resuming.

import { readFileSync } from "node:fs";
import type { Test } from "tap";
import { type Json, type JsonRpcClient, openJsonRpc } from "../support/jsonrpc-client.ts";
import { t } from "../support/suite.ts";
import { base64 } from "./formats/jsonrpc.ts";
import { group, person, startWorld, type World, wire } from "./world.ts";

interface CapturedFrame {
  readonly dir: string;
  readonly text: string;
  readonly binary?: boolean;
}

const { sessions } = JSON.parse(
  readFileSync(new URL("../compat/wukongim/goldens/jsonrpc.json", import.meta.url), "utf8"),
) as { sessions: readonly { name: string; frames: readonly CapturedFrame[] }[] };

const world = await startWorld(t);

/** Responses that deliberately differ from those of WuKongIM's server, by captured session. */
const DIFFERING_RESPONSES: Readonly<Record<string, readonly string[]>> = {
  // The faulty request is answered, and the connection stays open.
  "bare-after-connect-unknown-method": ["c1 1", "x1 error", "after ok"],
  "bare-after-connect-not-base64": ["c1 1", "x1 error", "after ok"],
  "bare-after-connect-number-id": ["c1 1", "7 ok", "after ok"],
  "bare-after-connect-not-json": ["c1 1", "- error", "after ok"],
  "bare-after-connect-subscribe": ["c1 1", "x1 error", "after ok"],
  "bare-after-connect-missing-params": ["c1 1", "x1 error", "after ok"],
  "bare-after-connect-wrong-jsonrpc": ["c1 1", "x1 error", "after ok"],
  // Both forms of a payload are accepted.
  "bare-after-connect-object-payload": ["c1 1", "x1 1", "after ok"],
  // An acknowledgement with an id is accepted and not answered.
  "bare-after-connect-recvack-with-id": ["c1 1", "after ok"],
  // A missing field is an error, not a channel without members.
  "bare-after-connect-snake-case": ["c1 1", "x1 error", "after ok"],
  // The connect is refused with a reason instead of silently.
  "bare-first-not-connect": ["x error"],
  "bare-connect-number-id": ["5 1"],
  "bare-connect-bad-uid": ["c1 error"],
  "bare-connect-no-id": ["null error"],
  "bare-refused-token": ["c1 error"],
  "bare-connect-empty-token": ["c1 error"],
};
const CLOSES = /^bare-(first|connect-(?!number)|refused)/;

/** Returns the id of a response and its reason. */
function summaryOf(text: string): string {
  const { id = "-", result, error } = JSON.parse(text);
  return `${id} ${error ? "error" : (result?.reasonCode ?? "ok")}`;
}

const isResponse = (text: string) => !("method" in JSON.parse(text));

for (const { name, frames } of sessions.filter(
  ({ name }) => name.startsWith("bare-") || name === "easysdk-ping",
))
  t.test(
    `a replay of the captured session ${name} gets the responses of WuKongIM's server, except for intended differences`,
    async (t) => {
      const expected =
        DIFFERING_RESPONSES[name] ??
        frames.filter(({ dir }) => dir === "s>c").map(({ text }) => summaryOf(text));
      const first: Json = JSON.parse(frames[0]?.text ?? "");
      const { uid = "", deviceFlag: flag = 0 } = first.params;
      if (/^\w+$/.test(uid)) await world.register(uid, { flag, token: `tok-${uid}` });
      const client = await openJsonRpc(t, { port: world.clientPort });
      const responses = () => client.texts.filter(isResponse).map(summaryOf);
      let sentCount = 0;
      for (const { text, binary } of frames.filter(({ dir }) => dir === "c>s")) {
        client.raw(binary ? Buffer.from(text) : text);
        sentCount += 1;
        if (sentCount === 1) await client.waitFor(() => responses().length > 0); // like the captured clients
      }
      await client.waitFor(() => responses().length >= expected.length);
      t.same(responses().sort(), [...expected].sort());
      if (CLOSES.test(name))
        t.match(await client.closed, { code: /^(4201|4205)$/ }, "the connection is closed");
    },
  );

/** Connects the clients of the captured sessions in the same way as when they were captured. */
async function replay(t: Test, target: World, names: readonly string[], level: 0 | 1 = 0) {
  const clients = [];
  for (const name of names) {
    const frames = sessions.find((session) => session.name === name)?.frames ?? [];
    const connect: Json = JSON.parse(frames[0]?.text ?? "");
    const { uid, token, deviceFlag: flag } = connect.params;
    await target.register(uid, { flag, level, token });
    const client = await openJsonRpc(t, { port: target.clientPort });
    const { result } = await client.exchange(connect.id, connect);
    t.equal(result.reasonCode, 1, `${uid} is connected`);
    clients.push({ client, frames });
  }
  await target.untilSubscribed();
  return clients;
}

/**
 * Returns a notification without the fields that each server chooses and without the fields that
 * differ deliberately.
 */
function comparable({ method, params }: Json): Json {
  if (method === "event") {
    const { id, type, data } = params;
    return { id: id || "st-1", type, data }; // this broker never sends an empty id
  }
  const { messageId: _, timestamp: __, header = {}, ...fields } = params;
  const { noPersist, syncOnce } = header;
  // On this broker, copies for the sender's devices have different seqs, and messages of streams
  // have a different `redDot`.
  if (fields.clientMsgNo === "api-3") return { ...fields, messageSeq: 0, header };
  if (fields.clientMsgNo === "st-1") return { ...fields, messageSeq: 0, noPersist, syncOnce };
  return { ...fields, header };
}

const notificationsIn = (frames: readonly CapturedFrame[], methods: RegExp) =>
  frames
    .filter(({ dir }) => dir === "s>c")
    .map(({ text }): Json => JSON.parse(text))
    .filter(({ method, params }) => methods.test(`${method} ${params?.type}`))
    .map(comparable);

/** Sorts notifications, because only those of one channel or inbox have an order. */
const sorted = (notifications: readonly Json[]) =>
  notifications.map((notification) => JSON.stringify(notification)).sort();

async function assertNotifications(
  t: Test,
  { client, frames }: { client: JsonRpcClient; frames: readonly CapturedFrame[] },
  methods: RegExp,
): Promise<void> {
  const expected = notificationsIn(frames, methods);
  const received = () => client.notifications.filter(({ method }) => methods.test(`${method} `));
  await client.waitFor(() => received().length >= expected.length);
  t.same(sorted(received().map(comparable)), sorted(expected));
}

t.test(
  "clients that replay recorded sessions receive the same messages as from WuKongIM's server",
  async (t) => {
    const captured = await startWorld(t);
    const [g1, g2] = [group("g1"), group("g2")];
    await captured.ok("/channel", { ...wire(g1), subscribers: ["ann", "ben"] });
    await captured.ok("/channel", { ...wire(g2), subscribers: ["ben"] });
    const participants = await replay(t, captured, ["easysdk-sender", "easysdk-receiver"]);
    const [ann, ben] = participants;
    if (ann === undefined || ben === undefined) throw new Error("expected two sessions");
    const sends = (frames: readonly CapturedFrame[]) =>
      frames
        .filter(({ dir, text }) => dir === "c>s" && /"send"/.test(text))
        .map(({ text }): Json => JSON.parse(text));
    const [toBen, toGroup, toOthers] = sends(ann.frames);
    for (const [client, request, result] of [
      [ann, toBen, { messageSeq: 1, reasonCode: 1, header: { redDot: true } }],
      [ben, sends(ben.frames)[0], { messageSeq: 2, reasonCode: 1 }],
      [ann, toGroup, { messageSeq: 0, header: { noPersist: true } }],
      [ann, toOthers, { messageSeq: 0, reasonCode: 3 }],
    ] as const)
      t.match((await client.client.exchange(request.id, request)).result, result);
    const send = (client_msg_no: string, payload: object, fields: object) =>
      captured.ok("/message/send", {
        client_msg_no,
        payload: base64(payload),
        ...fields,
      });
    const toPerson = { from_uid: "ann", ...wire(person("ben")) };
    const noFlags = { type: 1, content: "no flags" };
    await send("api-1", noFlags, { ...toPerson, expire: 60 });
    await send(
      "api-2",
      { type: 1, content: "system" },
      {
        ...{ ...wire(g1), from_uid: "____system" },
      },
    );
    await captured.ok("/event", {
      ...{ ...toPerson, client_msg_no: "st-1" },
      event: { type: "___TextMessageStart", data: "" },
    });
    await send(
      "api-3",
      { type: 99, cmd: "x", param: {} },
      {
        ...{ ...toPerson, header: { sync_once: 1, red_dot: 1 } },
      },
    );
    for (const participant of participants) await assertNotifications(t, participant, /^recv/);
  },
);

t.test("events are pushed in the same form as by WuKongIM 2.2.3", async (t) => {
  const captured = await startWorld(t);
  const names = ["easysdk-events-2.2.3", "easysdk-events-2.2.3-from"];
  const participants = await replay(t, captured, names);
  const content = '{"type":1,"content":""}';
  for (const [type, data, id] of [
    ["___TextMessageStart", content, "st-1-start"],
    ["___TextMessageContent", "wör", ""],
    ["___TextMessageContent", "ld", ""],
    ["___TextMessageEnd", "", ""],
    ["order.paid", '{"order":7}', "c-1"],
  ])
    await captured.ok("/event", {
      ...{ ...wire(person("ben")), from_uid: "ann", client_msg_no: "st-1" },
      event: { type, data, ...(id && { id }) },
    });
  for (const participant of participants)
    await assertNotifications(t, participant, /^(recv|event)/);
});

t.test(
  "a new token for a main device ends the device's session with the reason code of a kick",
  async (t) => {
    const [kim, lee] = ["easysdk-kick", "easysdk-kick-by-token"];
    const captured = await startWorld(t);
    const [first, second] = await replay(t, captured, [kim, lee], 1);
    const main = { flag: 1, level: 1 } as const;
    await captured.register("kim", { ...main, token: "other" });
    await captured.register("lee", { ...main, token: "other" });
    for (const participant of [first, second]) {
      t.match(await participant?.client.next("disconnect"), { reasonCode: 12 });
      t.match(await participant?.client.closed, { code: 4203 });
    }
  },
);

t.test(
  "a client that uses the extended form of JSON-RPC resumes after the last message it received",
  async (t) => {
    const [ann, ben] = [world.name("ann"), world.name("ben")];
    const channel = await world.newGroup([ann, ben]);
    const channelFields = { channelId: channel.id, channelType: channel.type };
    await world.register(ann, { level: 1 });
    const login = { protocol: 1, uid: ann, token: `token-${ann}` };
    const first = await openJsonRpc(t, { port: world.clientPort });
    const { sessionId } = await first.request("connect", login);
    await world.untilSubscribed();
    await world.send(ben, channel, "1");
    const { messageSeq: lastSeq, messageId: lastId } = await first.next("message");
    first.kill();
    for (const text of ["2", "3"]) await world.send(ben, channel, text);
    const resumed = await openJsonRpc(t, { port: world.clientPort });
    const result = await resumed.request("connect", {
      ...{ ...login, session: sessionId },
      resume: [{ ...channelFields, lastSeq, lastId }],
    });
    t.match(result.resume, [{ ...channelFields, status: "ok", headSeq: 3 }]);
    await resumed.waitFor(() => resumed.all("messages").at(-1)?.throughSeq === 3);
    t.same(
      resumed
        .all("messages")
        .flatMap(({ messages }) => messages)
        .map(({ messageSeq }: Json) => messageSeq),
      [2, 3],
      "each missed message is pushed once",
    );
    t.same(resumed.all("message"), [], "no missed message is pushed as a live message");
  },
);

/** Objects that `JSON.parse` and `JSON.stringify` would change. */
const OBJECT_TEXTS = [
  '{"type":1,"id":1234567890123456789,"big":1e400,"cut":0.1234567890123456789012,"one":1.0,"zero":-0}',
  '{ "type" : 1 ,\t"2":0,"1":0,\r\n"2":"twice" }',
  '{"type":2,"\\u0074ype":1,"half":"\\ud83d","slash":"\\/","é":"\\u00e9","text":"}]{\\"payload\\":"}',
  '{"type":1,"__proto__":{"a":[[],{},[{"b":"\\\\"}]]},"content":"漢😀"}',
];

// Covers [decisions: A payload's text]
for (const form of ["extended", "WuKongIM's"])
  t.test(
    `an object payload sent in the ${form} form of JSON-RPC keeps its bytes, live, in history and over HTTP`,
    async (t) => {
      const [ann, ben] = [world.name("ann"), world.name("ben")];
      const channel = await world.newGroup([ann, ben]);
      const fields = `"channelId":"${channel.id}","channelType":2`;
      await world.register(ann);
      const reader = await world.join(t, ben);
      const client = await openJsonRpc(t, { port: world.clientPort });
      const login = { uid: ann, token: `token-${ann}`, deviceId: "d" };
      await client.request("connect", { ...login, ...(form === "extended" && { protocol: 1 }) });
      for (const [at, text] of OBJECT_TEXTS.entries()) {
        const params = `{"payload":{"type":3},${fields}, "payload" :\n${text} ,"clientMsgNo":"${at}"}`;
        const request = `{"params":{"payload":"other"},"id":"${at}","method":"send","params": ${params}}`;
        const { result } = await client.exchange(`${at}`, request);
        t.equal(result?.messageSeq, at + 1, text);
      }
      await reader.ping();
      const texts = (list: readonly { payload: Uint8Array | string }[]) =>
        list.map(({ payload }) =>
          Buffer.from(
            payload as string,
            typeof payload === "string" ? "base64" : undefined,
          ).toString(),
        );
      t.same(texts(reader.messages), OBJECT_TEXTS, "live");
      t.same(texts((await reader.history(channel)).messages), OBJECT_TEXTS, "in history");
      const query = `channel_id=${channel.id}&channel_type=2&limit=10`;
      const { body } = await world.call(`/channel/messages?${query}`);
      t.same(texts(body.messages), OBJECT_TEXTS, "over HTTP");
    },
  );

/** Connects a member of a new group with the extended form. */
async function connectMember(t: Test) {
  const [ann, ben] = [world.name("ann"), world.name("ben")];
  const channel = await world.newGroup([ann, ben]);
  await world.register(ann);
  const client = await openJsonRpc(t, { port: world.clientPort });
  await client.request("connect", { uid: ann, token: `token-${ann}`, protocol: 1 });
  return { uid: ann, channel, client };
}

t.test("an object payload that is nested too deeply or is too large is refused", async (t) => {
  const { channel, client } = await connectMember(t);
  const fields = `"channelId":"${channel.id}","channelType":2`;
  const send = async (payload: string) => {
    const request = `{"id":"p","method":"send","params":{${fields},"payload":${payload}}}`;
    const { result, error } = await client.exchange("p", request);
    return result === undefined ? error.data.name : "sent";
  };
  const nested = (levels: number) => `${"[".repeat(levels)}${"]".repeat(levels)}`;
  const sized = (bytes: number) => `{"type":1${" ".repeat(bytes - 10)}}`;
  t.equal(await send(`{"type":1,"a":${nested(99)}}`), "sent");
  t.equal(await send(`{"type":1,"a":${nested(100)}}`), "bad_request");
  t.equal(await send(`{"type":1,"a":${nested(100)},"a":1}`), "bad_request");
  t.equal(await send(sized(65_536)), "sent");
  t.equal(await send(sized(65_537)), "too_large");
  t.equal(await send("[1]"), "bad_request");
  t.equal(await send('{"type":1.5}'), "bad_payload");
});

const REFUSED = /^bad_(request|id)$/;

const refusal = (request: Promise<Json>): Promise<string> =>
  request.then(
    () => "accepted",
    (error) => error.data.name,
  );

t.test(
  "a string with a lone surrogate is refused over JSON-RPC and HTTP, and U+FFFD is accepted",
  async (t) => {
    const { uid: ann, channel, client } = await connectMember(t);
    const target = { channelId: channel.id, channelType: 2 };
    const message = { ...target, payload: { type: 1 } };
    for (const half of ["a \ud83d", "a \ud83c", "\udc00 a"]) {
      const requests: [string, Json][] = [
        ["send", { ...message, clientMsgNo: half }],
        ["send", { ...message, tagKey: half }],
        ["send", { ...message, streamNo: half }],
        ["send", { ...message, channelId: half }],
        ["stream", { ...target, clientMsgNo: half }],
        ["cancel", { ...target, clientMsgNo: half }],
        ["history", { ...target, channelId: half, limit: 1 }],
        ["presence", { uids: [half] }],
        ["watch", { uids: [half] }],
      ];
      for (const [method, params] of requests)
        t.match(await refusal(client.request(method, params)), REFUSED, method);
      for (const other of [{ uid: half }, { token: half }, { deviceId: half }]) {
        const login = { uid: ann, token: "t", protocol: 1, ...other };
        const stranger = await openJsonRpc(t, { port: world.clientPort });
        t.match(await refusal(stranger.request("connect", login)), REFUSED, "connect");
      }
      const event = { type: "order", data: "" };
      const bodies: [string, object][] = [
        ["/event", { event: { ...event, id: half } }],
        ["/event", { event: { ...event, data: half } }],
        ["/event", { event: { ...event, type: half } }],
        ["/event", { event, client_msg_no: half }],
        ["/user/token", { uid: "u", device_flag: 1, token: half }],
        ["/manager/login", { username: half, password: "p" }],
        ["/manager/login", { username: "u", password: half }],
      ];
      for (const [path, body] of bodies) {
        const common = { from_uid: ann, client_msg_no: "n", ...wire(channel) };
        t.equal((await world.call(path, { ...common, ...body })).status, 400, path);
      }
    }
    const sent = await client.request("send", { ...message, clientMsgNo: "a \ufffd" });
    t.equal(sent.messageSeq, 1);
  },
);

t.test("the methods of the extended form do not exist in WuKongIM's form", async (t) => {
  const { uid, channel, client: extended } = await connectMember(t);
  const target = { channelId: channel.id, channelType: 2 };
  const payload = { type: 1 };
  const { messageSeq } = await extended.request("send", { ...target, payload });
  const methods: Readonly<Record<string, Json>> = {
    history: { ...target, limit: 1 },
    conversations: { limit: 1 },
    conversation: { ...target, change: "read", seq: messageSeq },
    presence: { uids: [uid] },
    watch: { uids: [uid] },
    stream: { ...target, clientMsgNo: "s" },
    cancel: { ...target, clientMsgNo: "s" },
    commandack: { inboxSeqs: [1] },
  };
  const client = await openJsonRpc(t, { port: world.clientPort });
  await client.request("connect", { uid, token: `token-${uid}`, deviceId: "d" });
  for (const [method, params] of Object.entries(methods)) {
    const codeOf = async (of: JsonRpcClient) => {
      of.raw(JSON.stringify({ method, params, id: method }));
      if (of === client)
        await of.request("ping"); // the refusal arrives before the response to the ping
      else await of.waitFor(({ texts }) => texts.some((text) => JSON.parse(text).id === method));
      const response = of.texts.find((text) => JSON.parse(text).id === method);
      return response && JSON.parse(response).error?.code;
    };
    t.equal(await codeOf(client), -32601, `${method} is refused`);
    t.not(await codeOf(extended), -32601, `${method} exists in the extended form`);
  }
  const unread = await extended.request("history", { ...target, limit: 10, tagKey: "t" });
  t.equal(unread.messages.length, 1);
});

/** Texts that `Buffer.from` decodes although they are not the canonical base64 of a payload. */
const NOT_CANONICAL = [
  "eyJ0eXBlIjoxfQ",
  "eyJ0eXBlIjoxfQ=",
  "eyJ0eXBlIjoxfR==",
  "eyJ0eXBlIjoxfQ==\n",
  " eyJ0eXBlIjoxfQ==",
  "eyJ0eXBl IjoxfQ==",
  "eyJ0eXBlIjoxfQ====",
  "eyJ0eXBlIjoxfQ==eyJ0",
  "eyJ0eXBlIjoxLCJhIjoi4oKs77-_In0=",
  "eyJ0eXBl*IjoxfQ==",
];

t.test(
  "a payload in base64 must be canonical in both forms of JSON-RPC and over HTTP",
  async (t) => {
    const { uid, channel, client: extended } = await connectMember(t);
    const client = await openJsonRpc(t, { port: world.clientPort });
    await client.request("connect", { uid, token: `token-${uid}`, deviceId: "d" });
    const target = { channelId: channel.id, channelType: 2 };
    const body = { from_uid: uid, channel_id: channel.id, channel_type: 2 };
    for (const payload of NOT_CANONICAL) {
      const text = JSON.stringify(payload);
      for (const form of [client, extended])
        t.equal(await refusal(form.request("send", { ...target, payload })), "bad_request", text);
      const reply = await world.call("/message/send", { ...body, payload });
      t.match(reply, { status: 400 }, `HTTP ${text}`);
    }
    const { messages } = await extended.request("history", { ...target, limit: 10 });
    t.same(messages, [], "nothing is stored");
  },
);

t.test("the size limit of a payload counts bytes of UTF-8, not characters", async (t) => {
  const { channel, client } = await connectMember(t);
  const target = { channelId: channel.id, channelType: 2 };
  const MAX = 65_536;
  const textOf = (letter: string, bytes: number) => {
    const around = '{"type":1,"content":""}';
    const count = Math.floor((bytes - around.length) / Buffer.byteLength(letter));
    const text = `{"type":1,"content":"${letter.repeat(count)}"}`;
    return text + " ".repeat(bytes - Buffer.byteLength(text));
  };
  const fields = `"channelId":"${channel.id}","channelType":2`;
  const sendObject = async (text: string) => {
    const request = `{"id":"o","method":"send","params":{${fields},"payload":${text.trim()}}}`;
    const { error } = await client.exchange("o", request);
    return error?.data.name ?? "accepted";
  };
  const sendBase64 = (text: string) =>
    refusal(client.request("send", { ...target, payload: Buffer.from(text).toString("base64") }));
  for (const letter of ["x", "é", "漢", "😀"]) {
    t.equal(await sendObject(textOf(letter, MAX - 4)), "accepted", letter);
    t.equal(await sendObject(textOf(letter, MAX + 8)), "too_large", letter);
    t.equal(await sendBase64(textOf(letter, MAX)), "accepted", letter);
    t.equal(await sendBase64(textOf(letter, MAX + 1)), "too_large", letter);
  }
});
