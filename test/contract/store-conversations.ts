// Store contract: lists of conversations, and the content of a conversation.

import type { Test } from "tap";
import { channelKey, type StreamSnapshot } from "../../src/broker/model.ts";
import type {
  ConversationChange,
  ConversationRange,
  MessageDraft,
} from "../../src/broker/ports.ts";
import { ALL, conversationsIn, conversationsOf } from "../support/conversation-list.ts";
import {
  changeConversation,
  conversationIds,
  conversationNumbers,
  DELETE,
  G,
  personalChannel,
  readUpTo,
  send,
  UNBOUNDED,
  withGroup,
} from "./conversation-fixture.ts";
import { draftOf, type FixtureFactory, group, TEMPORARY } from "./store-fixture.ts";

export async function conversations(t: Test, createFixture: FixtureFactory): Promise<void> {
  lists(t, createFixture);
}

function lists(t: Test, createFixture: FixtureFactory): void {
  t.test(
    "the list of conversations contains the user's groups and personal channels with a message, newest message first",
    async (t) => {
      const fixture = await withGroup(createFixture, t);
      const { store } = fixture;
      for (const id of ["h", "empty", "gone"]) await store.createChannel(group(id), ["bob"]);
      await store.createChannel(group("other"), ["alice"]);
      await store.addSubscribers(group("g"), ["temp"], TEMPORARY);
      const sends: Partial<MessageDraft>[] = [
        { channel: { id: "gone", type: 2 }, fromUid: "bob" },
        { channel: personalChannel("bob"), fromUid: "alice" },
        { channel: { id: "other", type: 2 } },
        { channel: G },
        { channel: personalChannel("dave"), fromUid: "bob" },
        { channel: { id: "h", type: 2 }, fromUid: "bob" },
        { channel: personalChannel("bob"), fromUid: "bob" },
        { channel: personalChannel("carol"), fromUid: "alice" },
      ];
      for (const over of sends) {
        await send(fixture, 1, over);
        fixture.nowMs += 1;
      }
      await store.updateChannel(group("gone"), { disband: true });
      const check = async () => {
        t.same(await conversationIds(fixture, "bob"), ["bob", "h", "dave", "g", "alice"]);
        t.same(await conversationIds(fixture, "alice"), ["carol", "g", "other", "bob"]);
        t.same(await conversationIds(fixture, "temp"), ["g"]);
        t.same(await conversationIds(fixture, "dave"), ["bob"]);
        t.same(await conversationIds(fixture, "nobody"), []);
      };
      await check();
      await fixture.reopen();
      await check();
    },
  );

  t.test(
    "a list of the newest conversations reflects messages, deletions, membership changes, expiry and reads, even after a restart",
    async (t) => {
      const fixture = await withGroup(createFixture, t);
      const { store } = fixture;
      const ids = ["a", "b", "c", "d", "e", "f"];
      for (const id of ids) {
        await store.createChannel(group(id), ["bob", "alice"]);
        await send(fixture, 1, { channel: { id, type: 2 } });
        fixture.nowMs += 10;
      }
      const newest = async (count: number, over: Partial<ConversationRange> = {}) => {
        const range = { sinceMs: 0, beforeId: Number.MAX_SAFE_INTEGER, count, ...over };
        return (await conversationsIn(fixture.store, "bob", range)).map(
          ({ channel }) => channel.id,
        );
      };
      const to = (id: string) => ({ id, type: 2 }) as const;
      t.same(await newest(2), ["f", "e"]);
      await send(fixture, 1, { channel: to("a") });
      fixture.nowMs += 10;
      t.same(await newest(2), ["a", "f"], "a message moves its group to the front of the list");
      await send(fixture, 1, { channel: personalChannel("bob") });
      t.same(await newest(2), ["alice", "a"], "the first personal message is in the list");
      await store.changeConversation("bob", to("a"), { kind: "delete" });
      t.same(await newest(2), ["alice", "f"], "a deleted conversation is not in the list");
      await store.removeSubscribers(group("f"), ["bob"], "permanent");
      t.same(await newest(2), ["alice", "e"], "a group that the user left is not in the list");
      await store.updateChannel(group("e"), { disband: true });
      t.same(await newest(2), ["alice", "d"], "a disbanded group is not in the list");
      await store.addSubscribers(group("f"), ["bob"], { membership: "permanent", reset: false });
      t.same(await newest(3), ["alice", "f", "d"], "a group that the user joined is in the list");
      await send(fixture, 1, { channel: to("c"), expireS: 5 });
      t.same(await newest(2), ["c", "alice"]);
      fixture.nowMs += 6000;
      t.same(await newest(2), ["alice", "f"], "an expired message does not count");
      t.same(await newest(9), ["alice", "f", "d", "c", "b"]);
      const sinceMs = fixture.nowMs;
      await store.changeConversation("bob", to("b"), { kind: "read", seq: 1 });
      const check = async () => {
        t.same(
          await newest(9, { sinceMs }),
          ["b"],
          "the range contains only conversations that changed since that time",
        );
        const [, second] = await conversationsOf(fixture.store, "bob");
        const beforeId = second?.last.messageId ?? 0;
        t.same(await newest(2, { beforeId }), ["d", "c"], "the next page continues the range");
      };
      await check();
      await fixture.reopen();
      await check();
    },
  );

  t.test(
    "a range of unread conversations contains exactly the conversations with unread messages, before and after a restart",
    async (t) => {
      const fixture = await withGroup(createFixture, t);
      const { store } = fixture;
      const to = (id: string) => ({ id, type: 2 }) as const;
      const ids = [
        "unread",
        "read",
        "own",
        "silent",
        "joined",
        "large",
        "expired",
        "again",
        "left",
      ];
      for (const id of ids) {
        const members = id === "joined" ? ["alice"] : ["alice", "bob"];
        await store.createChannel({ ...group(id), large: id === "large" }, members);
        const header = { noPersist: false, redDot: id !== "silent" };
        await send(fixture, 1, { channel: to(id), header, expireS: id === "expired" ? 5 : 0 });
        fixture.nowMs += 10;
      }
      await send(fixture, 1, { channel: to("own"), fromUid: "bob" });
      await send(fixture, 1, { channel: personalChannel("bob") });
      await send(fixture, 1, { channel: personalChannel("carol"), fromUid: "bob" });
      await store.addSubscribers(group("joined"), ["bob"], {
        ...{ membership: "permanent", reset: false },
      });
      const unread = async (over: Partial<ConversationRange> = {}) => {
        const range = { ...ALL, ...over, onlyUnread: true };
        const heads = await conversationsIn(fixture.store, "bob", range);
        return heads.map(({ channel }) => channel.id).sort();
      };
      const all = ["again", "alice", "expired", "left", "read", "unread"];
      t.same(await unread(), all);
      await store.removeSubscribers(group("left"), ["bob"], "permanent");
      fixture.nowMs += 6000;
      const change = (id: string, change: ConversationChange) =>
        fixture.store.changeConversation("bob", to(id), change);
      await change("read", readUpTo(1));
      await change("again", readUpTo(1));
      t.same(await unread(), ["alice", "unread"]);
      const sinceMs = fixture.nowMs;
      await change("again", { kind: "unread", unread: 1 });
      const check = async () => {
        t.same(await unread(), ["again", "alice", "unread"]);
        t.same(
          await unread({ sinceMs }),
          ["again"],
          "the range contains unread conversations that changed since that time",
        );
        t.same(await unread({ excludedTypes: [2] }), ["alice"], "without groups");
        t.same(await unread({ excludedTypes: [1] }), ["again", "unread"], "only groups");
      };
      await check();
      await fixture.reopen();
      await check();
      await send(fixture, 1, { channel: to("read") });
      await send(fixture, 1, { channel: to("joined") });
      t.same(await unread(), ["again", "alice", "joined", "read", "unread"]);
      await change("unread", DELETE);
      await send(fixture, 1, { channel: to("joined"), fromUid: "bob" });
      t.same(await unread(), ["again", "alice", "read"]);
    },
  );

  t.test("unstored messages and commands do not create a conversation", async (t) => {
    const fixture = await withGroup(createFixture, t);
    const header = { noPersist: true, redDot: true };
    await send(fixture, 1, { header, channel: personalChannel("bob") });
    await send(fixture, 1, { header, clientMsgNo: "n" });
    await fixture.store.appendCommand({
      ...draftOf({ channel: personalChannel("bob") }),
      recipients: ["bob"],
      pushOnlyRecipients: [],
    });
    t.same(await conversationIds(fixture, "bob"), []);
    t.same(await conversationNumbers(fixture, "bob"), [0, 0, 0, 0]);
  });

  t.test(
    "a conversation contains its newest message and the time of the last change",
    async (t) => {
      const fixture = await withGroup(createFixture, t);
      await send(fixture, 1);
      fixture.nowMs += 1000;
      const draft = draftOf({ clientMsgNo: "last", tagKey: "tag" });
      const { messageId } = await fixture.store.append(draft);
      const check = async () => {
        const conversation = await fixture.store.conversation("bob", G);
        t.equal(conversation?.last?.messageId, messageId);
        t.equal(conversation?.last?.messageSeq, 2);
        t.same([...(conversation?.last?.payload ?? [])], [...draft.payload]);
        t.equal(conversation?.changedAtMs, conversation?.last?.timestampMs);
        const list = await fixture.store.readConversations("bob", [G], UNBOUNDED);
        t.same(list, { conversations: [conversation], more: false });
        const [head] = await conversationsOf(fixture.store, "bob");
        const { timestampMs } = conversation?.last ?? {};
        const last = { messageId, messageSeq: 2, clientMsgNo: "last" };
        t.same(head, { ...conversation, last: { ...last, timestampMs } });
      };
      await check();
      await fixture.reopen();
      await check();
    },
  );

  t.test(
    "conversations are read in the requested order, up to `limit` and `maxBytes`",
    async (t) => {
      const fixture = await withGroup(createFixture, t);
      const payload = new Uint8Array(1000);
      const peers = ["alice", "carol", "dave"];
      for (const fromUid of peers)
        await send(fixture, 2, { channel: personalChannel("bob"), fromUid, payload });
      const channels = ["dave", "nobody", "alice", "carol"].map(personalChannel);
      const read = async (limit: number, maxBytes: number, from = 0) => {
        const bounds = { limit, maxBytes };
        const page = await fixture.store.readConversations(
          ...(["bob", [{ id: "h", type: 2 }, ...channels.slice(from)]] as const),
          bounds,
        );
        return [...page.conversations.map((c) => c.channel.id), page.more];
      };
      const check = async () => {
        t.same(await read(9, 9000), ["dave", "alice", "carol", false]);
        t.same(await read(3, 9000), ["dave", "alice", "carol", false]);
        t.same(await read(2, 9000), ["dave", "alice", true]);
        t.same(await read(9, 2999), ["dave", "alice", true]);
        t.same(await read(9, 1999), ["dave", true]);
        t.same(await read(9, 1), ["dave", true], "at least one conversation is returned");
        t.same(await read(9, 1, 3), ["carol", false]);
        t.same(await read(9, 9000, 4), [false]);
      };
      await check();
      await fixture.reopen();
      await check();
    },
  );

  t.test("all data of a stream counts towards `maxBytes` of a conversation list", async (t) => {
    const fixture = await withGroup(createFixture, t);
    for (const id of ["alice", "carol"])
      for (const [type, data] of [
        ["___TextMessageStart", "x".repeat(400)],
        ["___ToolCallArgs", "x".repeat(400)],
        ["___TextMessageEnd", "x".repeat(400)],
      ] as const)
        await fixture.store.streamEvent({
          ...{ key: channelKey(personalChannel("bob"), id), channel: personalChannel("bob") },
          ...{ fromUid: id, clientMsgNo: "s", type, data, force: false },
          ...{ eventId: undefined, timestampMs: undefined },
        });
    const channels = ["alice", "carol"].map(personalChannel);
    const count = async (maxBytes: number) => {
      const bounds = { limit: 9, maxBytes };
      return (await fixture.store.readConversations("bob", channels, bounds)).conversations.length;
    };
    t.equal(await count(2400), 1);
    t.equal(await count(4000), 2);
  });

  t.test(
    "a conversation shows a running stream as its last message, with the text so far",
    async (t) => {
      const fixture = await withGroup(createFixture, t);
      const stream = (type: string, data: string) =>
        fixture.store.streamEvent({
          ...{ key: "2:g", channel: G, fromUid: "alice", clientMsgNo: "s" },
          ...{ eventId: undefined, type, data, timestampMs: undefined },
          force: false,
        });
      await stream("___TextMessageStart", "");
      await stream("___TextMessageContent", "Hello");
      const text = (snapshot: StreamSnapshot | undefined) =>
        [snapshot?.state, snapshot?.text].join(" ");
      const read = () => fixture.store.conversation("bob", G);
      const active = await read();
      t.equal(text(active?.last?.stream), "active Hello");
      t.equal(active?.unread, 1);
      await stream("___TextMessageEnd", "");
      await fixture.reopen();
      const closed = await read();
      t.equal(text(closed?.last?.stream), "closed Hello");
      t.equal(closed?.unread, 1);
    },
  );

  t.test(
    "a conversation without messages has all positions at 0, and changes to it have no effect",
    async (t) => {
      const fixture = await withGroup(createFixture, t);
      const empty = {
        ...{ headSeq: 0, readSeq: 0, unread: 0, deletedSeq: 0 },
        ...{ changedAtMs: 0, last: undefined },
      };
      t.same(await fixture.store.conversation("bob", G), { channel: G, ...empty });
      t.same(await fixture.store.conversation("bob", personalChannel("dave")), {
        channel: personalChannel("dave"),
        ...empty,
      });
      t.same(await changeConversation(fixture, readUpTo(5)), [0, 0, 0, 0]);
      t.same(await changeConversation(fixture, DELETE), [0, 0, 0, 0]);
    },
  );
}
