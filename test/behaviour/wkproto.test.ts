// WKProto on a real broker, as WuKongIM's clients use it: the behaviour of each protocol version,
// refused packets, and captured sessions that are replayed.

import { createCipheriv } from "node:crypto";
import { readFileSync } from "node:fs";
import { t } from "../support/suite.ts";
import {
  closeCodeOf,
  connectWkproto,
  openWkproto,
  WKPROTO_LISTENER,
  type WkprotoClient,
  type WkprotoOptions,
  wkprotoPortOf,
} from "../support/wkproto-client.ts";
import type { Fields } from "../support/wkproto-packets.ts";
import { group, person, startWorld, untilReceived, type World, wire } from "./world.ts";

const world = await startWorld(t, WKPROTO_LISTENER);

const VERSIONS = [1, 2, 3, 4, 5];
const SUCCESS = 1;
const REFUSED = 2;
const UNREADABLE = 9;
const KICKED = 12;
const NO_PERSIST = 1;
const RED_DOT = 2;
const SYNC_ONCE = 4;

const text = (content: string) => ({ type: 1, content });

/** Registers the device and opens a socket without sending CONNECT. */
async function open(
  uid: string,
  options: Partial<WkprotoOptions> & { readonly level?: 0 | 1 } = {},
  target: World = world,
): Promise<WkprotoClient> {
  const { level = 0, ...clientOptions } = options;
  await target.register(uid, { flag: 1, level });
  return openWkproto(t, { port: wkprotoPortOf(target), uid, ...clientOptions });
}

async function join(
  uid: string,
  options: Parameters<typeof open>[1] = {},
  target: World = world,
): Promise<WkprotoClient> {
  const client = await open(uid, options, target);
  t.match(await client.connect(), { reasonCode: SUCCESS }, `${uid} is connected`);
  await target.untilSubscribed();
  return client;
}

for (const version of VERSIONS)
  t.test(
    `clients of WKProto version ${version} and of the native protocol can send to each other`,
    async (t) => {
      const [wk, nat] = [world.name("wk"), world.name("nat")];
      const channel = await world.newGroup([wk, nat]);
      const native = await world.join(t, nat);
      const client = await join(wk, { version });
      const [connack] = client.received;
      t.equal(connack?.flags, version >= 4 ? 1 : 0, "the CONNACK has the flag of its version");
      t.equal(
        connack?.fields.serverVersion,
        version >= 4 ? version : undefined,
        "the CONNACK has the server version from version 4 on",
      );
      t.match(String(connack?.fields.salt), /^[0-9a-zA-Z]{16}$/, "the salt has 16 characters");

      const ack = await client.send(person(nat), text("to a person"));
      t.match(
        ack,
        { reasonCode: SUCCESS, messageSeq: 1 },
        "the message is the first of its channel",
      );
      t.match(await client.send(channel, text("to the group")), {
        ...{ reasonCode: SUCCESS, messageSeq: 1 },
      });
      t.same(
        (await untilReceived(native, 2)).toSorted(),
        ["to a person", "to the group"],
        "the native client gets both messages",
      );

      await world.send(nat, person(wk), "from a person");
      const fromPerson = await client.text("from a person");
      t.match(fromPerson.fields, {
        ...{ channelId: nat, channelType: 1, fromUid: nat, messageSeq: 2 },
        ...{ setting: 0 },
      });
      t.equal(
        fromPerson.fields.expire,
        version >= 3 ? 0 : undefined,
        "expire is sent from version 3 on",
      );
      await world.send(nat, channel, "你好 🐒", { header: { red_dot: 1 } });
      const fromGroup = await client.text("你好 🐒");
      t.match(fromGroup.fields, {
        ...{
          channelId: channel.id,
          channelType: 2,
          fromUid: nat,
          messageSeq: 2,
        },
      });
      t.equal(fromGroup.flags, RED_DOT, "the message has a red dot");
      client.recvack(fromGroup);
      await client.ping();
      t.equal(client.closeCode, undefined, "the connection stays open");
    },
  );

t.test(
  "a client with a version above 5 is served as version 5, and a client with version 0 gets a CONNACK without a server version",
  async (t) => {
    const newer = await open(world.name("wk"), { version: 9 });
    t.match(await newer.connect(), { reasonCode: SUCCESS, serverVersion: 5 });
    const oldest = await open(world.name("wk"), { version: 0 });
    const connack = await oldest.connect();
    t.match(connack, { reasonCode: SUCCESS });
    t.equal(connack.serverVersion, undefined, "the CONNACK has no server version");
  },
);

t.test(
  "a refused login gets a CONNACK with a reason code, and its connection is closed",
  async (t) => {
    const lowOrder = Buffer.alloc(32).toString("base64");
    const cases: Readonly<Record<string, Partial<WkprotoOptions>>> = {
      "a wrong token": { token: "wrong" },
      "no token": { token: "" },
      "no key": { clientKey: "" },
      "a key that is not base64": { clientKey: "!".repeat(44) },
      "a key that is too short": { clientKey: "AAAA" },
      "a key of low order": { clientKey: lowOrder },
      "a uid with @": { uid: "a@b" },
      "an empty uid": { uid: "" },
      "the system's uid": { uid: "____system" },
      "an unknown device flag": { deviceFlag: 99 },
    };
    for (const [name, options] of Object.entries(cases))
      for (const version of [2, 5]) {
        const uid = world.name("wk");
        await world.register(uid, { flag: 1 });
        const port = wkprotoPortOf(world);
        const client = await openWkproto(t, { port, uid, version, ...options });
        t.match(
          await client.connect(),
          { reasonCode: REFUSED, serverKey: "", salt: "" },
          `${name} is refused in version ${version}`,
        );
        const forbidding = [4201, 4205].map(closeCodeOf);
        t.ok(forbidding.includes(await client.closed()), "the close code forbids a reconnect");
        t.equal(client.received.length, 1, "only the CONNACK is sent");
      }
  },
);

t.test(
  "packets can be split across WebSocket messages, and several can share one WebSocket message",
  async (t) => {
    const uid = world.name("wk");
    const client = await join(uid);
    const sends = ["first", "second", "third"].map((content, i) =>
      client.encode("SEND", {
        ...{ clientSeq: 101 + i, clientMsgNo: `${uid}-${content}` },
        ...{ channelId: "bob", channelType: 1 },
        plain: JSON.stringify(text(content)),
      }),
    );
    const bytes = Buffer.concat([...sends, client.encode("PING")]);
    client.writeBytes(bytes.subarray(0, 50));
    client.writeBytes(bytes.subarray(50, 51));
    client.writeBytes(bytes.subarray(51));
    await client.next("PONG");
    const seqs = [];
    for (const seq of [101, 102, 103])
      seqs.push((await client.next("SENDACK", ({ clientSeq }) => clientSeq === seq)).messageSeq);
    t.same(seqs, [1, 2, 3], "the messages are stored in the order of their packets");
  },
);

t.test("a refused SEND is answered by a SENDACK with the flags of the SEND", async (t) => {
  const client = await join(world.name("wk"));
  const flags = 11; // includes the dup flag, which is echoed as well
  const cases: readonly (readonly [string, Fields, number])[] = [
    ["a wrong msgKey", { msgKey: "0".repeat(32) }, UNREADABLE],
    ["a payload that is not base64", { payload: "!!!not base64" }, UNREADABLE],
    ["five bytes of junk", { payload: "AAECAwQ=" }, UNREADABLE],
    ["a block of junk", { payload: `${"A".repeat(22)}==` }, UNREADABLE],
    ["a payload that is not JSON", { plain: "hello" }, UNREADABLE],
    ["a bad channel id", { channelId: "a@b" }, 16],
  ];
  for (const [name, fields, reasonCode] of cases) {
    const ack = await client.send(person("bob"), text("x"), {
      ...fields,
      flags,
    });
    t.match(ack, { reasonCode, messageSeq: 0 }, `${name} is refused`);
  }
  const acks = client.received.filter(({ packet }) => packet === "SENDACK");
  t.ok(
    acks.every((ack) => ack.flags === flags),
    "each SENDACK echoes the flags",
  );
  const outside = await world.newGroup([]);
  t.match(
    await client.send(outside, text("x")),
    { reasonCode: 3 },
    "a send to a group without membership is refused",
  );
  t.match(await client.send(person("bob"), text("x")), { reasonCode: SUCCESS });
});

t.test("a kicked client gets DISCONNECT with reason 12 and is closed", async (t) => {
  const uid = world.name("wk");
  const older = await join(uid, { level: 1, deviceId: "first" });
  const next = await join(uid, { level: 1, deviceId: "second" });
  t.match(await older.next("DISCONNECT"), { reasonCode: KICKED });
  t.equal(await older.closed(), closeCodeOf(4200), "the close code is that of a kick");
  await world.ok("/user/device_quit", { uid, device_flag: 1 });
  t.match(await next.next("DISCONNECT"), { reasonCode: KICKED });
  t.equal(await next.closed(), closeCodeOf(4204), "the close code is that of a device quit");
});

t.test("a user's own message is pushed to the user's other device without a red dot", async (t) => {
  const [uid, peerUid] = [world.name("wk"), world.name("wk")];
  const channel = await world.newGroup([uid, peerUid]);
  const phone = await join(uid, { deviceId: "phone" });
  const web = await join(uid, { deviceId: "web" });
  const peer = await join(peerUid);
  for (const target of [channel, person(peerUid)]) {
    const content = `to ${target.id}`;
    await phone.send(target, text(content));
    const copy = await web.text(content);
    t.match(copy.fields, { channelId: target.id, fromUid: uid });
    t.equal(copy.flags, 0, "the user's own copy has no red dot");
    t.equal((await peer.text(content)).flags, RED_DOT, "the peer's copy has a red dot");
  }
  t.same(phone.texts, [], "the sending device gets no copy");
});

t.test(
  "a message from the system uid has an empty sender and the channel id ____system",
  async (t) => {
    const uid = world.name("wk");
    const client = await join(uid);
    await world.send("____system", person(uid), "notice");
    const { fields } = await client.text("notice");
    t.match(fields, { fromUid: "", channelId: "____system", channelType: 1 });
  },
);

t.test("a command that a client acknowledged with RECVACK is not pushed again", async (t) => {
  const uid = world.name("wk");
  const first = await join(uid, { deviceId: "first" });
  const header = { sync_once: 1 };
  await world.send("bob", person(uid), "do", { header });
  const command = await first.text("do");
  t.equal(command.flags & SYNC_ONCE, SYNC_ONCE, "the command has the sync_once flag");
  t.equal(command.fields.messageSeq, 1, "the messageSeq is the command's inbox seq");
  first.kill();
  await world.offline(uid);
  const second = await join(uid, { deviceId: "second" });
  second.recvack(await second.text("do"));
  await second.ping();
  second.kill();
  await world.offline(uid);
  await world.send("bob", person(uid), "next", { header });
  const third = await join(uid, { deviceId: "third" });
  await third.text("next");
  t.same(third.texts, ["next"], "the acknowledged command is not pushed again");
});

t.test(
  "a command that a client acknowledged without the syncOnce flag, as the first Flutter SDKs do, is not pushed again",
  async (t) => {
    const uid = world.name("wk");
    const first = await join(uid, { deviceId: "first" });
    await world.send("bob", person(uid), "do", { header: { sync_once: 1 } });
    const command = await first.text("do");
    first.recvack({ ...command, flags: 0 });
    await first.ping();
    await world.ok("/message/sync", { uid }); // reads the inbox after the acknowledgement
    first.kill();
    await world.offline(uid);
    const second = await join(uid, { deviceId: "second" });
    await second.ping();
    t.same(second.texts, []);
  },
);

// Covers [decisions: Event id]
for (const withIds of [true, false])
  t.test(
    `the start and the end of a stream have ${withIds ? "the producer's ids" : "the clientMsgNo as their id"}, live and for a client that joins late`,
    async (t) => {
      const names = [world.name("early"), world.name("late"), world.name("bot")];
      const [early = "", late = "", bot = ""] = names;
      const channel = await world.newGroup(names);
      const first = await join(early);
      // The ids in the request equal those that the server would assign.
      const types = ["___TextMessageStart", "___TextMessageContent", "___TextMessageEnd"];
      const post = (at: number) =>
        world.ok("/event", {
          ...{ ...wire(channel), from_uid: bot, client_msg_no: "s-1" },
          event: { type: types[at], data: `{"at":${at}}`, ...(withIds && { id: `${at}` }) },
        });
      await post(0);
      await post(1);
      await first.next("EVENT", ({ type }) => type === types[1]);
      const second = await join(late);
      await second.next("EVENT", ({ type }) => type === types[1]);
      await post(2);
      for (const client of [first, second]) {
        await client.next("EVENT", ({ type }) => type === types[2]);
        const events = client.received.filter(({ packet }) => packet === "EVENT");
        t.same(
          events.map(({ fields }) => fields.id),
          withIds ? ["0", "s-1", "2"] : ["s-1", "s-1", "s-1"],
        );
      }
    },
  );

t.test(
  "clients of WKProto version 5 receive events, and clients of version 4 do not",
  async (t) => {
    const channel = await world.newGroup(["v5", "v4", "bob"]);
    const v5 = await join("v5", { version: 5 });
    const v4 = await join("v4", { version: 4 });
    const event = (type: string, data: string, id = data) =>
      world.ok("/event", {
        ...{ ...wire(channel), from_uid: "bob", client_msg_no: "stream-1" },
        event: { type, data, id, timestamp: 1_700_000_000_000 },
      });
    await event("order.paid", '{"order":7}', "ev-1");
    t.match(await v5.next("EVENT"), {
      ...{ id: "ev-1", type: "order.paid", data: '{"order":7}' },
      timestamp: "1700000000000",
    });
    await event("___TextMessageStart", "{}");
    await event("___TextMessageContent", "wör");
    await event("___TextMessageContent", "ld");
    t.match(
      await v5.next("EVENT", ({ data }) => data === "ld"),
      { id: "stream-1", type: "___TextMessageContent" },
      "the event id is the clientMsgNo of the stream",
    );
    await event("___TextMessageEnd", "", "end");
    await v5.next("EVENT", ({ type }) => type === "___TextMessageEnd");
    await world.send("bob", channel, "after");
    await v4.text("after");
    await v4.ping();
    t.notOk(
      v4.received.some(({ packet }) => packet === "EVENT"),
      "a client of version 4 gets no event",
    );
  },
);

t.test(
  "the receipt bit and the topic of a message are delivered to clients of every version",
  async (t) => {
    const names = VERSIONS.map(() => world.name("wk"));
    const channel = await world.newGroup(names);
    const clients: WkprotoClient[] = [];
    for (const [i, version] of VERSIONS.entries())
      clients.push(await join(names[i] ?? "", { version }));
    const setting = 0x88;
    for (const sender of clients) {
      const content = `in version ${sender.version}`;
      const more = { setting, topic: "tp", expire: 60 };
      await sender.send(channel, text(content), more);
      for (const client of clients)
        if (client !== sender)
          t.match(
            (await client.text(content)).fields,
            { setting, topic: "tp" },
            `a message ${content} is delivered to version ${client.version}`,
          );
    }
  },
);

t.test("a message with the noPersist flag has seq 0", async (t) => {
  const uid = world.name("wk");
  const client = await join(uid);
  const peer = await join(world.name("wk"));
  const flags = NO_PERSIST | RED_DOT;
  const ack = await client.send(person(peer.uid), text("live"), { flags });
  t.match(ack, { reasonCode: SUCCESS, messageSeq: 0 });
  const live = await peer.text("live");
  t.equal(live.flags, flags, "the flags are kept");
  t.equal(live.fields.messageSeq, 0, "the seq is 0");
});

t.test("unexpected packets from a client are ignored", async (t) => {
  const client = await join(world.name("wk"));
  client.write("CONNECT", { version: 5, uid: "other", clientKey: "" });
  client.write("SUB", { channelId: "demo", channelType: 7, param: "{}" });
  client.writeBytes(Buffer.from([0x80]));
  client.writeBytes(Buffer.from("c003000000", "hex"));
  await client.ping();
  t.equal(client.closeCode, undefined, "the connection stays open");
  client.write("DISCONNECT", { reasonCode: 0, reason: "" });
  t.equal(await client.closed(), closeCodeOf(4206), "a DISCONNECT ends the connection");
});

t.test("a malformed packet is answered with reason 9 and ends the connection", async (t) => {
  const cases: Readonly<Record<string, string>> = {
    "type 0": "00",
    "type 13": "d001aa",
    "an endless varint": "30ffffffffff",
    "a length beyond the packet": "30ffffff7f",
    "an empty packet": "3000",
    "a truncated SEND": "32050000000001",
    "a short RECVACK": "600400000000",
    "a string that is not UTF-8": "320b00000000010002ffff000101",
  };
  for (const [name, hex] of Object.entries(cases)) {
    const client = await join(world.name("wk"));
    client.writeBytes(Buffer.from(hex, "hex"));
    t.equal(await client.closed(), closeCodeOf(4205), `${name} closes the connection`);
    t.match(
      await client.next("DISCONNECT"),
      { reasonCode: UNREADABLE },
      `${name} is answered with DISCONNECT`,
    );
  }
  const uid = world.name("wk");
  const early = await openWkproto(t, { port: wkprotoPortOf(world), uid });
  early.writeBytes(Buffer.from("1003050100", "hex"));
  t.match(
    await early.next("CONNACK"),
    { reasonCode: UNREADABLE },
    "a malformed CONNECT is answered with CONNACK",
  );
  t.equal(await early.closed(), closeCodeOf(4205), "a malformed CONNECT closes the connection");
});

// --- Captured sessions ---

interface CapturedSession {
  readonly name: string;
  readonly version: number;
  readonly frames: readonly {
    readonly dir: "c>s" | "s>c" | "closed";
    readonly packet: string;
    readonly flags: number;
    readonly fields: Fields;
  }[];
}

/**
 * Replays the packets of the client in each captured session and compares the responses. Ids, seqs
 * and keys are not compared, because they depend on other traffic of the captured server. Actions
 * of a backend on the sessions are tested above.
 */
t.test(
  "a replay of each captured WKProto session gets the captured responses, except for a refused login",
  async (t) => {
    const { sessions } = JSON.parse(
      readFileSync(new URL("../compat/wukongim/goldens/wkproto.json", import.meta.url), "utf8"),
    ) as { readonly sessions: readonly CapturedSession[] };
    await world.ok("/channel", {
      ...wire(group("g1")),
      subscribers: ["ann", "ben"],
    });
    await world.ok("/channel", { ...wire(group("g2")), subscribers: [] });
    for (const { name, version, frames } of sessions) {
      const clientFrames = frames.filter(({ dir }) => dir === "c>s");
      const [connect] = clientFrames;
      if (connect?.packet !== "CONNECT") throw new Error(`${name} has no CONNECT`);
      const { uid, token, deviceFlag } = connect.fields;
      await world.register(String(uid), {
        ...{ flag: Number(deviceFlag) as 0 | 1 | 2, token: `tok-${uid}` },
      });
      const client = await openWkproto(t, {
        ...{ port: wkprotoPortOf(world), uid: String(uid), token: String(token) },
        ...{ version, deviceFlag: Number(deviceFlag) },
        deviceId: `${name}-device`,
      });
      const connack = await client.connect();
      if (name === "v5-refused") {
        t.equal(connack.reasonCode, REFUSED, "a refused login is answered, unlike by WuKongIM");
        continue;
      }
      const expected = frames.filter(({ packet }) => /^(CONNACK|SENDACK|PONG)$/.test(packet));
      for (const { packet, flags, fields } of clientFrames) {
        if (packet === "PING") await client.ping();
        if (packet === "RECVACK") client.write(packet, fields, flags);
        if (packet !== "SEND") continue;
        client.write(packet, reencrypted(fields), flags);
        const { clientSeq } = fields;
        await client.next("SENDACK", (ack) => ack.clientSeq === clientSeq);
      }
      const responses = client.received.filter(({ packet }) =>
        /^(CONNACK|SENDACK|PONG)$/.test(packet),
      );
      t.same(
        responses.map(comparableFields),
        expected.map(comparableFields),
        `${name} gets the captured responses`,
      );
      client.kill();
    }
  },
);

/**
 * Removes the captured `msgKey`, so that the packet gets the right one for this connection. A key
 * that was wrong on purpose is replaced by another wrong key.
 */
function reencrypted({ msgKey, ...fields }: Fields): Fields {
  return String(fields.clientMsgNo).startsWith("bad-") && fields.plain
    ? { ...fields, msgKey: "0".repeat(32) }
    : fields;
}

function comparableFields({
  packet,
  flags,
  fields,
}: {
  readonly packet: string;
  readonly flags: number;
  readonly fields: Fields;
}): unknown {
  const { serverVersion, reasonCode, clientSeq } = fields;
  const hasSeq = fields.messageSeq !== undefined && fields.messageSeq !== 0;
  const shape = Object.keys(fields).toSorted();
  return { packet, flags, serverVersion, reasonCode, clientSeq, hasSeq, shape };
}

t.test("packets are sent as plain text if WKProto encryption is disabled", async (t) => {
  const plain = await startWorld(t, {
    ...WKPROTO_LISTENER,
    JINDOU_PROTOCOL_WKPROTO_ENCRYPTION: "false",
  });
  const uids = ["a", "b", "c"];
  const channel = await plain.newGroup(uids);
  const clients = [];
  for (const [i, uid] of uids.entries())
    clients.push(await join(uid, { version: 3 + i, clientKey: "" }, plain));
  const [first, ...receivers] = clients;
  t.match(first?.received[0]?.fields, { serverKey: "", salt: "" }, "the CONNACK has no keys");
  t.match(await first?.send(channel, text("plain")), { reasonCode: SUCCESS });
  for (const client of receivers) {
    const { fields } = await client.text("plain");
    t.match(fields, { msgKey: "", fromUid: "a" }, `${client.uid} gets a plain message`);
  }
  t.equal(
    (await connectWkproto(t, { port: wkprotoPortOf(plain), uid: "a" })).keys,
    undefined,
    "the client has no key",
  );
});

t.test("a payload whose padding is not that of PKCS #7 is refused", async (t) => {
  const client = await join(world.name("wk"));
  const { keys } = client;
  if (keys === undefined) throw new Error("the session is not encrypted");
  const content = '{"type":1,"content":"padded"}   '; // two blocks
  const paddings: readonly (readonly [string, readonly number[], number])[] = [
    ["16 bytes", Array(16).fill(16), SUCCESS],
    ["32 bytes", Array(32).fill(32), UNREADABLE],
    ["48 bytes", Array(48).fill(48), UNREADABLE],
    ["17 bytes that end a block", [...Array(15).fill(32), ...Array(17).fill(17)], UNREADABLE],
    ["0 bytes", Array(16).fill(0), UNREADABLE],
    ["bytes that differ", [...Array(15).fill(1), 16], UNREADABLE],
    ["one byte that differs", [...Array(11).fill(32), 4, 5, 5, 5, 5], UNREADABLE],
    ["more bytes than a block has", [...Array(15).fill(255), 255], UNREADABLE],
    ["no padding", [], UNREADABLE],
  ];
  for (const [name, padding, reasonCode] of paddings) {
    const cipher = createCipheriv("aes-128-cbc", keys.aesKey, keys.iv).setAutoPadding(false);
    const plain = Buffer.concat([Buffer.from(content), Buffer.from(padding)]);
    const payload = Buffer.concat([cipher.update(plain), cipher.final()]).toString("base64");
    t.match(await client.send(person("bob"), "", { payload }), { reasonCode }, name);
  }
});
