// Calls of a backend for clients that fetch messages by themselves: ranges of messages, single
// messages, commands, and a personal message to each of many users.

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

t.test(
  "POST /channel/messagesync reads a channel in pages in both directions [issue: channel/messagesync]",
  async (t) => {
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
  },
);

t.test(
  "POST /messages finds single messages by seq, id and client_msg_no [issue: messages]",
  async (t) => {
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
  },
);

t.test(
  "POST /message/sync lists commands until they are acknowledged on the socket or over HTTP [issue: message/sync]",
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

t.test(
  "POST /message/sendbatch sends a message to each user and lists the users who were refused [issue: message/sendbatch]",
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
      reason: ["Nobody may send to the channel"],
    });
    t.same(await untilReceived(client, 1), ["to all"]);
    t.match(client.messages[0], { fromUid: alice });
  },
);
