// A client_msg_no that is used again. Over each of Jindou's own interfaces, a message with the same
// payload is a retry, and a message with a different payload is refused. WuKongIM's interfaces
// store a message with a different payload as a new message, as WuKongIM's servers do.

import type { Test } from "tap";
import type { ChannelRef } from "../../src/broker/model.ts";
import { openJsonRpc } from "../support/jsonrpc-client.ts";
import { jsonRpcWire } from "../support/jsonrpc-wire.ts";
import { type NativeClient, textOf } from "../support/native-session.ts";
import { t } from "../support/suite.ts";
import { nativeWire } from "../support/wire.ts";
import { connectWkproto } from "../support/wkproto-client.ts";
import {
  codeOf,
  group,
  person,
  startWorld,
  untilReceived,
  type World,
  wire as wireOf,
} from "./world.ts";

const REUSED = "client_msg_no_reused";
/** The text that `JSON.stringify` writes for this object. */
const HELLO = '{"type":1,"content":"hello"}';
/**
 * Payloads that differ from HELLO: the first three only in their bytes, the last one in its
 * content.
 */
const OTHERS = [
  '{"content":"hello","type":1}',
  '{"type":1, "content":"hello"}',
  '{"type":1,"content":"h\\u0065llo"}',
  '{"type":1,"content":"hellp"}',
];

const world = await startWorld(t);

interface Send {
  readonly to: ChannelRef;
  readonly no: string;
  readonly json: string;
  readonly noPersist?: boolean;
  readonly syncOnce?: boolean;
}

interface Sent {
  readonly id: number;
  readonly repeated: boolean;
}

/** Sends a message as one user. Returns the sent message, or the error code if it is refused. */
type Door = (send: Send) => Promise<Sent | string>;

const base64 = (text: string) => Buffer.from(text).toString("base64");

function httpDoor(target: World, uid: string): Door {
  return async ({ to, no, json, noPersist, syncOnce }) => {
    const { status, body } = await target.call("/message/send", {
      ...{ from_uid: uid, ...wireOf(to), client_msg_no: no, payload: base64(json) },
      header: { no_persist: noPersist ? 1 : 0, sync_once: syncOnce ? 1 : 0, red_dot: 1 },
    });
    if (status !== 200) return status === 409 ? body.code : `${status} ${body.code}`;
    return { id: body.message_id, repeated: body.repeated === 1 };
  };
}

function socketDoor(client: NativeClient): Door {
  return async ({ to, no, json, noPersist = false, syncOnce = false }) => {
    const options = { clientMsgNo: no, redDot: true, noPersist, syncOnce };
    try {
      const { messageId, repeated = false } = await client.send(to, Buffer.from(json), options);
      return { id: messageId, repeated };
    } catch (error) {
      return codeOf(Promise.reject(error));
    }
  };
}

/**
 * Returns a function that sends the payload as a JSON object. The server keeps the text of the
 * object.
 */
async function objectDoor(t: Test, uid: string): Promise<Door> {
  const client = await openJsonRpc(t, { port: world.clientPort });
  const token = `token-${uid}`;
  await client.request("connect", { protocol: 1, uid, token, deviceId: "object" });
  let id = 0;
  return async ({ to, no, json, noPersist = false, syncOnce = false }) => {
    const params = { channelId: to.id, channelType: to.type, clientMsgNo: no };
    const header = JSON.stringify({ noPersist, syncOnce, redDot: true });
    const fields = `${JSON.stringify(params).slice(0, -1)},"header":${header},"payload":${json}}`;
    const text = `{"jsonrpc":"2.0","id":"o${++id}","method":"send","params":${fields}}`;
    const { result, error } = await client.exchange(`o${id}`, text);
    if (error !== undefined) return error.data.name;
    return { id: result.messageId, repeated: result.repeated === true };
  };
}

/**
 * Returns the user's send function for each of Jindou's own interfaces, by name. All of them refuse
 * a reused client_msg_no with a different payload.
 */
async function doorsOf(t: Test, uid: string): Promise<ReadonlyMap<string, Door>> {
  await world.register(uid);
  const native = await world.connect(t, uid, { wire: nativeWire(uid), deviceId: "native" });
  const json = await world.connect(t, uid, { wire: jsonRpcWire(uid), deviceId: "json" });
  return new Map([
    ["HTTP", httpDoor(world, uid)],
    ["native", socketDoor(native)],
    ["JSON-RPC", socketDoor(json)],
    ["JSON-RPC with an object", await objectDoor(t, uid)],
  ]);
}

const KINDS = [
  ["personal", {}],
  ["group", {}],
  ["unstored", { noPersist: true }],
  ["command", { syncOnce: true }],
] as const;

// Covers [decisions: Same client_msg_no, another payload]
for (const [kind, flags] of KINDS)
  t.test(
    `a ${kind} message with a reused client_msg_no is a retry if its payload is the same, and is refused if its payload differs, over each of Jindou's own interfaces`,
    async (t) => {
      const [alice, bob] = [world.name("alice"), world.name("bob")];
      const doors = await doorsOf(t, alice);
      const reader = await world.join(t, bob);
      const to = kind === "group" ? await world.newGroup([alice, bob]) : person(bob);
      await world.untilSubscribed();
      for (const [first, send] of doors) {
        const message = { to, no: world.name("no"), json: HELLO, ...flags };
        const sent = await send(message);
        if (typeof sent === "string") throw new Error(`${first}: ${sent}`);
        t.equal(sent.repeated, false, `the first send over ${first} is not a retry`);
        for (const [second, sendAgain] of doors) {
          const name = `first over ${first}, then over ${second}`;
          for (const json of OTHERS)
            t.equal(await sendAgain({ ...message, json }), REUSED, `${json}, ${name}`);
          t.same(await sendAgain(message), { id: sent.id, repeated: true }, name);
        }
      }
      await reader.ping();
      const pushes = kind === "command" ? reader.commands : reader.messages;
      t.equal(pushes.length, doors.size, "each message is delivered once");
    },
  );

// Covers [decisions: Same client_msg_no, another payload]
t.test(
  "only one of several payloads that are sent at the same time with the same client_msg_no is stored",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const doors = [...(await doorsOf(t, alice)).values()];
    const reader = await world.join(t, bob);
    const outcomes = await Promise.all(
      [HELLO, ...OTHERS].flatMap((json, i) =>
        [0, 1].map((next) => doors[(i + next) % 4]?.({ to: person(bob), no: "n", json })),
      ),
    );
    const refusals = outcomes.filter((outcome) => outcome === REUSED);
    const sent = outcomes.filter((outcome) => typeof outcome === "object");
    t.equal(refusals.length, 8);
    t.same(
      new Set(sent.map(({ id }) => id)).size,
      1,
      "both sends of one payload return the same id",
    );
    t.equal(sent.filter(({ repeated }) => repeated).length, 1);
    t.equal((await untilReceived(reader, 1)).length, 1);
  },
);

// Covers [decisions: Same client_msg_no, another payload]
t.test(
  "a client_msg_no that is reused with a different payload is refused even after a restart",
  async (t) => {
    const before = await startWorld(t);
    const to = person("bob");
    const send = httpDoor(before, "alice");
    const messages = KINDS.map(([no, flags]) => ({ to, no, json: HELLO, ...flags }));
    const sent = await Promise.all(messages.map(send));
    await before.close();
    const after = await startWorld(t, {}, before.dataPath);
    const sendAgain = httpDoor(after, "alice");
    for (const [i, message] of messages.entries()) {
      for (const json of OTHERS) t.equal(await sendAgain({ ...message, json }), REUSED, message.no);
      const first = sent[i];
      t.same(await sendAgain(message), { ...(first as Sent), repeated: true }, message.no);
    }
  },
);

// Covers [decisions: Same client_msg_no, another payload]
t.test(
  "for WuKongIM's clients and backends, a message with a reused client_msg_no is a retry if its payload is the same, and a new message if its payload differs",
  async (t) => {
    const dialect = await startWorld(t, { JINDOU_API_DIALECT: "wukongim" });
    await dialect.register("alice");
    const port = dialect.clientPort;
    const login = { uid: "alice", token: "token-alice" };
    const binary = await connectWkproto(t, { port, ...login, deviceFlag: 0, deviceId: "wk" });
    const json = await openJsonRpc(t, { port });
    await json.request("connect", { ...login, deviceFlag: 0, deviceId: "json" });
    const content = (text: string) => ({ type: 1, content: text });
    const doors: Readonly<Record<string, (no: string, text: string) => Promise<object>>> = {
      async WKProto(no, text) {
        const ack = await binary.send(person("bob"), content(text), { clientMsgNo: no });
        return { ok: ack.reasonCode === 1, seq: Number(ack.messageSeq) };
      },
      async "JSON-RPC"(no, text) {
        const params = { channelId: "bob", channelType: 1, clientMsgNo: no };
        const result = await json.request("send", { ...params, payload: content(text) });
        return { ok: result.reasonCode === 1 && !("repeated" in result), seq: result.messageSeq };
      },
      async dialect(no, text) {
        const fields = { client_msg_no: no };
        const { status, body } = await dialect.send("alice", person("bob"), text, fields);
        return { ok: status === 200 && !("repeated" in body), seq: body.message_seq };
      },
    };
    let seq = 0;
    for (const [name, send] of Object.entries(doors)) {
      t.same(await send(name, "one"), { ok: true, seq: ++seq }, name);
      t.same(await send(name, "one"), { ok: true, seq }, `${name}: a retry`);
      t.same(await send(name, "two"), { ok: true, seq: ++seq }, `${name}: a different payload`);
      t.same(await send(name, "two"), { ok: true, seq }, `${name}: a retry of the later message`);
    }
    await dialect.register("bob");
    const reader = await dialect.connect(t, "bob");
    const { messages } = await reader.history(person("alice"));
    t.same(messages.map(textOf), ["one", "two", "one", "two", "one", "two"]);
  },
);

// Covers [decisions: Same client_msg_no, another payload]
t.test(
  "a message sent over WKProto, whose payload is encrypted, can be retried over HTTP",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    await world.register(alice);
    const login = { uid: alice, token: `token-${alice}` };
    const binary = await connectWkproto(t, { port: world.clientPort, ...login, deviceFlag: 0 });
    const options = { clientMsgNo: "n" };
    const ack = await binary.send(person(bob), { type: 1, content: "hello" }, options);
    const send = httpDoor(world, alice);
    const retry = await send({ to: person(bob), no: "n", json: HELLO });
    t.same(retry, { id: Number(ack.messageId), repeated: true });
    t.equal(await send({ to: person(bob), no: "n", json: '{"type":2}' }), REUSED);
    const again = await binary.send(person(bob), { type: 1, content: "hello" }, options);
    t.equal(again.messageId, ack.messageId);
  },
);

t.test(
  "a large group refuses a client_msg_no that is reused with a different payload",
  async (t) => {
    const alice = world.name("alice");
    const channel = group(world.name("large"));
    await world.ok("/channel", { ...wireOf(channel), large: 1, subscribers: [alice] });
    const send = httpDoor(world, alice);
    await send({ to: channel, no: "n", json: HELLO });
    t.equal(await send({ to: channel, no: "n", json: '{"type":2}' }), REUSED);
  },
);
