// Messages from the send to the receiver's socket: what is answered, what is carried, who gets it,
// and in which order.

import { textPayload } from "../support/broker.ts";
import { textOf } from "../support/native-session.ts";
import { t } from "../support/suite.ts";
import { group, person, range, received, receives, seqs, startWorld, wire } from "./world.ts";

const world = await startWorld(t);
const SEND = "/message/send";

t.test(
  "POST /message/send: answers message_id, message_seq and the client_msg_no of the request [spec: POST /message/send 200; spec: message_id; spec: message_seq; spec: client_msg_no; decisions: /message/send]",
  async (t) => {
    const channel = person(world.name("bob"));
    const more = { client_msg_no: "n-1" };
    const answer = await world.send("alice", channel, "hello", more);
    t.equal(answer.status, 200);
    const { message_id, ...rest } = answer.body;
    t.same(rest, { message_seq: 1, client_msg_no: "n-1" });
    t.ok(Number.isSafeInteger(message_id) && message_id > 0);
    const second = await world.send("alice", channel, "hello");
    t.equal(second.body.message_seq, 2);
  },
);

t.test(
  "without a client_msg_no each message has one of its own: the same in the answer, at every receiver, in history, conversations and a resumed session [spec: client_msg_no; decisions: /message/send]",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const channel = await world.newGroup([alice, bob]);
    const clients = [
      await world.join(t, alice),
      await world.join(t, bob),
      await world.join(t, bob, { flag: 2 }),
    ];
    await world.following();
    const unstored = { header: { no_persist: 1 } };
    const sent: string[] = [];
    for (const more of [{}, unstored, {}]) {
      const { body } = await world.send(alice, channel, "x", more);
      sent.push(body.client_msg_no);
    }
    const [phone] = clients;
    if (phone === undefined) throw new Error("just joined");
    sent.push((await phone.send(channel, "y")).clientMsgNo);
    t.equal(new Set(sent).size, 4, "no two have one");
    for (const [at, client] of clients.entries()) {
      const count = at === 0 ? 3 : 4; // the sending session gets no push
      await receives(client, count);
      const pushed = client.messages.map((one) => one.clientMsgNo);
      t.same(pushed, sent.slice(0, count));
    }
    const stored = sent.filter((_, at) => at !== 1);
    const later = await world.connect(t, bob, {
      resume: [{ channel, lastSeq: 0 }],
    });
    await receives(later, 3);
    const { messages } = await later.history(channel);
    for (const found of [later.messages, messages])
      t.same(
        found.map((one) => one.clientMsgNo),
        stored,
      );
    const body = { uid: bob, msg_count: 10 };
    const [conversation] = await world.ok("/conversation/sync", body);
    t.equal(conversation.last_client_msg_no, stored.at(-1));
    t.same(
      conversation.recents.map((one: { readonly client_msg_no: string }) => one.client_msg_no),
      [...stored].reverse(),
    );
  },
);

t.test(
  "a command without a client_msg_no has one of its own: the same in the answer, at a session and in the inbox [spec: client_msg_no]",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const client = await world.join(t, bob);
    const header = { sync_once: 1 };
    const sent: string[] = [];
    for (const text of ["one", "two"]) {
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

t.test(
  "message_id: unique and growing across channels, ways in and a restart [decisions: message_id]",
  async (t) => {
    const before = await startWorld(t);
    const ids: number[] = [];
    const post = async (from: typeof world, to: string) => {
      const { body } = await from.send("alice", person(to), "x");
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

t.test(
  "POST /message/send: a missing or wrong field is 400 and stores nothing [spec: POST /message/send 400]",
  async (t) => {
    const bob = world.name("bob");
    const right = {
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
      { client_msg_no: "" },
      { client_msg_no: "x".repeat(129) },
      { expire: -1 },
      { expire: 1.5 },
      { stream_no: 5 },
      { tag_key: "x".repeat(129) },
      { subscribers: [] },
    ])
      t.equal(
        await world.refusal(SEND, { ...right, ...change }),
        "400 bad_request",
        JSON.stringify(change).slice(0, 80),
      );
    for (const change of [{ from_uid: "a@b" }, { channel_id: "a\u0007" }])
      t.equal(await world.refusal(SEND, { ...right, ...change }), "400 bad_id");
    const { body } = await world.send("alice", person(bob), "first");
    t.equal(body.message_seq, 1);
  },
);

t.test(
  "a personal message reaches every device of the receiver and names the channel by the other's uid [spec: from_uid; spec: channel_id of a message; spec: payload]",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const phone = await world.join(t, bob);
    const laptop = await world.join(t, bob, { flag: 2 });
    const sender = await world.join(t, alice);
    const bytes = Buffer.from('{"type":1,"content":"héllo 👋"}');
    const sent = await sender.send(person(bob), bytes);
    for (const client of [phone, laptop]) {
      const push = await client.nextPush();
      if (push.kind !== "message") throw new Error(push.kind);
      t.same(push.channel, person(alice));
      t.same(Buffer.from(push.message.payload), bytes, "the very bytes");
      t.match(push.message, {
        messageId: sent.messageId,
        messageSeq: sent.messageSeq,
        clientMsgNo: sent.clientMsgNo,
        fromUid: alice,
      });
      t.ok(Math.abs(push.message.timestampMs - Date.now()) < 60_000);
    }
  },
);

t.test(
  "the sender's other devices get the message, the sending connection does not [issue: Sender's other devices]",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const channel = await world.newGroup([alice, bob]);
    const phone = await world.join(t, alice);
    const sibling = await world.connect(t, alice);
    const laptop = await world.join(t, alice, { flag: 2 });
    await phone.send(person(bob), "personal");
    await phone.send(channel, "group");
    for (const other of [sibling, laptop]) {
      // Channels are independent of each other: docs/protocol/native.md.
      t.same([...(await receives(other, 2))].sort(), ["group", "personal"]);
      const channels = other.pushesOf("message").map((push) => push.channel);
      const named = new Set(channels.map(({ id }) => id));
      t.same(named, new Set([bob, channel.id]), "as the sender names them");
    }
    t.same(await received(phone), []);
  },
);

t.test(
  "a message sent over HTTP reaches all devices of its sender too [issue: Sender's other devices]",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const client = await world.join(t, alice);
    const channel = await world.newGroup([alice, bob]);
    await world.send(alice, person(bob), "personal");
    await world.send(alice, channel, "group");
    t.same([...(await receives(client, 2))].sort(), ["group", "personal"]);
  },
);

t.test(
  "a message to oneself comes once to each other device [issue: Sender's other devices]",
  async (t) => {
    const alice = world.name("alice");
    const phone = await world.join(t, alice);
    const laptop = await world.join(t, alice, { flag: 2 });
    await phone.send(person(alice), "note");
    t.same(await receives(laptop, 1), ["note"]);
    t.same(await received(phone), []);
  },
);

t.test(
  "message_seq: from 1 without gaps per channel; a personal conversation is one channel for both [spec: message_seq; decisions: Sequence]",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const a = await world.join(t, alice);
    const b = await world.join(t, bob);
    const channel = await world.newGroup([alice, bob]);
    const seq = async (sent: ReturnType<typeof a.send>) => (await sent).messageSeq;
    t.equal(await seq(a.send(person(bob), "1")), 1);
    t.equal(await seq(b.send(person(alice), "2")), 2);
    t.equal(await seq(a.send(channel, "1")), 1);
    const { body } = await world.send(bob, person(alice), "3");
    t.equal(body.message_seq, 3);
    t.same(await receives(a, 2), ["2", "3"]);
  },
);

t.test(
  "sends of one connection keep their order, though many are under way [decisions: Sequence; issue: Order]",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const channel = await world.newGroup([alice, bob]);
    const reader = await world.join(t, bob);
    const writer = await world.join(t, alice);
    const texts = range(1, 300).map(String);
    const acks = texts.map((text) => writer.send(channel, text));
    const answered = (await Promise.all(acks)).map((ack) => ack.messageSeq);
    t.same(answered, range(1, 300));
    t.same(await receives(reader, 300), texts);
    t.same(seqs(reader.messages), range(1, 300));
  },
);

t.test(
  "members see a group's messages of many senders in one order, that of the sequence [decisions: Sequence]",
  async (t) => {
    const senders = ["a", "b", "c"].map((word) => world.name(word));
    const watchers = [world.name("w"), world.name("w")];
    const channel = await world.newGroup([...senders, ...watchers]);
    const reading = await Promise.all(watchers.map((uid) => world.join(t, uid)));
    await Promise.all(
      senders.flatMap((uid) => range(1, 20).map((n) => world.send(uid, channel, `${uid} ${n}`))),
    );
    for (const client of reading) {
      await receives(client, 60);
      t.same(seqs(client.messages), range(1, 60));
    }
  },
);

t.test(
  "no_persist 1: delivered to who is online, not stored, message_seq 0 [spec: header no_persist; decisions: /message/send]",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const channel = await world.newGroup([alice, bob]);
    const online = await world.join(t, bob);
    const more = { header: { no_persist: 1 } };
    for (const to of [channel, person(bob)]) {
      const { body } = await world.send(alice, to, "unstored", more);
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
    t.same(await received(late), []);
  },
);

t.test(
  "red_dot, stream_no, tag_key and expire are carried to sockets and into history [spec: header red_dot; spec: stream_no; spec: expire; spec: tag_key; decisions: tag_key; decisions: stream_no]",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const client = await world.join(t, bob);
    await world.send(alice, person(bob), "http", {
      header: { red_dot: 1 },
      stream_no: "stream-1",
      tag_key: "label",
      expire: 3600,
    });
    const carried = {
      header: { noPersist: false, redDot: true },
      streamNo: "stream-1",
      tagKey: "label",
      expireS: 3600,
    };
    const live = await client.nextMessage();
    t.match(live, carried);
    const sender = await world.join(t, alice);
    const options = { redDot: true, streamNo: "stream-1", tagKey: "label" };
    await sender.send(person(bob), "socket", { ...options, expireS: 3600 });
    t.match(await client.nextMessage(), carried);
    const { messages } = await client.history(person(alice));
    t.equal(messages.length, 2);
    for (const message of messages) t.match(message, carried);
    t.same(messages[0], live, "history shows what was pushed");
  },
);

t.test(
  "fields that are absent come as nothing: no red dot, no labels, no expiry [spec: header red_dot; spec: expire]",
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

t.test(
  "subscribers on a command: only the listed uids that belong to the channel get it [spec: subscribers of a message; decisions: subscribers on send]",
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
    const got = await Promise.all(
      clients.map(async (client) => {
        await client.ping();
        return client.commands.map(({ message }) => textOf(message));
      }),
    );
    t.same(got, [["command"], [], []], "not carol, not listed; not eve");
  },
);

t.test(
  "subscribers on a message that is no command is 400 [spec: subscribers of a message; decisions: subscribers on send]",
  async (t) => {
    const bob = world.name("bob");
    const more = { subscribers: [bob] };
    const answer = await world.send("alice", person(bob), "x", more);
    t.match(answer, { status: 400, body: { code: "bad_request" } });
  },
);

t.test(
  "sends into a group that does not exist, or to an id that is none, are refused on the socket with a code and the connection goes on [issue: errors]",
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
