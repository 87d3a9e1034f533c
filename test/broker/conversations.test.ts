// Conversations with the real store: pages of the list, changes, refused calls, and the
// notification of the user's sessions.

import type { ClusterEvent } from "../../src/broker/ports.ts";
import { matchObject } from "../support/match-object.ts";
import { t } from "../support/suite.ts";
import { textMessage } from "./inputs.ts";
import { group, person, rules, startNode, type TestNode } from "./node.ts";

type ConversationEvent = Extract<ClusterEvent, { kind: "conversation" }>;

const published = ({ events }: TestNode): readonly ConversationEvent[] =>
  events.flatMap((event) => (event.kind === "conversation" ? [event] : []));

const ALICE = { uid: "alice", origin: undefined };
const MAX_BYTES = 100_000;
const PAGE = { offset: 0, limit: 100, maxBytes: MAX_BYTES };

/**
 * Starts a node on which bob, carol and dave each send `count` messages to alice, in this order.
 */
async function nodeWithMessages(t: Parameters<typeof startNode>[0], count = 1) {
  const node = await startNode(t);
  for (const fromUid of ["bob", "carol", "dave"])
    for (let n = 0; n < count; n++) {
      node.clock.nowMs += 1;
      const input = textMessage({ fromUid, channel: person("alice") });
      await node.messages.send(input);
    }
  return node;
}

t.test(
  "the conversation list is read in pages, newest message first, and names each personal channel by the uid of the other user",
  async (t) => {
    const { conversations, messages, channels, clock } = await nodeWithMessages(t);
    await channels.create(rules(group("g")), ["alice", "bob"]);
    clock.nowMs += 1;
    await messages.send(textMessage({ fromUid: "bob", channel: group("g") }));
    clock.nowMs += 1;
    await messages.send(textMessage({ channel: person("bob") }));
    const names = async (offset: number, limit: number) => {
      const page = await conversations.list("alice", {
        ...{ offset, limit, maxBytes: MAX_BYTES },
      });
      return [page.conversations.map(({ channel }) => channel.id), page.more];
    };
    t.same(await names(0, 100), [["bob", "g", "dave", "carol"], false]);
    t.same(await names(0, 4), [["bob", "g", "dave", "carol"], false]);
    t.same(await names(0, 3), [["bob", "g", "dave"], true]);
    t.same(await names(3, 3), [["carol"], false]);
    t.same(await names(4, 3), [[], false]);
  },
);

t.test("a page ends before it exceeds the size limit, and `more` is true", async (t) => {
  const { conversations, messages, clock } = await nodeWithMessages(t);
  for (const fromUid of ["bob", "carol", "dave"]) {
    clock.nowMs += 1;
    const payload = Buffer.from(JSON.stringify({ type: 1, x: "x".repeat(900) }));
    const channel = person("alice");
    await messages.send(textMessage({ fromUid, channel, payload }));
  }
  const names = async (offset: number, maxBytes: number) => {
    const range = { offset, limit: 100, maxBytes };
    const page = await conversations.list("alice", range);
    return [...page.conversations.map(({ channel }) => channel.id), page.more];
  };
  t.same(await names(0, 1), ["dave", true], "a page has at least one conversation");
  t.same(await names(0, 1900), ["dave", true]);
  t.same(await names(0, 2800), ["dave", "carol", true]);
  t.same(await names(2, 2800), ["bob", false]);
  t.same(await names(3, 2800), [false]);
});

t.test(
  "`heads` returns conversations without payloads, the one with the newest message first",
  async (t) => {
    const { conversations } = await nodeWithMessages(t, 2);
    const { conversations: list } = await conversations.list("alice", PAGE);
    const expected = list.map(({ last, ...fields }) => {
      if (last === undefined) throw new Error("listed without a message");
      const { messageId, messageSeq, clientMsgNo, timestampMs } = last;
      const head = { messageId, messageSeq, clientMsgNo, timestampMs };
      return { ...fields, last: head };
    });
    t.equal(expected.length, 3);
    t.same(await conversations.heads("alice"), expected);
    t.same(await conversations.heads("nobody"), []);
  },
);

t.test("a conversation has the unread count, the last message and the read position", async (t) => {
  const { conversations } = await nodeWithMessages(t, 3);
  const { conversations: list } = await conversations.list("alice", PAGE);
  matchObject(t, list[0], {
    channel: person("dave"),
    ...{ headSeq: 3, readSeq: 0, unread: 3, deletedSeq: 0 },
    last: { messageSeq: 3, fromUid: "dave" },
  });
  const own = await conversations.list("dave", PAGE);
  matchObject(t, own.conversations, [{ channel: person("alice"), unread: 0 }]);
  t.same(await conversations.list("nobody", PAGE), {
    conversations: [],
    more: false,
    readCount: 0,
  });
});

t.test("a change returns the new state and notifies the user's sessions once", async (t) => {
  const node = await nodeWithMessages(t, 3);
  const { conversations } = node;
  const by = { uid: "alice", origin: "s1" };
  const change = { kind: "read", seq: 2 } as const;
  const changed = await conversations.change(by, person("bob"), change);
  matchObject(t, changed, { readSeq: 2, unread: 1, channel: person("bob") });
  t.same(published(node), [
    {
      kind: "conversation",
      ...{ uid: "alice", origin: "s1", change: "read", conversation: changed },
    },
  ]);
  const { conversations: list } = await conversations.list("alice", PAGE);
  matchObject(
    t,
    list.find(({ channel }) => channel.id === "bob"),
    { unread: 1 },
  );
});

t.test("the read position moves forward and back within the seqs of the channel", async (t) => {
  const { conversations } = await nodeWithMessages(t, 3);
  const change = (change: Parameters<typeof conversations.change>[2]) =>
    conversations.change(ALICE, person("bob"), change);
  matchObject(t, await change({ kind: "read", seq: 99 }), {
    readSeq: 3,
    unread: 0,
  });
  matchObject(t, await change({ kind: "unread", unread: 2 }), {
    readSeq: 1,
    unread: 2,
  });
  matchObject(t, await change({ kind: "read", seq: 0 }), { readSeq: 0, unread: 3 });
  matchObject(t, await change({ kind: "unread", unread: 99 }), { unread: 3 });
  matchObject(t, await change({ kind: "unread", unread: 0 }), {
    readSeq: 3,
    unread: 0,
  });
});

t.test("a deleted conversation is not listed until a new message arrives", async (t) => {
  const { conversations, messages, clock } = await nodeWithMessages(t, 2);
  const deleted = await conversations.change(ALICE, person("bob"), {
    kind: "delete",
  });
  matchObject(t, deleted, { deletedSeq: 2, unread: 0, last: undefined });
  const listed = async () =>
    (await conversations.list("alice", PAGE)).conversations.map(
      ({ channel, unread }) => `${channel.id} ${unread}`,
    );
  t.same(await listed(), ["dave 2", "carol 2"]);
  clock.nowMs += 1;
  await messages.send(textMessage({ fromUid: "bob", channel: person("alice") }));
  t.same(await listed(), ["bob 1", "dave 2", "carol 2"]);
});

t.test(
  "a user cannot change the conversation of a group of which the user is not a member",
  async (t) => {
    const node = await startNode(t);
    await node.channels.create(rules(group("g")), ["bob"]);
    for (const channel of [group("g"), group("none")])
      await t.rejects(node.conversations.change(ALICE, channel, { kind: "read", seq: 1 }), {
        code: "not_in_channel",
      });
    t.same(published(node), []);
  },
);

t.test("a conversation call with an invalid id, seq or unread count is refused", async (t) => {
  const node = await nodeWithMessages(t);
  const { conversations } = node;
  const read = { kind: "read", seq: 1 } as const;
  const bad = { code: "bad_id" };
  await t.rejects(conversations.list("a@b", PAGE), bad);
  await t.rejects(conversations.list("", PAGE), bad);
  await t.rejects(conversations.heads("a@b"), bad);
  await t.rejects(conversations.change({ ...ALICE, uid: "" }, person("bob"), read), bad);
  await t.rejects(conversations.change(ALICE, person("b&b"), read), bad);
  for (const invalid of [
    { kind: "read", seq: -1 },
    { kind: "read", seq: 1.5 },
    { kind: "read", seq: Number.NaN },
    { kind: "unread", unread: -1 },
    { kind: "unread", unread: 2 ** 53 },
  ] as const)
    await t.rejects(conversations.change(ALICE, person("bob"), invalid), {
      code: "bad_request",
    });
  t.same(published(node), []);
});
