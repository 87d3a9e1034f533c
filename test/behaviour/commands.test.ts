// Commands: write diffusion into each recipient's inbox, pushed at once, kept until one device
// acknowledges, pulled at connect.

import { matchObject } from "../support/match-object.ts";
import { textOf } from "../support/native-session.ts";
import { t } from "../support/suite.ts";
import { command, gets, got, pulled } from "./inboxes.ts";
import { codeOf, eventually, person, range, startWorld, wire } from "./world.ts";

const world = await startWorld(t);

t.test(
  "a command is pushed to every online device of each recipient, with the seq of its inbox [spec: payload type 99; spec: header sync_once; decisions: sync_once 1, or payload type 99]",
  async (t) => {
    const [alice, bob, eve] = ["alice", "bob", "eve"].map((word) => world.name(word)) as [
      string,
      string,
      string,
    ];
    const channel = await world.newGroup([alice, bob]);
    const [phone, laptop, stranger] = [
      await world.join(t, bob),
      await world.join(t, bob, { flag: 2 }),
      await world.join(t, eve),
    ];
    const first = await command(world, alice, channel, "by type");
    matchObject(t, first, { status: 200, body: { message_seq: 0 } }, "the sender's side of it");
    const header = { header: { sync_once: 1 } };
    await world.send(alice, channel, "by header", header);
    await world.send(alice, person(bob), "personal", header);
    for (const client of [phone, laptop]) {
      t.same(await gets(client, 3), ["1 by type", "2 by header", "3 personal"]);
      matchObject(t, client.commands[0], {
        channel,
        message: {
          messageId: first.body.message_id,
          messageSeq: 1,
          fromUid: alice,
        },
      });
      matchObject(t, client.commands[2], { channel: person(alice) });
    }
    t.same(await got(stranger, world), []);
    t.same(phone.messages, [], "and no message");
    t.same((await phone.history(channel)).headSeq, 0, "nor history");
  },
);

t.test(
  "what comes while a user is offline is pulled at connect, in order, before what comes live [issue: Inbox pulled at connect]",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const channel = await world.newGroup([alice, bob]);
    await world.register(bob);
    for (const n of range(1, 30))
      await command(world, alice, n % 2 ? channel : person(bob), `c${n}`);
    const client = await world.connect(t, bob);
    await command(world, alice, channel, "c31");
    t.same(
      await gets(client, 31),
      range(1, 31).map((n) => `${n} c${n}`),
    );
    matchObject(t, client.commands[1]?.channel, person(alice));
  },
);

t.test(
  "it comes again until it is acknowledged, then to no device [issue: Inbox acknowledge]",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const phone = await world.join(t, bob);
    const laptop = await world.join(t, bob, { flag: 2 });
    for (const text of ["one", "two", "three"]) await command(world, alice, person(bob), text);
    await gets(phone, 3);
    t.same(await pulled(t, bob, world), ["1 one", "2 two", "3 three"], "nobody acknowledged");
    t.equal((await phone.acknowledge([1, 3])).count, 2);
    t.equal((await laptop.acknowledge([1, 3])).count, 0, "one device did it for all");
    t.same(await pulled(t, bob, world), ["2 two"]);
    t.equal((await laptop.acknowledge([2, 99])).count, 1, "unknown ones are harmless");
    t.same(await pulled(t, bob, world), []);
    await command(world, alice, person(bob), "four");
    t.same(await pulled(t, bob, world), ["4 four"]);
  },
);

t.test("acknowledging is for one's own inbox [issue: Inbox acknowledge]", async (t) => {
  const [alice, bob, carol] = ["alice", "bob", "carol"].map((word) => world.name(word)) as [
    string,
    string,
    string,
  ];
  const channel = await world.newGroup([alice, bob, carol]);
  const [first, second] = [await world.join(t, bob), await world.join(t, carol)];
  await command(world, alice, channel, "c");
  await Promise.all([gets(first, 1), gets(second, 1)]);
  t.equal((await first.acknowledge([1])).count, 1);
  t.same(await pulled(t, carol, world), ["1 c"]);
});

t.test(
  "the sender keeps no copy; its other devices are told, with nothing to acknowledge [decisions: sync_once 1, or payload type 99]",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const channel = await world.newGroup([alice, bob]);
    const sender = await world.join(t, alice);
    const other = await world.join(t, alice, { flag: 2 });
    const ack = await sender.send(channel, "from a socket", { syncOnce: true });
    t.equal(ack.messageSeq, 0);
    t.same(await gets(other, 1), ["0 from a socket"]);
    t.same(await got(sender, world), []);
    t.same(await pulled(t, alice, world), [], "nothing was kept");
    await world.register(bob);
    t.same(await pulled(t, bob, world), ["1 from a socket"]);
  },
);

t.test(
  "a command to oneself is kept for one's other devices [decisions: sync_once 1, or payload type 99]",
  async (t) => {
    const alice = world.name("alice");
    const phone = await world.join(t, alice);
    await phone.send(person(alice), "note", { syncOnce: true });
    await world.register(alice, { flag: 2 });
    const laptop = await world.connect(t, alice, { flag: 2 });
    t.same(await gets(laptop, 1), ["1 note"]);
  },
);

t.test(
  "subscribers: kept for the listed that belong to the channel and for nobody else [spec: subscribers of a message; decisions: subscribers on send]",
  async (t) => {
    const [alice, bob, carol, eve] = ["alice", "bob", "carol", "eve"].map((word) =>
      world.name(word),
    ) as [string, string, string, string];
    const channel = await world.newGroup([alice, bob, carol]);
    const more = { subscribers: [bob, eve, alice] };
    await command(world, alice, channel, "listed", more);
    await command(world, alice, channel, "all");
    for (const uid of [alice, bob, carol, eve]) await world.register(uid);
    t.same(await pulled(t, bob, world), ["1 listed", "2 all"]);
    t.same(await pulled(t, alice, world), ["1 listed"], "the sender when it is listed");
    t.same(await pulled(t, carol, world), ["1 all"]);
    t.same(await pulled(t, eve, world), []);
  },
);

t.test(
  "subscribers of a personal channel are its two users [decisions: subscribers on send]",
  async (t) => {
    const [alice, bob, eve] = ["alice", "bob", "eve"].map((word) => world.name(word)) as [
      string,
      string,
      string,
    ];
    const [first, second, third] = [
      await world.join(t, alice),
      await world.join(t, bob),
      await world.join(t, eve),
    ];
    await command(world, alice, person(bob), "c", {
      subscribers: [alice, eve],
    });
    t.same(await gets(first, 1), ["1 c"]);
    t.same([await got(second, world), await got(third, world)], [[], []]);
  },
);

t.test(
  "the same client_msg_no is one command, however often it is sent [decisions: Deduplication]",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    await world.register(bob);
    const more = { client_msg_no: "c1" };
    const send = () => command(world, alice, person(bob), "once", more);
    const answers = await Promise.all([send(), send(), send()]);
    t.equal(new Set(answers.map(({ body }) => body.message_id)).size, 1);
    const client = await world.connect(t, bob);
    t.same(await gets(client, 1), ["1 once"]);
    t.equal((await client.acknowledge([1])).count, 1);
    t.equal((await send()).body.message_id, answers[0]?.body.message_id);
    t.same(await got(client, world), ["1 once"]);
    t.same(await pulled(t, bob, world), []);
  },
);

t.test(
  "no_persist: told to who is online, not kept [spec: header no_persist; decisions: sync_once 1, or payload type 99]",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const online = await world.join(t, bob);
    const more = { header: { no_persist: 1, sync_once: 1 } };
    t.equal((await command(world, alice, person(bob), "now", more)).body.message_seq, 0);
    t.equal(textOf(await online.nextMessage()), "now");
    const late = await world.connect(t, bob);
    t.same([await got(late, world), late.messages], [[], []]);
  },
);

t.test(
  "in a large group nothing is kept for anybody: who is online is told [decisions: large]",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const channel = await world.newGroup([alice, bob], { large: 1 });
    const online = await world.join(t, bob);
    await command(world, alice, channel, "now");
    t.equal(textOf(await online.nextMessage()), "now");
    const late = await world.connect(t, bob);
    t.same([await got(late, world), late.messages], [[], []]);
  },
);

t.test(
  "commands go to who is a member when they are sent [decisions: sync_once 1, or payload type 99]",
  async (t) => {
    const [alice, bob, carol] = ["alice", "bob", "carol"].map((word) => world.name(word)) as [
      string,
      string,
      string,
    ];
    const channel = await world.newGroup([alice, bob]);
    await command(world, alice, channel, "before");
    await world.ok("/channel/subscriber_add", {
      ...wire(channel),
      subscribers: [carol],
    });
    await world.ok("/channel/subscriber_remove", {
      ...wire(channel),
      subscribers: [bob],
    });
    await command(world, alice, channel, "after");
    for (const uid of [bob, carol]) await world.register(uid);
    t.same(await pulled(t, bob, world), ["1 before"]);
    t.same(await pulled(t, carol, world), ["1 after"]);
  },
);

t.test("who may not send may not send commands [spec: POST /message/send 403]", async (t) => {
  const [alice, bob, eve] = ["alice", "bob", "eve"].map((word) => world.name(word)) as [
    string,
    string,
    string,
  ];
  const channel = await world.newGroup([alice, bob]);
  const online = await world.join(t, bob);
  matchObject(t, await command(world, eve, channel, "c"), {
    status: 403,
    body: { code: "not_subscriber" },
  });
  const stranger = await world.join(t, eve);
  const refused = stranger.send(channel, "c", { syncOnce: true });
  t.equal(await codeOf(refused), "not_subscriber");
  t.same(await got(online, world), []);
});

t.test("the commands in use reach clients as they were sent [spec: Command names]", async (t) => {
  const [alice, bob] = [world.name("alice"), world.name("bob")];
  const client = await world.join(t, bob);
  const commands = [
    { type: 99, cmd: "cmd", param: { any: "thing" } },
    { type: 99, cmd: "groupUpdate", param: { group_no: "g" } },
    { type: 99, cmd: "memberUpdate", param: { group_no: "g" } },
    {
      type: 99,
      cmd: "unreadClear",
      param: { channel_id: "g", channel_type: 2 },
    },
  ];
  for (const content of commands) {
    const payload = Buffer.from(JSON.stringify(content)).toString("base64");
    await world.send(alice, person(bob), "", { payload });
  }
  await client.waitFor(() => client.commands.length === 4, "commands");
  t.same(
    client.commands.map(({ message }) => JSON.parse(Buffer.from(message.payload).toString())),
    commands,
  );
});

t.test(
  "an inbox outlives a restart, and so does what was acknowledged [issue: Inbox survives]",
  async (t) => {
    const before = await startWorld(t);
    const bob = "bob";
    await before.register(bob);
    for (const text of ["one", "two", "three"])
      await command(before, "alice", person(bob), text, {
        client_msg_no: text,
      });
    const client = await before.connect(t, bob);
    await gets(client, 3);
    await client.acknowledge([2]);
    await before.close();
    const after = await startWorld(t, {}, before.dataPath);
    t.same(await pulled(t, bob, after), ["1 one", "3 three"]);
    await command(after, "alice", person(bob), "two", { client_msg_no: "two" });
    await command(after, "alice", person(bob), "four");
    t.same(await pulled(t, bob, after), ["1 one", "3 three", "4 four"]);
  },
);

t.test(
  "an inbox over its bound loses its oldest commands, which is counted; a command expires [issue: Inbox bound; issue: Inbox expiry]",
  async (t) => {
    const small = await startWorld(t, { JINDOU_COMMANDS_MAX_INBOX: "3" });
    await small.register("bob");
    await small.register("carol");
    for (const n of range(1, 5)) await command(small, "alice", person("bob"), `c${n}`);
    t.same(await pulled(t, "bob", small), ["3 c3", "4 c4", "5 c5"]);
    const { body } = await small.call("/metrics");
    t.match(String(body), /^jindou_commands_dropped_total 2$/m);
    await command(small, "alice", person("carol"), "short", { expire: 1 });
    await command(small, "alice", person("carol"), "long", { expire: 3600 });
    t.same(await pulled(t, "carol", small), ["1 short", "2 long"]);
    await eventually(async () => {
      const client = await small.connect(t, "carol");
      return (await got(client, small)).join() === "2 long";
    }, 200);
  },
);
