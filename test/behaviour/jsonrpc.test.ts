// JSON-RPC on a real broker: what WuKongIM's servers answered to real clients is answered here
// (wire/jsonrpc-goldens.json), except where that is a defect; and what the extended form adds.

import { readFileSync } from "node:fs";
import type { Test } from "tap";
import { type Json, type JsonRpcClient, openJsonRpc } from "../support/jsonrpc-client.ts";
import { t } from "../support/suite.ts";
import { base64 } from "./formats/jsonrpc.ts";
import { group, person, startWorld, type World, wire } from "./world.ts";

interface Golden {
  readonly dir: string;
  readonly text: string;
  readonly binary?: boolean;
}

const { sessions } = JSON.parse(
  readFileSync(new URL("../wire/jsonrpc-goldens.json", import.meta.url), "utf8"),
) as { sessions: readonly { name: string; frames: readonly Golden[] }[] };

const world = await startWorld(t);

/** What is answered here to sessions that a server of WuKongIM answers otherwise. */
const HERE: Readonly<Record<string, readonly string[]>> = {
  // the faulty request is answered, and the connection goes on
  "bare-after-connect-unknown-method": ["c1 1", "x1 error", "after ok"],
  "bare-after-connect-not-base64": ["c1 1", "x1 error", "after ok"],
  "bare-after-connect-number-id": ["c1 1", "- error", "after ok"],
  "bare-after-connect-not-json": ["c1 1", "- error", "after ok"],
  "bare-after-connect-subscribe": ["c1 1", "x1 error", "after ok"],
  "bare-after-connect-missing-params": ["c1 1", "x1 error", "after ok"],
  "bare-after-connect-wrong-jsonrpc": ["c1 1", "x1 error", "after ok"],
  // both forms of a payload are taken
  "bare-after-connect-object-payload": ["c1 1", "x1 1", "after ok"],
  // an acknowledgement with an id is one
  "bare-after-connect-recvack-with-id": ["c1 1", "after ok"],
  // a field that is missing is an error, not a channel without members
  "bare-after-connect-snake-case": ["c1 1", "x1 error", "after ok"],
  // refused with a reason, not in silence
  "bare-first-not-connect": ["x error"],
  "bare-connect-number-id": ["- error"],
  "bare-connect-bad-uid": ["c1 error"],
  "bare-connect-no-id": ["- error"],
  "bare-refused-token": ["c1 error"],
  "bare-connect-empty-token": ["c1 error"],
};
const CLOSES = /^bare-(first|connect|refused)/;

/** Of an answer: whose it is, and its reason. */
function gist(text: string): string {
  const { id = "-", result, error } = JSON.parse(text);
  return `${id} ${error ? "error" : (result?.reasonCode ?? "ok")}`;
}

const isAnswer = (text: string) => !("method" in JSON.parse(text));

for (const { name, frames } of sessions.filter(
  ({ name }) => name.startsWith("bare-") || name === "easysdk-ping",
))
  t.test(`${name} is answered as by WuKongIM, or better`, async (t) => {
    const expected =
      HERE[name] ?? frames.filter(({ dir }) => dir === "s>c").map(({ text }) => gist(text));
    const first: Json = JSON.parse(frames[0]?.text ?? "");
    const { uid = "", deviceFlag: flag = 0 } = first.params;
    if (/^\w+$/.test(uid)) await world.register(uid, { flag, token: `tok-${uid}` });
    const client = await openJsonRpc(t, { port: world.clientPort });
    const answers = () => client.texts.filter(isAnswer).map(gist);
    let sent = 0;
    for (const { text, binary } of frames.filter(({ dir }) => dir === "c>s")) {
      client.raw(binary ? Buffer.from(text) : text);
      sent += 1;
      if (sent === 1) await client.waitFor(() => answers().length > 0); // as those clients did
    }
    await client.waitFor(() => answers().length >= expected.length);
    t.same(answers().sort(), [...expected].sort());
    if (CLOSES.test(name)) t.match(await client.closed, { code: /^(4201|4205)$/ }, "and it ends");
  });

/** The sessions' clients, connected as they did. */
async function replay(t: Test, at: World, names: readonly string[], level: 0 | 1 = 0) {
  const clients = [];
  for (const name of names) {
    const frames = sessions.find((one) => one.name === name)?.frames ?? [];
    const connect: Json = JSON.parse(frames[0]?.text ?? "");
    const { uid, token, deviceFlag: flag } = connect.params;
    await at.register(uid, { flag, level, token });
    const client = await openJsonRpc(t, { port: at.clientPort });
    const { result } = await client.exchange(connect.id, connect);
    t.equal(result.reasonCode, 1, `${uid} is connected`);
    clients.push({ client, frames });
  }
  await at.following();
  return clients;
}

/** Left out are what each server chooses and what is said to differ. */
function comparable({ method, params }: Json): Json {
  if (method === "event") {
    const { id, type, data } = params;
    const isText = type.startsWith("___TextMessage"); // here the stream's name, always
    return { id: isText ? "st-1" : id, type, data };
  }
  const { messageId: _, timestamp: __, header = {}, ...rest } = params;
  const { noPersist, syncOnce } = header;
  const isOwnChoice = ["api-3", "st-1"].includes(rest.clientMsgNo); // redDot of copies and of streams, and a number of copies
  if (isOwnChoice) return { ...rest, messageSeq: 0, noPersist, syncOnce };
  return { ...rest, header };
}

const notificationsIn = (frames: readonly Golden[], methods: RegExp) =>
  frames
    .filter(({ dir }) => dir === "s>c")
    .map(({ text }): Json => JSON.parse(text))
    .filter(({ method, params }) => methods.test(`${method} ${params?.type}`))
    .map(comparable);

/** Each channel and each inbox has an order of its own. */
const inAnyOrder = (all: readonly Json[]) => all.map((one) => JSON.stringify(one)).sort();

async function hears(
  t: Test,
  { client, frames }: { client: JsonRpcClient; frames: readonly Golden[] },
  methods: RegExp,
): Promise<void> {
  const expected = notificationsIn(frames, methods);
  const heard = () => client.notifications.filter(({ method }) => methods.test(`${method} `));
  await client.waitFor(() => heard().length >= expected.length);
  t.same(inAnyOrder(heard().map(comparable)), inAnyOrder(expected));
}

t.test("two clients of WuKongIM talk as at its server", async (t) => {
  const at = await startWorld(t);
  const [g1, g2] = [group("g1"), group("g2")];
  await at.ok("/channel", { ...wire(g1), subscribers: ["ann", "ben"] });
  await at.ok("/channel", { ...wire(g2), subscribers: ["ben"] });
  const both = await replay(t, at, ["easysdk-sender", "easysdk-receiver"]);
  const [ann, ben] = both;
  if (ann === undefined || ben === undefined) throw new Error("two sessions");
  const sends = (frames: readonly Golden[]) =>
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
  const send = (client_msg_no: string, payload: object, more: object) =>
    at.ok("/message/send", {
      client_msg_no,
      payload: base64(payload),
      ...more,
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
  await at.ok("/event", {
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
  for (const one of both) await hears(t, one, /^recv/);
});

t.test("events come as from WuKongIM 2.2.3", async (t) => {
  const at = await startWorld(t);
  const names = ["easysdk-events-2.2.3", "easysdk-events-2.2.3-from"];
  const both = await replay(t, at, names);
  const content = '{"type":1,"content":""}';
  for (const [type, data, id] of [
    ["___TextMessageStart", content, "st-1-start"],
    ["___TextMessageContent", "wör", ""],
    ["___TextMessageContent", "ld", ""],
    ["___TextMessageEnd", "", ""],
    ["order.paid", '{"order":7}', "c-1"],
  ])
    await at.ok("/event", {
      ...{ ...wire(person("ben")), from_uid: "ann", client_msg_no: "st-1" },
      event: { type, data, ...(id && { id }) },
    });
  for (const one of both) await hears(t, one, /^(recv|event)/);
});

t.test("a new token of a main device is a kick, and a close", async (t) => {
  const [kim, lee] = ["easysdk-kick", "easysdk-kick-by-token"];
  const at = await startWorld(t);
  const [first, second] = await replay(t, at, [kim, lee], 1);
  const main = { flag: 1, level: 1 } as const;
  await at.register("kim", { ...main, token: "other" });
  await at.register("lee", { ...main, token: "other" });
  for (const one of [first, second]) {
    t.match(await one?.client.next("disconnect"), { reasonCode: 12 });
    t.match(await one?.client.closed, { code: 4203 });
  }
});

t.test("a client of the extended form resumes where it was", async (t) => {
  const [ann, ben] = [world.name("ann"), world.name("ben")];
  const channel = await world.newGroup([ann, ben]);
  const channelFields = { channelId: channel.id, channelType: channel.type };
  await world.register(ann, { level: 1 });
  const login = { protocol: 1, uid: ann, token: `token-${ann}` };
  const first = await openJsonRpc(t, { port: world.clientPort });
  const { sessionId } = await first.request("connect", login);
  await world.following();
  await world.send(ben, channel, "1");
  const { messageSeq: lastSeq, messageId: lastId } = await first.next("message");
  first.kill();
  for (const text of ["2", "3"]) await world.send(ben, channel, text);
  const again = await openJsonRpc(t, { port: world.clientPort });
  const welcome = await again.request("connect", {
    ...{ ...login, session: sessionId },
    resume: [{ ...channelFields, lastSeq, lastId }],
  });
  t.match(welcome.resume, [{ ...channelFields, status: "ok", headSeq: 3 }]);
  await again.waitFor(() => again.all("messages").at(-1)?.throughSeq === 3);
  t.same(
    again
      .all("messages")
      .flatMap(({ messages }) => messages)
      .map(({ messageSeq }: Json) => messageSeq),
    [2, 3],
    "each missed message once",
  );
  t.same(again.all("message"), [], "and none as a live one");
});
