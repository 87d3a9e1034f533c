// Messages from the send to the receiver's socket: the response, the fields that reach the
// receiver, the devices that receive a message, and the order.

import { textPayload } from "../support/broker.ts";
import { textOf } from "../support/native-session.ts";
import { t } from "../support/suite.ts";
import {
  group,
  person,
  range,
  receivedTexts,
  seqs,
  startWorld,
  untilReceived,
  wire,
} from "./world.ts";

const world = await startWorld(t);
const SEND = "/message/send";

// Covers [spec: POST /message/send 200; spec: message_id; spec: message_seq; spec: client_msg_no]
// Covers [decisions: /message/send]
t.test(
  "POST /message/send returns message_id, message_seq and the client_msg_no of the request",
  async (t) => {
    const channel = person(world.name("bob"));
    const options = { client_msg_no: "n-1" };
    const response = await world.send("alice", channel, "hello", options);
    t.equal(response.status, 200);
    const { message_id, ...fields } = response.body;
    t.same(fields, { message_seq: 1, client_msg_no: "n-1" });
    t.ok(Number.isSafeInteger(message_id) && message_id > 0);
    const second = await world.send("alice", channel, "hello");
    t.equal(second.body.message_seq, 2);
  },
);

// Covers [spec: client_msg_no; decisions: /message/send]
t.test(
  "a message without client_msg_no gets a unique client_msg_no, which is the same in the response, pushes, history and conversations",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const channel = await world.newGroup([alice, bob]);
    const clients = [
      await world.join(t, alice),
      await world.join(t, bob),
      await world.join(t, bob, { flag: 2 }),
    ];
    await world.untilSubscribed();
    const unstored = { header: { no_persist: 1 } };
    const sent: string[] = [];
    for (const options of [{}, unstored, {}]) {
      const { body } = await world.send(alice, channel, "x", options);
      sent.push(body.client_msg_no);
    }
    const [phone] = clients;
    if (phone === undefined) throw new Error("the clients are missing");
    sent.push((await phone.send(channel, "y")).clientMsgNo);
    t.equal(new Set(sent).size, 4, "each client_msg_no is unique");
    for (const [at, client] of clients.entries()) {
      const count = at === 0 ? 3 : 4; // the sending session is not pushed its message
      await untilReceived(client, count);
      const pushed = client.messages.map((message) => message.clientMsgNo);
      t.same(pushed, sent.slice(0, count));
    }
    const stored = sent.filter((_, at) => at !== 1);
    const later = await world.connect(t, bob, {
      resume: [{ channel, lastSeq: 0 }],
    });
    await untilReceived(later, 3);
    const { messages } = await later.history(channel);
    for (const list of [later.messages, messages])
      t.same(
        list.map((message) => message.clientMsgNo),
        stored,
      );
    const body = { uid: bob, msg_count: 10 };
    const [conversation] = await world.ok("/conversation/sync", body);
    t.equal(conversation.last_client_msg_no, stored.at(-1));
    t.same(
      conversation.recents.map(
        (message: { readonly client_msg_no: string }) => message.client_msg_no,
      ),
      [...stored].reverse(),
    );
  },
);

// Covers [spec: client_msg_no]
t.test(
  "a command without client_msg_no gets a unique client_msg_no, which is the same in the response, a push and the inbox",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const client = await world.join(t, bob);
    const header = { sync_once: 1 };
    const sent: string[] = [];
    for (const text of ["first", "second"]) {
      const { body } = await world.send(alice, person(bob), text, { header });
      sent.push(body.client_msg_no);
    }
    t.equal(new Set(sent).size, 2);
    const later = await world.join(t, bob, { flag: 2 });
    for (const session of [client, later]) {
      await session.waitFor(() => session.commands.length >= 2, "two commands");
      t.same(
        session.commands.map(({ message }) => message.clientMsgNo),
        sent,
      );
    }
  },
);

// Covers [decisions: message_id]
t.test(
  "message ids are unique and increase across channels, across HTTP and sockets, and across a restart",
  async (t) => {
    const before = await startWorld(t);
    const ids: number[] = [];
    const post = async (source: typeof world, receiver: string) => {
      const { body } = await source.send("alice", person(receiver), "x");
      ids.push(body.message_id);
    };
    await post(before, "bob");
    const client = await before.join(t, "carol");
    ids.push((await client.send(person("bob"), "x")).messageId);
    await post(before, "dave");
    await before.close();
    await post(await startWorld(t, {}, before.dataPath), "bob");
    t.same(
      ids,
      [...new Set(ids)].sort((a, b) => a - b),
    );
  },
);

// Covers [spec: POST /message/send 400]
t.test(
  "POST /message/send responds with 400 to a missing or invalid field and stores nothing",
  async (t) => {
    const bob = world.name("bob");
    const valid = {
      from_uid: "alice",
      ...wire(person(bob)),
      payload: textPayload("x"),
    };
    for (const change of [
      { payload: undefined },
      { from_uid: undefined },
      { channel_id: undefined },
      { channel_type: undefined },
      { channel_type: 3 },
      { payload: { type: 1 } },
      { header: { no_persist: 2 } },
      { header: { red_dot: "1" } },
      { header: 1 },
      { client_msg_no: "x".repeat(129) },
      { expire: -1 },
      { expire: 1.5 },
      { stream_no: 5 },
      { tag_key: "x".repeat(129) },
      { subscribers: "bob" },
    ])
      t.equal(
        await world.refusal(SEND, { ...valid, ...change }),
        "400 bad_request",
        `${JSON.stringify(change).slice(0, 80)} is refused`,
      );
    for (const change of [{ from_uid: "a@b" }, { channel_id: "a\u0007" }])
      t.equal(await world.refusal(SEND, { ...valid, ...change }), "400 bad_id");
    const { body } = await world.send("alice", person(bob), "first");
    t.equal(body.message_seq, 1);
  },
);

// Covers [spec: from_uid; spec: channel_id of a message; spec: payload]
t.test(
  "a personal message is pushed to every device of the receiver, with the sender's uid as channel id",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const phone = await world.join(t, bob);
    const laptop = await world.join(t, bob, { flag: 2 });
    const sender = await world.join(t, alice);
    const bytes = Buffer.from('{"type":1,"content":"héllo 👋"}');
    const receipt = await sender.send(person(bob), bytes);
    for (const client of [phone, laptop]) {
      const push = await client.nextPush();
      if (push.kind !== "message") throw new Error(push.kind);
      t.same(push.channel, person(alice));
      t.same(Buffer.from(push.message.payload), bytes, "the payload's bytes are unchanged");
      t.match(push.message, {
        messageId: receipt.messageId,
        messageSeq: receipt.messageSeq,
        clientMsgNo: receipt.clientMsgNo,
        fromUid: alice,
      });
      t.ok(Math.abs(push.message.timestampMs - Date.now()) < 60_000);
    }
  },
);

// Covers [feature: Sender's other devices]
t.test(
  "a message is pushed to the sender's other devices and not to the sending connection",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const channel = await world.newGroup([alice, bob]);
    const phone = await world.join(t, alice);
    const sibling = await world.connect(t, alice);
    const laptop = await world.join(t, alice, { flag: 2 });
    await phone.send(person(bob), "personal");
    await phone.send(channel, "group");
    for (const device of [sibling, laptop]) {
      // The order between channels is not defined, see docs/protocol/native.md.
      t.same([...(await untilReceived(device, 2))].sort(), ["group", "personal"]);
      const channels = device.pushesOf("message").map((push) => push.channel);
      const ids = new Set(channels.map(({ id }) => id));
      t.same(ids, new Set([bob, channel.id]), "the channels are named as the sender names them");
    }
    t.same(await receivedTexts(phone), []);
  },
);

// Covers [feature: Sender's other devices]
t.test("a message sent over HTTP is also pushed to a connected device of its sender", async (t) => {
  const [alice, bob] = [world.name("alice"), world.name("bob")];
  const client = await world.join(t, alice);
  const channel = await world.newGroup([alice, bob]);
  await world.send(alice, person(bob), "personal");
  await world.send(alice, channel, "group");
  t.same([...(await untilReceived(client, 2))].sort(), ["group", "personal"]);
});

// Covers [feature: Sender's other devices]
t.test(
  "a message to the sender's own uid is pushed once to each of the sender's other devices",
  async (t) => {
    const alice = world.name("alice");
    const phone = await world.join(t, alice);
    const laptop = await world.join(t, alice, { flag: 2 });
    await phone.send(person(alice), "note");
    t.same(await untilReceived(laptop, 1), ["note"]);
    t.same(await receivedTexts(phone), []);
  },
);

// Covers [spec: message_seq; decisions: Sequence]
t.test(
  "a channel's message seqs begin at 1 and have no gaps, and both users of a personal channel share one sequence",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const aliceClient = await world.join(t, alice);
    const bobClient = await world.join(t, bob);
    const channel = await world.newGroup([alice, bob]);
    const seq = async (receipt: ReturnType<typeof aliceClient.send>) => (await receipt).messageSeq;
    t.equal(await seq(aliceClient.send(person(bob), "1")), 1);
    t.equal(await seq(bobClient.send(person(alice), "2")), 2);
    t.equal(await seq(aliceClient.send(channel, "1")), 1);
    const { body } = await world.send(bob, person(alice), "3");
    t.equal(body.message_seq, 3);
    t.same(await untilReceived(aliceClient, 2), ["2", "3"]);
  },
);

// Covers [decisions: Sequence; feature: Order]
t.test(
  "messages from one connection are stored in the order of sending, even if many are in flight",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const channel = await world.newGroup([alice, bob]);
    const reader = await world.join(t, bob);
    const writer = await world.join(t, alice);
    const texts = range(1, 300).map(String);
    const acks = texts.map((text) => writer.send(channel, text));
    const stored = (await Promise.all(acks)).map((ack) => ack.messageSeq);
    t.same(stored, range(1, 300));
    t.same(await untilReceived(reader, 300), texts);
    t.same(seqs(reader.messages), range(1, 300));
  },
);

// Covers [decisions: Sequence]
t.test(
  "every member receives the messages from many senders in the order of their seqs",
  async (t) => {
    const senders = ["a", "b", "c"].map((name) => world.name(name));
    const watchers = [world.name("w"), world.name("w")];
    const channel = await world.newGroup([...senders, ...watchers]);
    const watching = await Promise.all(watchers.map((uid) => world.join(t, uid)));
    await Promise.all(
      senders.flatMap((uid) => range(1, 20).map((n) => world.send(uid, channel, `${uid} ${n}`))),
    );
    for (const client of watching) {
      await untilReceived(client, 60);
      t.same(seqs(client.messages), range(1, 60));
    }
  },
);

// Covers [spec: header no_persist; decisions: /message/send]
t.test(
  "a message with no_persist 1 is pushed to online members with message_seq 0 and not stored",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const channel = await world.newGroup([alice, bob]);
    const online = await world.join(t, bob);
    const options = { header: { no_persist: 1 } };
    for (const target of [channel, person(bob)]) {
      const { body } = await world.send(alice, target, "unstored", options);
      t.equal(body.message_seq, 0);
      const message = await online.nextMessage();
      t.match(message, { messageSeq: 0, header: { noPersist: true } });
      t.equal(message.messageId, body.message_id);
    }
    const sender = await world.join(t, alice);
    const ack = await sender.send(channel, "x", { noPersist: true });
    t.equal(ack.messageSeq, 0);
    const { messages, headSeq } = await online.history(channel);
    t.same([messages, headSeq], [[], 0]);
    const resume = [{ channel, lastSeq: 0 }];
    const late = await world.connect(t, bob, { resume });
    t.same(await receivedTexts(late), []);
  },
);

// Covers [spec: header red_dot; spec: stream_no; spec: expire; spec: tag_key; decisions: tag_key]
// Covers [decisions: stream_no]
t.test(
  "red_dot, stream_no, tag_key and expire of a message are pushed and kept in history",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const client = await world.join(t, bob);
    await world.send(alice, person(bob), "http", {
      header: { red_dot: 1 },
      stream_no: "stream-1",
      tag_key: "label",
      expire: 3600,
    });
    const expected = {
      header: { noPersist: false, redDot: true },
      streamNo: "stream-1",
      tagKey: "label",
      expireS: 3600,
    };
    const live = await client.nextMessage();
    t.match(live, expected);
    const sender = await world.join(t, alice);
    const options = { redDot: true, streamNo: "stream-1", tagKey: "label" };
    await sender.send(person(bob), "socket", { ...options, expireS: 3600 });
    t.match(await client.nextMessage(), expected);
    const { messages } = await client.history(person(alice));
    t.equal(messages.length, 2);
    for (const message of messages) t.match(message, expected);
    t.same(messages[0], live, "history equals what was pushed");
  },
);

// Covers [spec: header red_dot; spec: expire]
t.test(
  "a message without optional fields has no red dot, stream number, tag key or expiry",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const client = await world.join(t, bob);
    await world.send(alice, person(bob), "x", { stream_no: "", tag_key: "" });
    t.match(await client.nextMessage(), {
      header: { noPersist: false, redDot: false },
      streamNo: undefined,
      tagKey: undefined,
      expireS: 0,
    });
  },
);

// Covers [spec: subscribers of a message; decisions: subscribers on send]
t.test(
  "a command with subscribers is pushed only to the listed members of the channel",
  async (t) => {
    const [alice, bob, carol, eve] = [
      world.name("alice"),
      world.name("bob"),
      world.name("carol"),
      world.name("eve"),
    ];
    const channel = await world.newGroup([alice, bob, carol]);
    const clients = [
      await world.join(t, bob),
      await world.join(t, carol),
      await world.join(t, eve),
    ];
    const command = { type: 99, cmd: "memberUpdate", content: "command" };
    const { status } = await world.send(alice, channel, "", {
      payload: Buffer.from(JSON.stringify(command)).toString("base64"),
      subscribers: [bob, eve],
    });
    t.equal(status, 200);
    const texts = await Promise.all(
      clients.map(async (client) => {
        await client.ping();
        return client.commands.map(({ message }) => textOf(message));
      }),
    );
    t.same(texts, [["command"], [], []], "carol is not listed and eve is not a member");
  },
);

// Covers [spec: subscribers of a message; decisions: subscribers on send]
t.test("a message that has subscribers but is not a command is answered with 400", async (t) => {
  const bob = world.name("bob");
  const options = { subscribers: [bob] };
  const response = await world.send("alice", person(bob), "x", options);
  t.match(response, { status: 400, body: { code: "bad_request" } });
});

// Covers [feature: errors]
t.test(
  "a send to an unknown group, to an invalid id or with an invalid payload is refused, and the connection stays open",
  async (t) => {
    const alice = await world.join(t, world.name("alice"));
    const none = group(world.name("none"));
    await t.rejects(alice.send(none, "x"), { code: "not_subscriber" });
    await t.rejects(alice.send(person("a@b"), "x"), { code: "bad_id" });
    const raw = Buffer.from("no json");
    const code = { code: "bad_payload" };
    await t.rejects(alice.send(person("bob"), raw), code);
    t.equal((await alice.send(person("bob"), "x")).kind, "sendack");
  },
);
