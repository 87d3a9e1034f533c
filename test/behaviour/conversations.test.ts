// A user's conversations on the socket: the list, unread counts, moving the read position, and the
// pushes to the user's other devices.

import type { ChannelRef } from "../../src/broker/model.ts";
import { matchObject } from "../support/match-object.ts";
import { type NativeClient, textOf } from "../support/native-session.ts";
import { t } from "../support/suite.ts";
import { createFixture } from "./stream-fixture.ts";
import { codeOf, eventually, person, range, startWorld, wire } from "./world.ts";

const world = await startWorld(t);
const RED = { header: { red_dot: 1 } };

/** Returns `<channel id> <unread> <last text>` of each conversation, newest first. */
async function listOf(client: NativeClient, page = {}): Promise<readonly string[]> {
  const { conversations } = await client.conversations(page);
  return conversations.map(({ channel, unread, last }) => {
    const text = last === undefined ? "-" : textOf(last);
    return `${channel.id} ${unread} ${text}`;
  });
}

/** Returns `<unread>/<readSeq>/<headSeq>` of one conversation. */
async function positionOf(client: NativeClient, channel: ChannelRef): Promise<string> {
  const { conversations } = await client.conversations();
  const conversation = conversations.find(({ channel: { id } }) => id === channel.id);
  return conversation
    ? `${conversation.unread}/${conversation.readSeq}/${conversation.headSeq}`
    : "none";
}

const names = (...prefixes: string[]) =>
  prefixes.map((prefix) => world.name(prefix)) as [string, string, string];
const write = (from: string, channel: ChannelRef, text: string, fields: object = RED) =>
  world.send(from, channel, text, fields);
const read = (client: NativeClient, channel: ChannelRef, seq: number) =>
  client.changeConversation(channel, { kind: "read", seq });

// Covers [feature: Conversation list]
t.test(
  "the conversation list is sorted newest first and shows the unread count and the last message of each conversation",
  async (t) => {
    const [alice, bob, carol] = names("alice", "bob", "carol");
    const channel = await world.newGroup([alice, bob]);
    const client = await world.join(t, alice);
    t.same(await listOf(client), []);
    await write(bob, person(alice), "hello");
    await write(carol, person(alice), "hi");
    await write(bob, channel, "all");
    await write(bob, person(alice), "again");
    t.same(await listOf(client), [`${bob} 2 again`, `${channel.id} 1 all`, `${carol} 1 hi`]);
    const { conversations } = await client.conversations();
    matchObject(t, conversations[0], {
      channel: person(bob),
      headSeq: 2,
      readSeq: 0,
      deletedSeq: 0,
      last: { messageSeq: 2, fromUid: bob },
    });
    matchObject(t, conversations[1], { channel });
  },
);

// Covers [feature: Conversation list]
t.test(
  "a page of conversations with long messages ends early, and the next page continues after it",
  async (t) => {
    const alice = world.name("alice");
    const client = await world.join(t, alice);
    const count = 8;
    for (const n of range(1, count))
      await write(`${alice}-${n}`, person(alice), "x".repeat(40_000));
    const ids: string[] = [];
    let pages = 0;
    let cursor: string | undefined;
    do {
      const page = await client.conversations({ limit: 500, cursor });
      t.ok(page.conversations.length > 0 && page.conversations.length < count);
      ids.push(...page.conversations.map(({ channel }) => channel.id));
      cursor = page.cursor;
      pages++;
    } while (cursor !== undefined);
    t.ok(pages > 1);
    t.same(
      ids,
      range(1, count).map((n) => `${alice}-${count + 1 - n}`),
    );
  },
);

// Covers [feature: Conversation list]
t.test("every request in a burst of conversation list requests is answered", async (t) => {
  const unlimited = { JINDOU_CLIENT_MAX_FRAMES_PER_SECOND: "0" };
  const world = await startWorld(t, unlimited); // lists of 200 kB each would exceed a client's rate limit
  const alice = world.name("alice");
  const client = await world.join(t, alice);
  for (const n of range(1, 4))
    await world.send(`${alice}-${n}`, person(alice), "x".repeat(50_000), RED);
  const requests = range(1, 300).map((n) => client.conversations({ limit: n }));
  const counts = (await Promise.all(requests)).map(({ conversations }) => conversations.length);
  t.same(
    counts.map((count) => Math.min(count, 2)),
    [1, ...Array(299).fill(2)],
  );
  t.type((await client.conversations({ limit: 1 })).cursor, "string");
});

// Covers [feature: Conversation list]
t.test("the conversation list can be read in pages", async (t) => {
  const alice = world.name("alice");
  const client = await world.join(t, alice);
  for (const n of range(1, 7)) await write(`${alice}-${n}`, person(alice), "x");
  const pages = async (limit: number) => {
    const ids: string[] = [];
    let cursor: string | undefined;
    do {
      const page = await client.conversations({ limit, cursor });
      ids.push(page.conversations.map(({ channel }) => channel.id.at(-1)).join(""));
      cursor = page.cursor;
    } while (cursor !== undefined);
    return ids;
  };
  t.same(await pages(3), ["765", "432", "1"]);
  t.same(await pages(7), ["7654321"]);
  t.equal(await codeOf(client.conversations({ cursor: "x" })), "bad_cursor");
  t.equal(await codeOf(client.conversations({ limit: 0 })), "bad_request");
  t.equal(await codeOf(client.conversations({ limit: 501 })), "bad_request");
});

// Covers [feature: Unread]
t.test(
  "a user's own message and all earlier messages count as read for that user, and the message is unread for the peer",
  async (t) => {
    const [alice, bob] = names("alice", "bob");
    const [aliceClient, bobClient] = [await world.join(t, alice), await world.join(t, bob)];
    await write(bob, person(alice), "first");
    await write(bob, person(alice), "second");
    t.equal(await positionOf(aliceClient, person(bob)), "2/0/2");
    await aliceClient.send(person(bob), "answer", { redDot: true });
    t.equal(await positionOf(aliceClient, person(bob)), "0/3/3");
    t.equal(await positionOf(bobClient, person(alice)), "1/2/3");
    await write(bob, person(alice), "third");
    t.equal(await positionOf(aliceClient, person(bob)), "1/3/4");
  },
);

// Covers [feature: Unread red_dot 0; spec: header red_dot]
t.test(
  "a message with red_dot 0 does not count as unread but can be the last message of a conversation",
  async (t) => {
    const [alice, bob] = names("alice", "bob");
    const client = await world.join(t, alice);
    await write(bob, person(alice), "counts");
    await write(bob, person(alice), "silent", { header: { red_dot: 0 } });
    await write(bob, person(alice), "absent", {});
    t.same(await listOf(client), [`${bob} 1 absent`]);
    await read(client, person(bob), 1);
    t.same(await listOf(client), [`${bob} 0 absent`]);
  },
);

// Covers [feature: Read position]
t.test(
  "the read position can be moved forward and back within the existing messages",
  async (t) => {
    const [alice, bob] = names("alice", "bob");
    const client = await world.join(t, alice);
    for (const n of range(1, 5)) await write(bob, person(alice), String(n));
    const change = async (requested: Parameters<typeof client.changeConversation>[1]) => {
      const { conversation } = await client.changeConversation(person(bob), requested);
      t.equal(
        await positionOf(client, person(bob)),
        `${conversation.unread}/${conversation.readSeq}/5`,
      );
      return `${conversation.unread}/${conversation.readSeq}`;
    };
    t.equal(await change({ kind: "read", seq: 3 }), "2/3");
    t.equal(await change({ kind: "read", seq: 1 }), "4/1", "the position moves back");
    t.equal(await change({ kind: "read", seq: 99 }), "0/5");
    t.equal(
      await change({ kind: "unread", unread: 2 }),
      "2/3",
      "two messages are marked as unread",
    );
    t.equal(await change({ kind: "unread", unread: 99 }), "5/0");
    t.equal(await change({ kind: "unread", unread: 0 }), "0/5");
  },
);

// Covers [feature: Pushed at once]
t.test(
  "a change to a conversation on one device is pushed at once, and only to the user's other devices",
  async (t) => {
    const [alice, bob] = names("alice", "bob");
    const phone = await world.join(t, alice);
    const laptop = await world.join(t, alice, { flag: 2 });
    const peer = await world.join(t, bob);
    await write(bob, person(alice), "first");
    await write(bob, person(alice), "second");
    await read(phone, person(bob), 1);
    await phone.changeConversation(person(bob), { kind: "unread", unread: 2 });
    await phone.changeConversation(person(bob), { kind: "delete" });
    await laptop.ping();
    matchObject(t, laptop.pushesOf("conversation"), [
      {
        change: "read",
        conversation: { channel: person(bob), readSeq: 1, unread: 1 },
      },
      { change: "unread", conversation: { readSeq: 0, unread: 2 } },
      {
        change: "delete",
        conversation: { deletedSeq: 2, unread: 0, last: undefined },
      },
    ]);
    await Promise.all([phone.ping(), peer.ping()]);
    t.same([phone.pushesOf("conversation"), peer.pushesOf("conversation")], [[], []]);
  },
);

// Covers [feature: Conversation delete]
t.test("a delete with a seq hides only messages up to that seq, even when repeated", async (t) => {
  const [alice, bob] = names("alice", "bob");
  const client = await world.join(t, alice);
  for (const text of ["first", "second", "third"]) await write(bob, person(alice), text);
  const expected = { deletedSeq: 2, readSeq: 2, unread: 1, headSeq: 3, last: { messageSeq: 3 } };
  const remove = async (seq: number) =>
    (await client.changeConversation(person(bob), { kind: "delete", seq })).conversation;
  matchObject(t, await remove(2), expected);
  matchObject(t, await remove(2), expected);
  t.same(await listOf(client), [`${bob} 1 third`]);
  matchObject(t, await remove(1), expected, "an earlier seq does not show hidden messages again");
  await read(client, person(bob), 3);
  matchObject(t, await remove(2), { readSeq: 3 }, "messages that were read stay read");
});

// Covers [feature: Conversation delete]
t.test(
  "a deleted conversation is hidden until a new message arrives, and its older messages stay hidden",
  async (t) => {
    const [alice, bob] = names("alice", "bob");
    const client = await world.join(t, alice);
    const peer = await world.join(t, bob);
    for (const text of ["first", "second"]) await write(bob, person(alice), text);
    await client.changeConversation(person(bob), { kind: "delete" });
    t.same(await listOf(client), []);
    t.same(await listOf(peer), [`${alice} 0 second`], "the peer's list is unchanged");
    await write(bob, person(alice), "third");
    t.same(await listOf(client), [`${bob} 1 third`]);
    const { conversation } = await client.changeConversation(person(bob), {
      kind: "unread",
      unread: 9,
    });
    matchObject(t, conversation, { unread: 1, readSeq: 2, deletedSeq: 2 });
  },
);

// Covers [feature: Unread]
t.test(
  "earlier messages count as read for a new member, and the conversation list of a removed member lacks the group",
  async (t) => {
    const [alice, bob] = names("alice", "bob");
    const channel = await world.newGroup([bob]);
    const client = await world.join(t, alice);
    await write(bob, channel, "before");
    const change = (call: string) =>
      world.ok(`/channel/${call}`, { ...wire(channel), subscribers: [alice] });
    await change("subscriber_add");
    t.equal(await positionOf(client, channel), "0/1/1");
    await write(bob, channel, "since");
    t.equal(await positionOf(client, channel), "1/1/2");
    await change("subscriber_remove");
    t.same(await listOf(client), []);
    t.equal(await codeOf(read(client, channel, 1)), "not_in_channel");
    await change("subscriber_add");
    t.equal(
      await positionOf(client, channel),
      "0/2/2",
      "a member who returns starts like a new member",
    );
  },
);

// Covers [decisions: large; feature: Unread large]
t.test("a large group is listed with an unread count of 0", async (t) => {
  const [alice, bob] = names("alice", "bob");
  const channel = await world.newGroup([alice, bob], { large: 1 });
  const client = await world.join(t, alice);
  for (const text of ["first", "second"]) await write(bob, channel, text);
  t.same(await listOf(client), [`${channel.id} 0 second`]);
  const { conversation } = await client.changeConversation(channel, {
    kind: "unread",
    unread: 2,
  });
  t.equal(conversation.unread, 0);
});

// Covers [feature: Unread; spec: expire]
t.test(
  "an expired message neither counts as unread nor is listed as the last message",
  async (t) => {
    const [alice, bob] = names("alice", "bob");
    const client = await world.join(t, alice);
    await write(bob, person(alice), "stays");
    await write(bob, person(alice), "goes", { ...RED, expire: 1 });
    t.same(await listOf(client), [`${bob} 2 goes`]);
    await eventually(async () => (await listOf(client)).join() === `${bob} 1 stays`, 100);
    t.equal(await positionOf(client, person(bob)), "1/0/2");
  },
);

// Covers [feature: Conversation list]
t.test("unstored messages, commands and events do not create a conversation", async (t) => {
  const [alice, bob] = names("alice", "bob");
  const client = await world.join(t, alice);
  await write(bob, person(alice), "gone", {
    header: { no_persist: 1, red_dot: 1 },
  });
  await write(bob, person(alice), "command", {
    header: { sync_once: 1, red_dot: 1 },
  });
  await world.call("/event", {
    client_msg_no: "c",
    from_uid: bob,
    ...wire(person(alice)),
    event: { type: "typing" },
  });
  t.same(await listOf(client), []);
});

// Covers [feature: Unread; decisions: Stream and history]
t.test("a stream counts as one unread message and is listed with its text so far", async (t) => {
  const fixture = await createFixture(t, world);
  const { alice, bob, channel } = fixture;
  await fixture.start("s1");
  await fixture.addText("s1", "so ");
  await fixture.addText("s1", "far");
  t.same(await listOf(bob), [`${channel.id} 1 so far`]);
  t.same(
    await listOf(alice),
    [`${channel.id} 0 so far`],
    "the stream counts as read for its producer",
  );
  const { conversations } = await bob.conversations();
  matchObject(t, conversations[0]?.last?.stream, { state: "active", nextIndex: 3 });
  await fixture.end("s1");
  t.same(await listOf(bob), [`${channel.id} 1 so far`]);
});

// Covers [feature: Conversations survive]
t.test("read positions and unread counts survive a restart", async (t) => {
  const before = await startWorld(t);
  await before.register("alice");
  for (const n of range(1, 4)) await before.send("bob", person("alice"), String(n), RED);
  for (const n of range(1, 2)) await before.send("carol", person("alice"), String(n), RED);
  const first = await before.connect(t, "alice");
  await read(first, person("bob"), 3);
  await first.changeConversation(person("carol"), { kind: "delete" });
  await before.close();
  const after = await startWorld(t, {}, before.dataPath);
  const second = await after.connect(t, "alice");
  t.same(await listOf(second), ["bob 1 4"]);
  await after.send("carol", person("alice"), "3", RED);
  t.same(await listOf(second), ["carol 1 3", "bob 1 4"]);
});

// Covers [feature: Read position]
t.test("a change to a group's conversation is refused if the user is not a member", async (t) => {
  const client = await world.join(t, world.name("alice"));
  const none = { id: world.name("none"), type: 2 } as const;
  t.equal(await codeOf(read(client, none, 1)), "not_in_channel");
  t.equal(await codeOf(read(client, person("a@b"), 1)), "bad_id");
  const { conversation } = await read(client, person(world.name("silent")), 5);
  matchObject(
    t,
    conversation,
    { headSeq: 0, readSeq: 0, unread: 0, last: undefined },
    "a conversation without messages is at 0",
  );
});

// Covers [feature: Conversation read]
t.test(
  "the state of a single conversation can be read even if it has no messages, and that of a group's conversation only by a member",
  async (t) => {
    const [alice, bob, carol] = names("alice", "bob", "carol");
    const channel = await world.newGroup([alice, bob]);
    const large = await world.newGroup([alice, bob], { large: 1 });
    const client = await world.join(t, alice);
    const phone = await world.join(t, alice, { flag: 2 });
    const outsider = await world.join(t, carol);
    const stateOf = async (channel: ChannelRef) => {
      const { conversation } = await client.changeConversation(channel);
      const { unread, headSeq, last, large } = conversation;
      return [unread, headSeq, last && textOf(last), large];
    };
    t.same(await stateOf(channel), [0, 0, undefined, undefined]);
    t.same(await stateOf(person(carol)), [0, 0, undefined, undefined]);
    for (const target of [channel, large, person(alice)]) await write(bob, target, "hi");
    t.same(await stateOf(channel), [1, 1, "hi", undefined]);
    t.same(await stateOf(person(bob)), [1, 1, "hi", undefined]);
    t.same(await stateOf(large), [0, 1, "hi", true], "a large group is marked");
    const { conversations } = await client.conversations();
    t.same(
      conversations.filter((item) => item.large).map((item) => item.channel.id),
      [large.id],
    );
    t.equal(await codeOf(outsider.changeConversation(channel)), "not_in_channel");
    await phone.ping();
    t.same(phone.pushesOf("conversation"), [], "a read does not notify other devices");
  },
);

// Covers [feature: Conversation read]
t.test(
  "a list with `sinceMs` contains the conversations that changed since that time through a message or an action of the user",
  async (t) => {
    const [alice, bob, carol] = names("alice", "bob", "carol");
    const client = await world.join(t, alice);
    const channel = await world.newGroup([alice, bob]);
    for (const [from, target] of [
      [bob, person(alice)],
      [carol, person(alice)],
      [bob, channel],
    ] as const)
      await write(from, target, "old");
    const { conversations } = await client.conversations();
    const sinceMs = 1 + Math.max(...conversations.map(({ changedAtMs }) => changedAtMs));
    t.same(await listOf(client, { sinceMs }), []);
    await read(client, person(carol), 1);
    await write(bob, channel, "new");
    t.same(await listOf(client, { sinceMs }), [`${channel.id} 2 new`, `${carol} 0 old`]);
    const first = await client.conversations({ limit: 1, sinceMs });
    const second = await client.conversations({ limit: 1, cursor: first.cursor });
    t.equal(second.conversations[0]?.channel.id, carol);
    t.equal(second.cursor, undefined, "the cursor keeps the time of the first page");
    t.equal((await listOf(client, { sinceMs: 0 })).length, 3);
    t.equal((await listOf(client)).length, 3);
  },
);
