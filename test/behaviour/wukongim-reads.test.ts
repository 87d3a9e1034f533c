// Calls that public backends of WuKongIM make to read single messages and chosen conversations.

import { crc32 } from "../../src/lib/crc32.ts";
import { t } from "../support/suite.ts";
import { person, startWorld, wire } from "./world.ts";

const world = await startWorld(t);
const NOTHING = { status: 404 };

const query = (fields: object) =>
  new URLSearchParams(
    Object.entries(fields).map(([name, value]): [string, string] => [name, String(value)]),
  );
const read = async (path: string, fields: object) =>
  (await world.call(`${path}?${query(fields)}`)).body;

/**
 * Returns the id of a personal channel in the store of WuKongIM, where the uid with the larger
 * CRC-32 is first.
 */
function storedId(uid: string, peer: string): string {
  const ranked = [uid, peer].sort((a, b) => crc32(Buffer.from(b)) - crc32(Buffer.from(a)));
  return ranked.join("@");
}

// Covers [feature: calls of public backends]
t.test(
  "a backend reads the newest message of a channel, and a message by its id or client_msg_no",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    for (const channel of [await world.newGroup([alice]), person(bob)]) {
      const place = { ...wire(channel), login_uid: alice };
      t.same(await read("/channel/last_message", place), NOTHING);
      const { body: first } = await world.send(alice, channel, "first", { client_msg_no: "no 1" });
      const { body: second } = await world.send(alice, channel, "second", {
        client_msg_no: "no 2",
      });
      t.match(await read("/channel/last_message", place), {
        message_id: second.message_id,
        message_idstr: String(second.message_id),
        message_seq: 2,
        client_msg_no: "no 2",
      });
      const find = (fields: object) => world.ok("/message", { ...place, ...fields });
      const isFirst = { message_id: first.message_id, client_msg_no: "no 1" };
      t.match(await find({ message_id: first.message_id }), isFirst);
      t.match(await find({ message_id: String(first.message_id) }), isFirst);
      t.match(await find({ client_msg_no: "no 1" }), isFirst);
      t.same(await find({ message_id: "1765432109876543210" }), NOTHING);
      t.same(await find({ client_msg_no: "no 3" }), NOTHING);
      t.match(await read("/message/byclientmsgno", { ...place, client_msg_no: "no 1" }), isFirst);
      t.match(await world.call("/message", place), { status: 400, body: { code: "bad_request" } });
    }
    const elsewhere = await world.newGroup([alice]);
    const { body: third } = await world.send(alice, elsewhere, "third");
    const other = { ...wire(person(bob)), login_uid: alice, message_id: third.message_id };
    t.same(await world.ok("/message", other), NOTHING, "a message of another channel");
  },
);

// Covers [feature: calls of public backends]
t.test(
  "GET /message/byclientmsgno accepts both uids of a personal channel, joined by @ in either order, as its id",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    await world.send(alice, person(bob), "hello", { client_msg_no: "no 1" });
    for (const channel_id of [`${alice}@${bob}`, `${bob}@${alice}`])
      t.match(
        await read("/message/byclientmsgno", {
          channel_id,
          channel_type: 1,
          client_msg_no: "no 1",
        }),
        { from_uid: alice, channel_id: bob },
      );
    for (const channel_id of ["@", `${alice}@`, `${alice}@${bob}@${alice}`])
      t.match(
        await world.call(
          `/message/byclientmsgno?${query({ channel_id, channel_type: 1, client_msg_no: "no 1" })}`,
        ),
        { status: 400 },
      );
  },
);

// Covers [feature: calls of public backends]
t.test(
  "POST /conversation/channels lists the channels of a user's conversations, with each channel's id in the form that WuKongIM stores",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const group = await world.newGroup([alice, bob]);
    await world.send(bob, group, "in the group");
    await world.send(bob, person(alice), "in private");
    await world.send(alice, person(alice), "to herself");
    t.same(await world.ok("/conversation/channels", { uid: alice }), [
      { channel_id: `${alice}@${alice}`, channel_type: 1 },
      { channel_id: storedId(alice, bob), channel_type: 1 },
      wire(group),
    ]);
    t.same(await world.ok("/conversation/channels", { uid: world.name("nobody") }), []);
  },
);

// Covers [feature: calls of public backends]
t.test(
  "POST /conversation/syncByChannels returns the user's conversations in the given channels",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const [group, silent, foreign] = [
      await world.newGroup([alice, bob]),
      await world.newGroup([alice, bob]),
      await world.newGroup([bob]),
    ];
    for (const text of ["one", "two"]) await world.send(bob, group, text);
    await world.send(bob, foreign, "for others");
    await world.send(bob, person(alice), "in private");
    const channels = [group, group, silent, foreign, person(bob)].map(wire);
    const list = await world.ok("/conversation/syncByChannels", { uid: alice, channels });
    t.same(
      list.map(({ channel_id, recents }: { channel_id: string; recents: object[] }) => [
        channel_id,
        recents.length,
      ]),
      [
        [bob, 1],
        [group.id, 2],
      ],
    );
    const [whole] = await world.ok("/conversation/sync", { uid: alice, msg_count: 15 });
    t.same(list[0], whole, "a conversation equals that of /conversation/sync");
    const newest = { uid: alice, channels: [wire(group)], msg_count: 1 };
    t.match(await world.ok("/conversation/syncByChannels", newest), [
      { recents: [{ message_seq: 2 }] },
    ]);
    t.same(await world.ok("/conversation/syncByChannels", { uid: alice, channels: [] }), []);
  },
);
