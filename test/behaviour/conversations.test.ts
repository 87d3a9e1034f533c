// A user's conversations on the socket: newest first, unread, the read position both ways, what the
// user's other devices are told.

import type { ChannelRef } from "../../src/broker/model.ts";
import { matchObject } from "../support/match-object.ts";
import { type NativeClient, textOf } from "../support/native-session.ts";
import { t } from "../support/suite.ts";
import { startStage } from "./stages.ts";
import { codeOf, eventually, person, range, startWorld, wire } from "./world.ts";

const world = await startWorld(t);
const RED = { header: { red_dot: 1 } };

/** `id unread last` of each, newest first. */
async function listOf(client: NativeClient, page = {}): Promise<readonly string[]> {
  const { conversations } = await client.conversations(page);
  return conversations.map(({ channel, unread, last }) => {
    const text = last === undefined ? "-" : textOf(last);
    return `${channel.id} ${unread} ${text}`;
  });
}

/** How one of them stands: `unread/readSeq/headSeq`. */
async function standing(client: NativeClient, channel: ChannelRef): Promise<string> {
  const { conversations } = await client.conversations();
  const found = conversations.find(({ channel: { id } }) => id === channel.id);
  return found ? `${found.unread}/${found.readSeq}/${found.headSeq}` : "none";
}

const names = (...words: string[]) =>
  words.map((word) => world.name(word)) as [string, string, string];
const write = (from: string, to: ChannelRef, text: string, more: object = RED) =>
  world.send(from, to, text, more);
const read = (client: NativeClient, channel: ChannelRef, seq: number) =>
  client.changeConversation(channel, { kind: "read", seq });

t.test(
  "the list is newest first, each with its unread and last message, groups and users alike [issue: Conversation list]",
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

t.test(
  "a page of long messages ends early, the next one goes on behind it [issue: Conversation list]",
  async (t) => {
    const alice = world.name("alice");
    const client = await world.join(t, alice);
    const count = 8;
    for (const n of range(1, count))
      await write(`${alice}-${n}`, person(alice), "x".repeat(40_000));
    const found: string[] = [];
    let pages = 0;
    for (let more = true; more; pages++) {
      const page = await client.conversations({
        ...{ limit: 500, offset: found.length },
      });
      t.ok(page.conversations.length > 0 && page.conversations.length < count);
      found.push(...page.conversations.map(({ channel }) => channel.id));
      more = page.more;
    }
    t.ok(pages > 1);
    t.same(
      found,
      range(1, count).map((n) => `${alice}-${count + 1 - n}`),
    );
  },
);

t.test("a burst of lists is answered one after the other [issue: Conversation list]", async (t) => {
  const unlimited = { JINDOU_CLIENT_MAX_FRAMES_PER_SECOND: "0" };
  const world = await startWorld(t, unlimited); // lists of 200 kB each cost more than a client may ask for at once
  const alice = world.name("alice");
  const client = await world.join(t, alice);
  for (const n of range(1, 4))
    await world.send(`${alice}-${n}`, person(alice), "x".repeat(50_000), RED);
  const asked = range(1, 300).map((n) => client.conversations({ limit: n }));
  const counts = (await Promise.all(asked)).map(({ conversations }) => conversations.length);
  t.same(
    counts.map((listed) => Math.min(listed, 2)),
    [1, ...Array(299).fill(2)],
  );
  t.match(await client.conversations({ limit: 1 }), { more: true });
});

t.test("the list comes in pages [issue: Conversation list]", async (t) => {
  const alice = world.name("alice");
  const client = await world.join(t, alice);
  for (const n of range(1, 7)) await write(`${alice}-${n}`, person(alice), "x");
  const page = async (offset: number, limit: number) => {
    const { conversations, more } = await client.conversations({
      offset,
      limit,
    });
    return `${conversations.map(({ channel }) => channel.id.at(-1)).join("")} ${more}`;
  };
  t.same(
    [await page(0, 3), await page(3, 3), await page(6, 3), await page(7, 3), await page(0, 7)],
    ["765 true", "432 true", "1 false", " false", "7654321 false"],
  );
  t.equal(await codeOf(client.conversations({ limit: 0 })), "bad_request");
  t.equal(await codeOf(client.conversations({ limit: 501 })), "bad_request");
});

t.test(
  "one's own messages are read, and whatever came before them; the other has them unread [issue: Unread]",
  async (t) => {
    const [alice, bob] = names("alice", "bob");
    const [a, b] = [await world.join(t, alice), await world.join(t, bob)];
    await write(bob, person(alice), "one");
    await write(bob, person(alice), "two");
    t.equal(await standing(a, person(bob)), "2/0/2");
    await a.send(person(bob), "answer", { redDot: true });
    t.equal(await standing(a, person(bob)), "0/3/3");
    t.equal(await standing(b, person(alice)), "1/2/3");
    await write(bob, person(alice), "three");
    t.equal(await standing(a, person(bob)), "1/3/4");
  },
);

t.test(
  "red_dot 0 does not count as unread, and is shown as the last message [issue: Unread red_dot 0; spec: header red_dot]",
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

t.test(
  "the read position moves forward and back on request, and no further than there is [issue: Read position]",
  async (t) => {
    const [alice, bob] = names("alice", "bob");
    const client = await world.join(t, alice);
    for (const n of range(1, 5)) await write(bob, person(alice), String(n));
    const change = async (wish: Parameters<typeof client.changeConversation>[1]) => {
      const { conversation } = await client.changeConversation(person(bob), wish);
      t.equal(
        await standing(client, person(bob)),
        `${conversation.unread}/${conversation.readSeq}/5`,
      );
      return `${conversation.unread}/${conversation.readSeq}`;
    };
    t.equal(await change({ kind: "read", seq: 3 }), "2/3");
    t.equal(await change({ kind: "read", seq: 1 }), "4/1", "back");
    t.equal(await change({ kind: "read", seq: 99 }), "0/5");
    t.equal(await change({ kind: "unread", unread: 2 }), "2/3", "marked unread");
    t.equal(await change({ kind: "unread", unread: 99 }), "5/0");
    t.equal(await change({ kind: "unread", unread: 0 }), "0/5");
  },
);

t.test(
  "the user's other devices are told of a change at once, the one that asked gets the answer, nobody else hears [issue: Told at once]",
  async (t) => {
    const [alice, bob] = names("alice", "bob");
    const phone = await world.join(t, alice);
    const laptop = await world.join(t, alice, { flag: 2 });
    const other = await world.join(t, bob);
    await write(bob, person(alice), "one");
    await write(bob, person(alice), "two");
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
    await Promise.all([phone.ping(), other.ping()]);
    t.same([phone.pushesOf("conversation"), other.pushesOf("conversation")], [[], []]);
  },
);

t.test(
  "a deleted conversation is hidden until a new message comes; older ones stay out of it [issue: Conversation delete]",
  async (t) => {
    const [alice, bob] = names("alice", "bob");
    const client = await world.join(t, alice);
    const other = await world.join(t, bob);
    for (const text of ["one", "two"]) await write(bob, person(alice), text);
    await client.changeConversation(person(bob), { kind: "delete" });
    t.same(await listOf(client), []);
    t.same(await listOf(other), [`${alice} 0 two`], "the other's own");
    await write(bob, person(alice), "three");
    t.same(await listOf(client), [`${bob} 1 three`]);
    const { conversation } = await client.changeConversation(person(bob), {
      kind: "unread",
      unread: 9,
    });
    matchObject(t, conversation, { unread: 1, readSeq: 2, deletedSeq: 2 });
  },
);

t.test(
  "who joins a group has what was before as read; who leaves has it no more [issue: Unread]",
  async (t) => {
    const [alice, bob] = names("alice", "bob");
    const channel = await world.newGroup([bob]);
    const client = await world.join(t, alice);
    await write(bob, channel, "before");
    const change = (call: string) =>
      world.ok(`/channel/${call}`, { ...wire(channel), subscribers: [alice] });
    await change("subscriber_add");
    t.equal(await standing(client, channel), "0/1/1");
    await write(bob, channel, "since");
    t.equal(await standing(client, channel), "1/1/2");
    await change("subscriber_remove");
    t.same(await listOf(client), []);
    t.equal(await codeOf(read(client, channel, 1)), "not_in_channel");
    await change("subscriber_add");
    t.equal(await standing(client, channel), "0/2/2", "as new");
  },
);

t.test(
  "a large group is listed and carries no unread [decisions: large; issue: Unread large]",
  async (t) => {
    const [alice, bob] = names("alice", "bob");
    const channel = await world.newGroup([alice, bob], { large: 1 });
    const client = await world.join(t, alice);
    for (const text of ["one", "two"]) await write(bob, channel, text);
    t.same(await listOf(client), [`${channel.id} 0 two`]);
    const { conversation } = await client.changeConversation(channel, {
      kind: "unread",
      unread: 2,
    });
    t.equal(conversation.unread, 0);
  },
);

t.test("an expired message neither counts nor is last [issue: Unread; spec: expire]", async (t) => {
  const [alice, bob] = names("alice", "bob");
  const client = await world.join(t, alice);
  await write(bob, person(alice), "stays");
  await write(bob, person(alice), "goes", { ...RED, expire: 1 });
  t.same(await listOf(client), [`${bob} 2 goes`]);
  await eventually(async () => (await listOf(client)).join() === `${bob} 1 stays`, 100);
  t.equal(await standing(client, person(bob)), "1/0/2");
});

t.test(
  "what is not persisted, and commands, are no conversation [issue: Conversation list]",
  async (t) => {
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
  },
);

t.test(
  "a stream is one unread message, and shows its text so far [issue: Unread; decisions: Stream and history]",
  async (t) => {
    const stage = await startStage(t, world);
    const { alice, bob, channel } = stage;
    await stage.start("s1");
    await stage.say("s1", "so ");
    await stage.say("s1", "far");
    t.same(await listOf(bob), [`${channel.id} 1 so far`]);
    t.same(await listOf(alice), [`${channel.id} 0 so far`], "her own");
    const { conversations } = await bob.conversations();
    matchObject(t, conversations[0]?.last?.stream, { state: "active", nextIndex: 3 });
    await stage.end("s1");
    t.same(await listOf(bob), [`${channel.id} 1 so far`]);
  },
);

t.test("positions and unread outlive a restart [issue: Conversations survive]", async (t) => {
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

t.test("what cannot be changed is refused [issue: Read position]", async (t) => {
  const client = await world.join(t, world.name("alice"));
  const none = { id: world.name("none"), type: 2 } as const;
  t.equal(await codeOf(read(client, none, 1)), "not_in_channel");
  t.equal(await codeOf(read(client, person("a@b"), 1)), "bad_id");
  const { conversation } = await read(client, person(world.name("silent")), 5);
  matchObject(
    t,
    conversation,
    { headSeq: 0, readSeq: 0, unread: 0, last: undefined },
    "nothing there yet",
  );
});
