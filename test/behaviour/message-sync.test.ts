// Calls of a backend that reads messages for its clients: ranges of messages, single messages and
// commands. Also tests the call that sends a personal message to each of many users.

import { t } from "../support/suite.ts";
import { commandsOf, sendCommand } from "./inboxes.ts";
import { person, range, startWorld, untilReceived, type World, wire } from "./world.ts";

const world = await startWorld(t);

interface SyncedMessage {
  readonly message_seq: number;
  readonly message_id: number;
  readonly payload: string;
  readonly client_msg_no: string;
}

const seqsOf = (messages: readonly SyncedMessage[]) =>
  messages.map(({ message_seq }) => message_seq);

// Covers [feature: channel/messagesync]
t.test("POST /channel/messagesync reads a channel in pages in both directions", async (t) => {
  const [alice, bob] = [world.name("alice"), world.name("bob")];
  for (const channel of [await world.newGroup([alice]), person(bob)]) {
    const place = { ...wire(channel), login_uid: alice };
    for (const seq of range(1, 7)) await world.send(alice, channel, `${seq}`);
    const page = (fields: object) => world.ok("/channel/messagesync", { ...place, ...fields });
    const newest = await page({ limit: 3 });
    t.same(seqsOf(newest.messages), [5, 6, 7]);
    t.equal(newest.more, 1);
    const older = await page({ start_message_seq: 4, limit: 10 });
    t.same(seqsOf(older.messages), [1, 2, 3, 4]);
    t.equal(older.more, 0);
    const newer = { start_message_seq: 3, end_message_seq: 6, pull_mode: 1 };
    t.same(seqsOf((await page(newer)).messages), [3, 4, 5]);
    const { body } = await world.call(
      `/channel/max_message_seq?channel_id=${channel.id}&channel_type=${channel.type}&login_uid=${alice}`,
    );
    t.same(body, { message_seq: 7 });
  }
  const nothing = { channel_id: world.name("none"), channel_type: 2 };
  t.match(await world.ok("/channel/messagesync", nothing), {
    more: 0,
    messages: [],
  });
  t.match(
    await world.call(`/channel/max_message_seq?channel_id=${nothing.channel_id}&channel_type=2`),
    { status: 200, body: { message_seq: 0 } },
  );
});

// Covers [feature: messages]
t.test("POST /messages finds single messages by seq, id and client_msg_no", async (t) => {
  const alice = world.name("alice");
  const channel = await world.newGroup([alice]);
  const sent: SyncedMessage[] = [];
  for (const seq of range(1, 20)) {
    const options = seq % 2 === 0 ? { client_msg_no: `no ${seq}` } : {};
    sent.push((await world.send(alice, channel, `${seq}`, options)).body);
  }
  const find = async (fields: object) =>
    seqsOf((await world.ok("/messages", { ...wire(channel), ...fields })).messages);
  const ids = sent.map(({ message_id }) => message_id);
  t.same(await find({ message_seqs: [19, 3, 3, 99] }), [3, 19]);
  t.same(await find({ message_ids: ids }), range(1, 20));
  t.same(await find({ message_ids: [(ids.at(-1) ?? 0) + 1, 5] }), []);
  const [first] = sent;
  const names = ["no 6", first?.client_msg_no, "no 7", "server-1"];
  t.same(await find({ client_msg_nos: names }), [1, 6]);
  t.same(await find({ message_seqs: [1], message_ids: [ids[0]] }), [1]);
  t.same(await find({}), []);
});

// Covers [decisions: Values that clients really send]
t.test(
  "POST /messages returns the messages that exist and ignores unknown seqs, ids and client_msg_nos",
  async (t) => {
    const alice = world.name("alice");
    const channel = await world.newGroup([alice]);
    const { body: sent } = await world.send(alice, channel, "x", { client_msg_no: "c1" });
    // Written as text, because JavaScript cannot represent a number of 19 digits.
    const find = async (fields: string) => {
      const place = JSON.stringify(wire(channel)).slice(0, -1);
      const reply = await fetch(`http://127.0.0.1:${world.apiPort}/messages`, {
        method: "POST",
        headers: { "content-type": "application/json" },
        body: `${place},${fields}}`,
      });
      const { messages = [] } = (await reply.json()) as { messages?: SyncedMessage[] };
      return [reply.status, seqsOf(messages)];
    };
    const id = sent.message_id;
    for (const fields of [
      `"message_ids":[1234567890123456789,${id},18446744073709551615]`,
      `"message_ids":["${id}","1234567890123456789","x","",-1,1.5]`,
      `"message_seqs":[1,9223372036854775807,-1]`,
      `"client_msg_nos":["","c1","${"x".repeat(200)}"]`,
    ])
      t.same(await find(fields), [200, [1]], fields.slice(0, 60));
    t.same(await find('"message_ids":[1234567890123456789]'), [200, []]);
    t.same(await find(`"message_ids":[true]`), [400, []]);
  },
);

// Covers [feature: message/sync]
t.test(
  "POST /message/sync lists commands until they are acknowledged on the socket or over HTTP",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const channel = await world.newGroup([alice, bob]);
    for (const text of ["first", "second"]) await sendCommand(world, alice, channel, text);
    await sendCommand(world, alice, person(bob), "third");
    t.same(await textsOf(world, bob), ["1 first", "2 second", "3 third"]);
    t.same(await textsOf(world, bob, 2), ["1 first", "2 second"]);
    const ack = { uid: bob, last_message_seq: 2 };
    await world.ok("/message/syncack", ack);
    await world.ok("/message/syncack", ack);
    t.same(await textsOf(world, bob), ["3 third"]);
    const client = await world.join(t, bob);
    t.same(await commandsOf(client, world), ["3 third"]);
    await client.acknowledge([3]);
    t.same(await textsOf(world, bob), []);
    await world.ok("/message/syncack", { uid: bob, last_message_seq: 99 });
  },
);

async function textsOf(source: World, uid: string, limit = 0) {
  const body = { uid, message_seq: 0, limit };
  const commands: SyncedMessage[] = await source.ok("/message/sync", body);
  return commands.map(({ message_seq, payload }) => {
    const { content } = JSON.parse(Buffer.from(payload, "base64").toString());
    return `${message_seq} ${content}`;
  });
}

// Covers [feature: message/sendbatch]
t.test(
  "POST /message/sendbatch sends a message to each user and lists the users to whom it could not be sent",
  async (t) => {
    const [alice, bob, eve] = [world.name("alice"), world.name("bob"), world.name("eve")];
    const client = await world.join(t, bob);
    await world.ok("/channel", { ...wire(person(eve)), ban: 1 });
    const { body } = await world.call("/message/sendbatch", {
      from_uid: alice,
      subscribers: [bob, eve],
      payload: btoa('{"type":1,"content":"to all"}'),
    });
    t.same(body, {
      fail_uids: [eve],
      reason: ["Only system accounts may send to the channel"],
    });
    t.same(await untilReceived(client, 1), ["to all"]);
    t.match(client.messages[0], { fromUid: alice });
  },
);

t.test(
  "a retry of POST /message/sendbatch with the same client_msg_no reaches only users who lack the message",
  async (t) => {
    const [alice, bob, eve] = [world.name("alice"), world.name("bob"), world.name("eve")];
    const [bobs, eves] = [await world.join(t, bob), await world.join(t, eve)];
    const batch = (subscribers: readonly string[], content: string) =>
      world.call("/message/sendbatch", {
        ...{ from_uid: alice, client_msg_no: "batch-1", subscribers },
        payload: btoa(JSON.stringify({ type: 1, content })),
      });
    const none = { fail_uids: [], reason: [] };
    t.same((await batch([bob], "once")).body, none);
    t.same((await batch([bob, eve], "once")).body, none);
    t.same((await batch([bob], "other")).body.fail_uids, [bob], "a different payload is refused");
    await world.call("/message/sendbatch", {
      ...{ from_uid: alice, subscribers: [bob, eve] },
      payload: btoa('{"type":1,"content":"last"}'),
    });
    t.same(await untilReceived(bobs, 2), ["once", "last"]);
    t.same(await untilReceived(eves, 2), ["once", "last"]);
    const numbers = [bobs, eves].map(({ messages }) => messages[0]?.clientMsgNo);
    t.equal(new Set(numbers).size, 2, "the messages of a batch have different numbers");
  },
);

// Covers [decisions: Values that clients really send]
t.test(
  "POST /message/sendbatch lists invalid uids in fail_uids and sends to the other users",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const client = await world.join(t, bob);
    const impossible = ["a@b", "", "x".repeat(129), "a#b", "\ud800"];
    const { status, body } = await world.call("/message/sendbatch", {
      from_uid: alice,
      subscribers: [...impossible, bob],
      payload: btoa('{"type":1,"content":"to bob"}'),
    });
    t.equal(status, 200);
    t.same(body.fail_uids, impossible);
    t.match(body.reason, Array(impossible.length).fill(/must have 1 to 128 characters/));
    t.same(await untilReceived(client, 1), ["to bob"]);
    for (const wrong of [
      { from_uid: "a@b" },
      { from_uid: "😀".repeat(65) },
      { subscribers: [5, bob] },
      { payload: "e30=" },
    ])
      t.match(
        await world.refusal("/message/sendbatch", {
          ...{ from_uid: alice, subscribers: [bob], payload: btoa('{"type":1}') },
          ...wrong,
        }),
        /^400 bad_/,
        "an error of the message itself refuses the whole call",
      );
  },
);
