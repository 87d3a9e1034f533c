// Conversations over HTTP: the list for a backend's clients, clearing, setting and deleting, and
// the pushes to the user's devices.

import type { ChannelRef } from "../../src/broker/model.ts";
import { matchObject } from "../support/match-object.ts";
import { t } from "../support/suite.ts";
import { createFixture, KINDS } from "./stream-fixture.ts";
import { group, person, range, startWorld, wire } from "./world.ts";

const world = await startWorld(t);
const RED = { header: { red_dot: 1 } };
const names = (...prefixes: string[]) =>
  prefixes.map((prefix) => world.name(prefix)) as [string, string, string];

const sync = (uid: string, fields: object = {}) =>
  world.ok("/conversation/sync", { uid, ...fields });
const change = (call: string, uid: string, channel: ChannelRef, fields: object = {}) =>
  world.ok(`/conversations/${call}`, { uid, ...wire(channel), ...fields });

/** Returns `<channel id> <unread>` of each conversation. */
const unreadOf = (list: readonly { channel_id: string; unread: number }[]) =>
  list.map(({ channel_id, unread }) => `${channel_id} ${unread}`);

// Covers [feature: conversation/sync]
t.test(
  "POST /conversation/sync lists each conversation with its seqs and unread count, newest first",
  async (t) => {
    const [alice, bob, carol] = names("alice", "bob", "carol");
    const channel = await world.newGroup([alice, bob]);
    t.same(await sync(alice), []);
    await world.send(bob, channel, "all", { ...RED, client_msg_no: "g1" });
    await world.send(carol, person(alice), "first", RED);
    await world.send(carol, person(alice), "second", {
      ...RED,
      client_msg_no: "c2",
    });
    const list = await sync(alice);
    t.same(unreadOf(list), [`${carol} 2`, `${channel.id} 1`]);
    const [{ timestamp, version, ...conversation }] = list;
    t.same(conversation, {
      ...{ channel_id: carol, channel_type: 1, unread: 2 },
      ...{ last_msg_seq: 2, last_client_msg_no: "c2" },
      ...{ offset_msg_seq: 0, readed_to_msg_seq: 0, recents: [] },
    });
    t.ok(Math.abs(timestamp - Date.now() / 1000) < 60);
    t.ok(Number.isSafeInteger(version) && version > 0);
  },
);

// Covers [feature: conversation/sync]
t.test(
  "POST /conversation/sync returns the msg_count newest messages of each conversation, and no messages if msg_count is absent or 0",
  async (t) => {
    const [alice, bob] = names("alice", "bob");
    for (const n of range(1, 5)) await world.send(bob, person(alice), `m${n}`, RED);
    const recents = async (fields: object) => {
      const [{ recents }] = await sync(alice, fields);
      return recents.map(
        ({
          message_seq,
          channel_id,
          from_uid,
        }: {
          message_seq: number;
          channel_id: string;
          from_uid: string;
        }) => `${message_seq} ${channel_id === alice && from_uid === bob}`,
      );
    };
    t.same(await recents({ msg_count: 3 }), ["5 true", "4 true", "3 true"]);
    t.same(await recents({ msg_count: 1 }), ["5 true"]);
    t.same(await recents({ msg_count: 0 }), []);
    t.same(await recents({}), []);
    t.same(
      await recents({ msg_count: 9 }),
      range(5, 1).map((n) => `${n} true`),
    );
    const last_msg_seqs = `${bob}:1:3`;
    t.same(
      await recents({ msg_count: 9, last_msg_seqs }),
      ["5 true", "4 true"],
      "only messages after the last seq are returned",
    );
  },
);

// Covers [feature: conversation/sync]
t.test("last_msg_seqs may contain ids with | and :", async (t) => {
  const alice = world.name("alice");
  const odd = [`a:1:2|b-${alice}`, `|:${alice}`];
  for (const uid of odd) for (const n of range(1, 3)) await world.send(uid, person(alice), `m${n}`);
  const last_msg_seqs = odd.map((uid, at) => `${uid}:1:${at + 1}`).join("|");
  const list = await sync(alice, { msg_count: 9, last_msg_seqs });
  const seqs = Object.fromEntries(
    list.map((item: { channel_id: string; recents: { message_seq: number }[] }) => [
      item.channel_id,
      item.recents.map(({ message_seq }) => message_seq),
    ]),
  );
  t.same(seqs, { [odd[0] ?? ""]: [3, 2], [odd[1] ?? ""]: [3] });
});

t.test("last_msg_seqs may have any length that fits into the size limit of the body", async (t) => {
  const [alice, bob] = names("alice", "bob");
  for (const n of range(1, 3)) await world.send(bob, person(alice), `m${n}`);
  const others = range(1, 10_000).map((n) => `${String(n).padStart(32, "0")}:2:1234567`);
  const last_msg_seqs = [...others, `${bob}:1:2`].join("|");
  const [{ recents }] = await sync(alice, { msg_count: 9, last_msg_seqs });
  t.same(
    recents.map(({ message_seq }: { message_seq: number }) => message_seq),
    [3],
  );
});

// Covers [feature: conversation/sync]
t.test(
  "only_unread, exclude_channel_types, page and page_size select a part of the conversation list",
  async (t) => {
    const [alice, bob] = names("alice", "bob");
    const channel = await world.newGroup([alice, bob]);
    for (const n of range(1, 3)) await world.send(`${alice}-${n}`, person(alice), "x", RED);
    await world.send(bob, channel, "x", RED);
    await change("clearUnread", alice, person(`${alice}-2`));
    const idsOf = async (fields: object) => {
      const list: { channel_id: string }[] = await sync(alice, fields);
      return list.map(({ channel_id }) => channel_id.replace(`${alice}-`, ""));
    };
    t.same(await idsOf({}), [channel.id, "3", "2", "1"]);
    t.same(await idsOf({ only_unread: 1 }), [channel.id, "3", "1"]);
    t.same(await idsOf({ exclude_channel_types: [2] }), ["3", "2", "1"]);
    t.same(await idsOf({ exclude_channel_types: [1, 2] }), []);
    t.same(await idsOf({ page: 1, page_size: 3 }), [channel.id, "3", "2"]);
    t.same(await idsOf({ page: 2, page_size: 3 }), ["1"]);
    t.same(await idsOf({ page: 3, page_size: 3 }), []);
  },
);

// Covers [feature: conversation/sync]
t.test(
  "POST /conversation/sync with `version` returns only the conversations that changed since that version",
  async (t) => {
    const [alice, bob, carol] = names("alice", "bob", "carol");
    for (const uid of [bob, carol]) await world.send(uid, person(alice), "x", RED);
    const all: { version: number; channel_id: string }[] = await sync(alice);
    const version = Math.max(...all.map((conversation) => conversation.version)) + 1;
    t.same(await sync(alice, { version }), []);
    await new Promise((resolve) => setTimeout(resolve, 3)); // versions are milliseconds
    await change("clearUnread", alice, person(bob));
    t.same(unreadOf(await sync(alice, { version })), [`${bob} 0`]);
    await world.send(carol, person(alice), "y", RED);
    t.same(unreadOf(await sync(alice, { version })), [`${carol} 2`, `${bob} 0`]);
  },
);

t.test("a read position stored during a sync is in that sync or in a later sync", async (t) => {
  const [alice, bob, carol] = names("alice", "bob", "carol");
  const members = range(1, 3000).map((n) => `member-with-a-long-name-${n}`);
  await world.send(bob, person(alice), "unread", RED);
  const missed: number[] = [];
  let version = 0;
  const positionsSince = async () => {
    const list: { channel_id: string; version: number; readed_to_msg_seq: number }[] = await sync(
      alice,
      { version },
    );
    version = Math.max(version, ...list.map((conversation) => conversation.version));
    return list.filter((item) => item.channel_id === bob).map((item) => item.readed_to_msg_seq);
  };
  await positionsSince();
  for (const round of range(1, 40)) {
    let isStored = false;
    const isRead = round % 2;
    const stored = change("setUnread", alice, person(bob), { unread: 1 - isRead }).finally(() => {
      isStored = true;
    });
    // The embedded store commits both changes together. The many members make the commit slower.
    const created = world.newGroup(members);
    const positions: number[] = [];
    while (!isStored) {
      await world.send(carol, person(alice), "new");
      positions.push(...(await positionsSince()));
    }
    await Promise.all([stored, created]);
    positions.push(...(await positionsSince()));
    if (!positions.includes(isRead)) missed.push(round);
  }
  t.same(missed, []);
});

// Covers [decisions: Values that clients really send]
t.test(
  "POST /conversation/sync treats a version more than a day in the future as 0, and skips malformed entries of last_msg_seqs",
  async (t) => {
    const [alice, bob] = names("alice", "bob");
    for (const n of range(1, 3)) await world.send(bob, person(alice), `m${n}`, RED);
    const [{ version }] = await sync(alice);
    const day = 86_400_000;
    const counts = async (versions: readonly number[]) => {
      const lists = versions.map((version) => sync(alice, { version }));
      return (await Promise.all(lists)).map(({ length }) => length);
    };
    t.same(await counts([version + 1, version + day - 60_000]), [0, 0]);
    t.same(await counts([version + day + 600_000, version * 1e6, 2 ** 63, 1e300]), [1, 1, 1, 1]);
    for (const last_msg_seqs of [
      `${alice}:1:undefined|${bob}:1:2`,
      `${bob}:1:2|${alice}:1:NaN`,
      `|${bob}:1:2|`,
      `x|${bob}:1:2|:::`,
    ]) {
      const [{ recents }] = await sync(alice, { msg_count: 9, last_msg_seqs });
      t.equal(recents.length, 1, last_msg_seqs);
    }
    for (const last_msg_seqs of [`${bob}:1:undefined`, "nonsense", "\u0000@:1:1", null]) {
      const [{ recents }] = await sync(alice, { msg_count: 9, last_msg_seqs });
      t.equal(recents.length, 3, JSON.stringify(last_msg_seqs));
    }
    for (const name of ["version", "msg_count", "only_unread", "exclude_channel_types", "page"])
      t.equal((await sync(alice, { [name]: null })).length, 1, `${name} null`);
  },
);

// Covers [feature: conversation/sync]
t.test("the messages in recents have the fields of /channel/messagesync", async (t) => {
  for (const kind of KINDS) {
    const fixture = await createFixture(t, world, kind);
    await fixture.start("s1");
    await fixture.addText("s1", "so far");
    const { uid } = fixture.bob;
    for (const isEnded of [false, true]) {
      if (isEnded) await fixture.post("s1", "___TextMessageEnd", "final");
      const [{ channel_id, channel_type, recents }] = await sync(uid, { msg_count: 1 });
      const body = { login_uid: uid, channel_id, channel_type };
      const { messages } = await world.ok("/channel/messagesync", body);
      t.same(recents, messages);
      t.equal(recents[0].channel_id, fixture.channel.id, "the channel as its sender named it");
      const { setting, stream_data, end, error } = recents[0];
      t.same([setting, atob(stream_data), end], [2, "so far", isEnded ? 1 : undefined]);
      t.equal(error, undefined, "the data of an end event is not an error in the default dialect");
    }
  }
});

t.test(
  "each sync by version returns an active stream with its text so far, and an ended stream once with its complete text",
  async (t) => {
    for (const kind of KINDS) {
      const fixture = await createFixture(t, world, kind);
      const { uid } = fixture.bob;
      const carol = world.name("carol");
      let version = 0;
      let last_msg_seqs = "";
      const texts = new Map<string, string>();
      /** Syncs like an app: keeps the highest version and the last seq of each conversation. */
      const pull = async () => {
        const list = await sync(uid, { version, last_msg_seqs, msg_count: 5 });
        const versions = list.map((item: { version: number }) => item.version);
        version = Math.max(version, ...versions);
        for (const { channel_id, channel_type, last_msg_seq, recents } of list) {
          last_msg_seqs += `${last_msg_seqs && "|"}${channel_id}:${channel_type}:${last_msg_seq}`;
          for (const { client_msg_no, stream_data, end } of recents)
            if (stream_data !== undefined)
              texts.set(client_msg_no, `${atob(stream_data)}${end ? "." : ""}`);
        }
        return list.length;
      };
      for (const [no, end] of [
        ["ended", () => fixture.end("ended")],
        ["forced", () => fixture.start("other", { query: "?force=1" })],
      ] as const) {
        texts.clear();
        await fixture.start(no);
        await fixture.addText(no, "half ");
        await world.send(carol, person(uid), "x", RED);
        await pull();
        t.equal(texts.get(no), "half ");
        await world.send(carol, person(uid), "y", RED);
        await fixture.addText(no, "and ");
        await pull();
        t.equal(texts.get(no), "half and ", "an active stream is returned again");
        await fixture.addText(no, "half");
        await end();
        await pull();
        t.equal(texts.get(no), "half and half.", "the end is returned");
      }
      await fixture.end("other");
      await pull();
      await world.send(carol, person(uid), "z", RED);
      await pull();
      version += 1;
      t.equal(await pull(), 0);
      await new Promise((resolve) => setTimeout(resolve, 3)); // versions are milliseconds
      texts.clear();
      await world.send(carol, person(uid), "last", RED);
      t.equal(await pull(), 1, "an ended stream is not returned with each call");
      t.equal(texts.size, 0);
    }
  },
);

// Covers [feature: clearUnread]
t.test("POST /conversations/clearUnread marks every message as read", async (t) => {
  const [alice, bob] = names("alice", "bob");
  for (const n of range(1, 3)) await world.send(bob, person(alice), String(n), RED);
  t.same(await change("clearUnread", alice, person(bob)), { status: "ok" });
  matchObject(t, await sync(alice), [{ unread: 0, readed_to_msg_seq: 3 }]);
  await world.send(bob, person(alice), "4", RED);
  matchObject(
    t,
    await sync(alice),
    [{ unread: 1, readed_to_msg_seq: 3 }],
    "only new messages are unread afterwards",
  );
});

// Covers [feature: setUnread]
t.test(
  "POST /conversations/setUnread raises or lowers the unread count, up to the number of messages",
  async (t) => {
    const [alice, bob] = names("alice", "bob");
    for (const n of range(1, 5)) await world.send(bob, person(alice), String(n), RED);
    for (const [unread, expected] of [
      [2, 2],
      [4, 4],
      [0, 0],
      [3, 3],
      [99, 5],
    ]) {
      t.same(await change("setUnread", alice, person(bob), { unread }), {
        status: "ok",
      });
      matchObject(t, await sync(alice), [
        { unread: expected, readed_to_msg_seq: 5 - (expected ?? 0) },
      ]);
    }
  },
);

// Covers [feature: conversations/delete]
t.test(
  "POST /conversations/delete hides a conversation until a new message arrives, and hides its current messages permanently",
  async (t) => {
    const [alice, bob] = names("alice", "bob");
    for (const n of range(1, 3)) await world.send(bob, person(alice), String(n), RED);
    t.same(await change("delete", alice, person(bob)), { status: "ok" });
    t.same(await sync(alice), []);
    matchObject(
      t,
      await sync(bob),
      [{ channel_id: alice, unread: 0 }],
      "the other user's conversation is unchanged",
    );
    await world.send(bob, person(alice), "4", RED);
    const [conversation, ...others] = await sync(alice, { msg_count: 9 });
    t.same(others, []);
    matchObject(t, conversation, { unread: 1, last_msg_seq: 4, offset_msg_seq: 3 });
    t.same(
      conversation.recents.map(({ message_seq }: { message_seq: number }) => message_seq),
      [4],
    );
  },
);

// Covers [feature: conversations/delete]
t.test("POST /conversations/delete with `message_seq` keeps later messages visible", async (t) => {
  const [alice, bob] = names("alice", "bob");
  for (const n of range(1, 3)) await world.send(bob, person(alice), String(n), RED);
  const upTo = (seq: number) => change("delete", alice, person(bob), { message_seq: seq });
  for (const _ of range(1, 2)) {
    t.same(await upTo(2), { status: "ok" });
    matchObject(t, await sync(alice), [{ unread: 1, last_msg_seq: 3, offset_msg_seq: 2 }]);
  }
  t.same(await upTo(0), { status: "ok" });
  t.same(await sync(alice), [], "0 means all messages");
});

// Covers [feature: Pushed at once]
t.test(
  "a change to a conversation over HTTP is pushed at once to every device of the user",
  async (t) => {
    const [alice, bob] = names("alice", "bob");
    const [phone, laptop] = [await world.join(t, alice), await world.join(t, alice, { flag: 2 })];
    const peer = await world.join(t, bob);
    await world.send(bob, person(alice), "x", RED);
    await change("clearUnread", alice, person(bob));
    await change("setUnread", alice, person(bob), { unread: 1 });
    await change("delete", alice, person(bob));
    for (const client of [phone, laptop]) {
      await client.ping();
      matchObject(t, client.pushesOf("conversation"), [
        { change: "read", conversation: { channel: person(bob), unread: 0 } },
        { change: "unread", conversation: { unread: 1 } },
        { change: "delete", conversation: { last: undefined } },
      ]);
    }
    await peer.ping();
    t.same(peer.pushesOf("conversation"), []);
  },
);

// Covers [feature: conversation/sync; decisions: Stream and history]
t.test("`recents` of a conversation contains an active stream with its text so far", async (t) => {
  const fixture = await createFixture(t, world);
  await fixture.start("s1");
  await fixture.addText("s1", "so far");
  const [{ recents, last_client_msg_no }] = await sync(fixture.bob.uid, {
    msg_count: 1,
  });
  t.equal(last_client_msg_no, "s1");
  matchObject(t, recents, [{ stream: { state: "active", text: "so far", next_index: 2 } }]);
});

// Covers [feature: conversation/sync; feature: clearUnread; feature: setUnread]
// Covers [feature: conversations/delete]
t.test(
  "a conversation call is refused if a field is missing or invalid, or if the user is not a member of the group",
  async (t) => {
    const [alice, bob] = names("alice", "bob");
    const refusal = (path: string, body: object) => world.refusal(path, body);
    for (const body of [
      {},
      { uid: "" },
      { uid: alice, page_size: 501 },
      { uid: alice, msg_count: -1 },
      { uid: alice, version: "1" },
      { uid: alice, last_msg_seqs: 1 },
    ])
      t.match(
        await refusal("/conversation/sync", body),
        /^400 bad_(request|id)$/,
        `${JSON.stringify(body)} is refused`,
      );
    const valid = { uid: alice, ...wire(person(bob)), unread: 1 };
    for (const call of ["clearUnread", "setUnread", "delete"]) {
      const path = `/conversations/${call}`;
      for (const change of [{ uid: undefined }, { channel_id: undefined }, { channel_type: 3 }])
        t.equal(await refusal(path, { ...valid, ...change }), "400 bad_request");
      t.equal(await refusal(path, { ...valid, ...wire(group("none")) }), "404 not_in_channel");
      t.equal(
        (await world.call(path, valid)).status,
        200,
        "a conversation without a message is accepted",
      );
    }
    for (const unread of [undefined, -1, 1.5, "1"])
      t.equal(await refusal("/conversations/setUnread", { ...valid, unread }), "400 bad_request");
  },
);
