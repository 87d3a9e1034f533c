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
const PAGE = { cursor: undefined, limit: 100, maxBytes: MAX_BYTES };

const ALL = { version: 0, onlyUnread: false, excludedTypes: [] };

/** Returns the names of the conversations of alice, one string for each page. */
async function pagesOf(
  { list }: Pick<TestNode["conversations"], "list">,
  bounds: { readonly limit: number; readonly maxBytes: number },
): Promise<readonly string[]> {
  const pages: string[] = [];
  let cursor: string | undefined;
  do {
    const page = await list("alice", { ...bounds, cursor });
    pages.push(page.conversations.map(({ channel }) => channel.id).join(" "));
    cursor = page.cursor;
  } while (cursor !== undefined);
  return pages;
}

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
    const pages = (limit: number) => pagesOf(conversations, { limit, maxBytes: MAX_BYTES });
    t.same(await pages(100), ["bob g dave carol"]);
    t.same(await pages(4), ["bob g dave carol"]);
    t.same(await pages(3), ["bob g dave", "carol"]);
    t.same(await pages(2), ["bob g", "dave carol"]);
  },
);

t.test(
  "a page of the conversation list stays within its size limit, but has at least one conversation",
  async (t) => {
    const { conversations, messages, clock } = await nodeWithMessages(t);
    for (const fromUid of ["bob", "carol", "dave"]) {
      clock.nowMs += 1;
      const payload = Buffer.from(JSON.stringify({ type: 1, x: "x".repeat(900) }));
      const channel = person("alice");
      await messages.send(textMessage({ fromUid, channel, payload }));
    }
    const pages = (maxBytes: number) => pagesOf(conversations, { limit: 100, maxBytes });
    t.same(await pages(1), ["dave", "carol", "bob"], "a page has at least one conversation");
    t.same(await pages(1900), ["dave", "carol", "bob"]);
    t.same(await pages(2800), ["dave carol", "bob"]);
  },
);

t.test(
  "`select` returns conversations without payloads, in the order of their newest messages",
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
    const range = { cursor: undefined, limit: 100 };
    t.same((await conversations.select("alice", ALL, range)).heads, expected);
    t.same((await conversations.select("nobody", ALL, range)).heads, []);
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
    cursor: undefined,
    readCount: 0,
  });
});

t.test(
  "a change of a conversation returns the new state and notifies the user's sessions once",
  async (t) => {
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
  },
);

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

t.test("a user cannot change the conversation of a group without being a member", async (t) => {
  const node = await startNode(t);
  await node.channels.create(rules(group("g")), ["bob"]);
  for (const channel of [group("g"), group("none")])
    await t.rejects(node.conversations.change(ALICE, channel, { kind: "read", seq: 1 }), {
      code: "not_in_channel",
    });
  t.same(published(node), []);
});

t.test(
  "listing or changing conversations with an invalid id, seq or unread count is refused",
  async (t) => {
    const node = await nodeWithMessages(t);
    const { conversations } = node;
    const read = { kind: "read", seq: 1 } as const;
    const bad = { code: "bad_id" };
    await t.rejects(conversations.list("a@b", PAGE), bad);
    await t.rejects(conversations.list("", PAGE), bad);
    await t.rejects(conversations.select("a@b", ALL, PAGE), bad);
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
  },
);
