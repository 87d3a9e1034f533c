// Commands: each recipient's inbox stores a copy, which is pushed at once, kept until one device
// acknowledges it, and pushed again at connect.

import { matchObject } from "../support/match-object.ts";
import { textOf } from "../support/native-session.ts";
import { t } from "../support/suite.ts";
import { commandsOf, pulledCommands, sendCommand, untilCommands } from "./inboxes.ts";
import { codeOf, eventually, person, range, startWorld, wire } from "./world.ts";

const world = await startWorld(t);

// Covers [spec: payload type 99; spec: header sync_once]
// Covers [decisions: sync_once 1, or payload type 99]
t.test(
  "a command is pushed with its inbox seq to every online device of each recipient",
  async (t) => {
    const [alice, bob, eve] = ["alice", "bob", "eve"].map((name) => world.name(name)) as [
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
    const first = await sendCommand(world, alice, channel, "by type");
    matchObject(
      t,
      first,
      { status: 200, body: { message_seq: 0 } },
      "the sender's response has no seq",
    );
    const header = { header: { sync_once: 1 } };
    await world.send(alice, channel, "by header", header);
    await world.send(alice, person(bob), "personal", header);
    for (const client of [phone, laptop]) {
      t.same(await untilCommands(client, 3), ["1 by type", "2 by header", "3 personal"]);
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
    t.same(await commandsOf(stranger, world), []);
    t.same(phone.messages, [], "the command is not a message");
    t.same((await phone.history(channel)).headSeq, 0, "the command is not in history");
  },
);

// Covers [feature: Inbox pulled at connect]
t.test(
  "commands that were sent while a user was offline are pushed at connect in order, before live commands",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const channel = await world.newGroup([alice, bob]);
    await world.register(bob);
    for (const n of range(1, 30))
      await sendCommand(world, alice, n % 2 ? channel : person(bob), `c${n}`);
    const client = await world.connect(t, bob);
    await sendCommand(world, alice, channel, "c31");
    t.same(
      await untilCommands(client, 31),
      range(1, 31).map((n) => `${n} c${n}`),
    );
    matchObject(t, client.commands[1]?.channel, person(alice));
  },
);

// Covers [feature: Inbox acknowledge]
t.test("a command is pushed at each connect until one device acknowledges it", async (t) => {
  const [alice, bob] = [world.name("alice"), world.name("bob")];
  const phone = await world.join(t, bob);
  const laptop = await world.join(t, bob, { flag: 2 });
  for (const text of ["first", "second", "third"])
    await sendCommand(world, alice, person(bob), text);
  await untilCommands(phone, 3);
  t.same(
    await pulledCommands(t, bob, world),
    ["1 first", "2 second", "3 third"],
    "no device has acknowledged a command",
  );
  t.equal((await phone.acknowledge([1, 3])).count, 2);
  t.equal(
    (await laptop.acknowledge([1, 3])).count,
    0,
    "commands that one device acknowledged are acknowledged for all devices",
  );
  t.same(await pulledCommands(t, bob, world), ["2 second"]);
  t.equal((await laptop.acknowledge([2, 99])).count, 1, "unknown seqs are ignored");
  t.same(await pulledCommands(t, bob, world), []);
  await sendCommand(world, alice, person(bob), "fourth");
  t.same(await pulledCommands(t, bob, world), ["4 fourth"]);
});

// Covers [feature: Inbox acknowledge]
t.test("an acknowledgement removes commands only from the user's own inbox", async (t) => {
  const [alice, bob, carol] = ["alice", "bob", "carol"].map((name) => world.name(name)) as [
    string,
    string,
    string,
  ];
  const channel = await world.newGroup([alice, bob, carol]);
  const [first, second] = [await world.join(t, bob), await world.join(t, carol)];
  await sendCommand(world, alice, channel, "c");
  await Promise.all([untilCommands(first, 1), untilCommands(second, 1)]);
  t.equal((await first.acknowledge([1])).count, 1);
  t.same(await pulledCommands(t, carol, world), ["1 c"]);
});

// Covers [decisions: sync_once 1, or payload type 99]
t.test(
  "a command is pushed to its sender's other devices without a copy in the sender's inbox",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const channel = await world.newGroup([alice, bob]);
    const sender = await world.join(t, alice);
    const otherDevice = await world.join(t, alice, { flag: 2 });
    const ack = await sender.send(channel, "from a socket", { syncOnce: true });
    t.equal(ack.messageSeq, 0);
    t.same(await untilCommands(otherDevice, 1), ["0 from a socket"]);
    t.same(await commandsOf(sender, world), []);
    t.same(await pulledCommands(t, alice, world), [], "the sender's inbox has no copy");
    await world.register(bob);
    t.same(await pulledCommands(t, bob, world), ["1 from a socket"]);
  },
);

// Covers [decisions: sync_once 1, or payload type 99]
t.test("a command to the sender's own uid is stored for the sender's other devices", async (t) => {
  const alice = world.name("alice");
  const phone = await world.join(t, alice);
  await phone.send(person(alice), "note", { syncOnce: true });
  await world.register(alice, { flag: 2 });
  const laptop = await world.connect(t, alice, { flag: 2 });
  t.same(await untilCommands(laptop, 1), ["1 note"]);
});

// Covers [spec: subscribers of a message; decisions: subscribers on send]
t.test(
  "a command with `subscribers` is stored only for the listed members of the channel",
  async (t) => {
    const [alice, bob, carol, eve] = ["alice", "bob", "carol", "eve"].map((name) =>
      world.name(name),
    ) as [string, string, string, string];
    const channel = await world.newGroup([alice, bob, carol]);
    const options = { subscribers: [bob, eve, alice] };
    await sendCommand(world, alice, channel, "listed", options);
    await sendCommand(world, alice, channel, "all");
    for (const uid of [alice, bob, carol, eve]) await world.register(uid);
    t.same(await pulledCommands(t, bob, world), ["1 listed", "2 all"]);
    t.same(await pulledCommands(t, alice, world), ["1 listed"], "a listed sender gets a copy");
    t.same(await pulledCommands(t, carol, world), ["1 all"]);
    t.same(await pulledCommands(t, eve, world), []);
  },
);

// Covers [decisions: subscribers on send]
t.test(
  "a command with `subscribers` in a personal channel is pushed only to the listed users of that channel",
  async (t) => {
    const [alice, bob, eve] = ["alice", "bob", "eve"].map((name) => world.name(name)) as [
      string,
      string,
      string,
    ];
    const [first, second, third] = [
      await world.join(t, alice),
      await world.join(t, bob),
      await world.join(t, eve),
    ];
    await sendCommand(world, alice, person(bob), "c", {
      subscribers: [alice, eve],
    });
    t.same(await untilCommands(first, 1), ["1 c"]);
    t.same([await commandsOf(second, world), await commandsOf(third, world)], [[], []]);
  },
);

// Covers [decisions: Deduplication]
t.test(
  "a command that is sent several times with the same client_msg_no is stored and pushed once",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    await world.register(bob);
    const options = { client_msg_no: "c1" };
    const send = () => sendCommand(world, alice, person(bob), "once", options);
    const responses = await Promise.all([send(), send(), send()]);
    t.equal(new Set(responses.map(({ body }) => body.message_id)).size, 1);
    const client = await world.connect(t, bob);
    t.same(await untilCommands(client, 1), ["1 once"]);
    t.equal((await client.acknowledge([1])).count, 1);
    t.equal((await send()).body.message_id, responses[0]?.body.message_id);
    t.same(await commandsOf(client, world), ["1 once"]);
    t.same(await pulledCommands(t, bob, world), []);
  },
);

// Covers [spec: header no_persist; decisions: sync_once 1, or payload type 99]
t.test("a command with no_persist is pushed to online devices and not stored", async (t) => {
  const [alice, bob] = [world.name("alice"), world.name("bob")];
  const online = await world.join(t, bob);
  const options = { header: { no_persist: 1, sync_once: 1 } };
  t.equal((await sendCommand(world, alice, person(bob), "now", options)).body.message_seq, 0);
  t.equal(textOf(await online.nextMessage()), "now");
  const late = await world.connect(t, bob);
  t.same([await commandsOf(late, world), late.messages], [[], []]);
});

// Covers [decisions: large]
t.test("a command to a large group is pushed to online members and not stored", async (t) => {
  const [alice, bob] = [world.name("alice"), world.name("bob")];
  const channel = await world.newGroup([alice, bob], { large: 1 });
  const online = await world.join(t, bob);
  await sendCommand(world, alice, channel, "now");
  t.equal(textOf(await online.nextMessage()), "now");
  const late = await world.connect(t, bob);
  t.same([await commandsOf(late, world), late.messages], [[], []]);
});

// Covers [decisions: sync_once 1, or payload type 99]
t.test("a command is stored for the users who are members at the time of the send", async (t) => {
  const [alice, bob, carol] = ["alice", "bob", "carol"].map((name) => world.name(name)) as [
    string,
    string,
    string,
  ];
  const channel = await world.newGroup([alice, bob]);
  await sendCommand(world, alice, channel, "before");
  await world.ok("/channel/subscriber_add", {
    ...wire(channel),
    subscribers: [carol],
  });
  await world.ok("/channel/subscriber_remove", {
    ...wire(channel),
    subscribers: [bob],
  });
  await sendCommand(world, alice, channel, "after");
  for (const uid of [bob, carol]) await world.register(uid);
  t.same(await pulledCommands(t, bob, world), ["1 before"]);
  t.same(await pulledCommands(t, carol, world), ["1 after"]);
});

// Covers [spec: POST /message/send 403]
t.test("a user who may not send messages may not send commands", async (t) => {
  const [alice, bob, eve] = ["alice", "bob", "eve"].map((name) => world.name(name)) as [
    string,
    string,
    string,
  ];
  const channel = await world.newGroup([alice, bob]);
  const online = await world.join(t, bob);
  matchObject(t, await sendCommand(world, eve, channel, "c"), {
    status: 403,
    body: { code: "not_subscriber" },
  });
  const stranger = await world.join(t, eve);
  const refused = stranger.send(channel, "c", { syncOnce: true });
  t.equal(await codeOf(refused), "not_subscriber");
  t.same(await commandsOf(online, world), []);
});

// Covers [spec: Command names]
t.test("a command's payload reaches clients unchanged", async (t) => {
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

// Covers [feature: Inbox survives]
t.test("an inbox and its acknowledgements survive a restart", async (t) => {
  const before = await startWorld(t);
  const bob = "bob";
  await before.register(bob);
  for (const text of ["first", "second", "third"])
    await sendCommand(before, "alice", person(bob), text, {
      client_msg_no: text,
    });
  const client = await before.connect(t, bob);
  await untilCommands(client, 3);
  await client.acknowledge([2]);
  await before.close();
  const after = await startWorld(t, {}, before.dataPath);
  t.same(await pulledCommands(t, bob, after), ["1 first", "3 third"]);
  await sendCommand(after, "alice", person(bob), "second", { client_msg_no: "second" });
  await sendCommand(after, "alice", person(bob), "fourth");
  t.same(await pulledCommands(t, bob, after), ["1 first", "3 third", "4 fourth"]);
});

// Covers [feature: Inbox bound; feature: Inbox expiry]
t.test(
  "an inbox over its limit drops its oldest commands and counts the dropped commands in a metric, and commands can expire",
  async (t) => {
    const small = await startWorld(t, { JINDOU_COMMANDS_MAX_INBOX: "3" });
    await small.register("bob");
    await small.register("carol");
    for (const n of range(1, 5)) await sendCommand(small, "alice", person("bob"), `c${n}`);
    t.same(await pulledCommands(t, "bob", small), ["3 c3", "4 c4", "5 c5"]);
    const { body } = await small.call("/metrics");
    t.match(String(body), /^jindou_commands_dropped_total 2$/m);
    await sendCommand(small, "alice", person("carol"), "short", { expire: 1 });
    await sendCommand(small, "alice", person("carol"), "long", { expire: 3600 });
    t.same(await pulledCommands(t, "carol", small), ["1 short", "2 long"]);
    await eventually(async () => {
      const client = await small.connect(t, "carol");
      return (await commandsOf(client, small)).join() === "2 long";
    }, 200);
  },
);
