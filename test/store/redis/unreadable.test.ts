// A record in Redis that this build cannot decode does not hide other records: history,
// conversations, inboxes and streams leave it out and count it.

import t, { type Test } from "tap";
import { STREAM_CONTENT, STREAM_START } from "../../../src/broker/model.ts";
import type { HistoryRange } from "../../../src/broker/ports.ts";
import { draftOf } from "../../contract/store-fixture.ts";
import { startRedis } from "../../support/redis.ts";
import { openStore, type StoreNode } from "./one-store.ts";

const { url } = await startRedis(t);

const GROUP = { id: "g", type: 2 } as const;
const KEY = "2:g";
const FUTURE = Buffer.from([0x91, 99]); // a MessagePack list whose version is 99

async function send({ store, time }: StoreNode, count: number): Promise<void> {
  for (let sent = 0; sent < count; sent++) {
    time.nowMs += 1;
    await store.append(draftOf({ key: KEY, channel: GROUP, fromUid: "a" }));
  }
}

/** Stores a record of a newer build as the channel's next message. */
async function sendUnreadable({ link }: StoreNode, messageId = 1000): Promise<void> {
  const head = link.keys.channel("head", KEY);
  const seq = Number(await link.call("hincrby", head, "seq", 1));
  await link.call("hincrby", head, "pub", 1);
  const log = link.keys.channel("log", KEY);
  await link.call("xadd", log, `${seq}-${messageId}`, "c", 0, "r", FUTURE);
}

/** Returns a message id of this time (`reserve_ids` of `lua/shared.lua`). */
const idAt = (ms: number): number => (ms - Date.UTC(2024, 0, 1)) * 4096;

async function openGroup(t: Test): Promise<StoreNode> {
  const node = await openStore(t, url);
  const flags = { ban: false, disband: false, sendBan: false, clientEvents: true };
  const info = { ...GROUP, ...flags, allowStranger: false, large: false };
  await node.store.createChannel(info, ["a", "b"]);
  return node;
}

async function seqsOf(
  { store }: StoreNode,
  range: Partial<HistoryRange> = {},
): Promise<{ readonly seqs: readonly number[]; readonly more: boolean }> {
  const { messages, more } = await store.readMessages(KEY, {
    ...{ fromSeq: 1, toSeq: 100, limit: 100, maxBytes: 1_000_000 },
    reverse: false,
    ...range,
  });
  return { seqs: messages.map(({ messageSeq }) => messageSeq), more };
}

t.test("history leaves out messages that cannot be decoded", async (t) => {
  const node = await openGroup(t);
  await send(node, 1);
  for (let i = 0; i < 2; i++) await sendUnreadable(node);
  await send(node, 2);
  await sendUnreadable(node);
  t.same(await seqsOf(node), { seqs: [1, 4, 5], more: false });
  t.same(await seqsOf(node, { reverse: true }), {
    ...{ seqs: [5, 4, 1], more: false },
  });
  t.ok(node.store.stats().unreadable > 0, "the messages are counted");
  t.equal(node.problems.length, 1, "the messages are reported once");
});

t.test("each page of history except the last contains at least one message", async (t) => {
  const node = await openGroup(t);
  await send(node, 1);
  for (let i = 0; i < 3; i++) await sendUnreadable(node);
  await send(node, 1);
  await sendUnreadable(node);
  const page = { fromSeq: 2, limit: 1 };
  t.same(await seqsOf(node, page), { seqs: [5], more: true });
  t.same(await seqsOf(node, { fromSeq: 6, limit: 1 }), {
    ...{ seqs: [], more: false },
  });
  t.same(await seqsOf(node, { toSeq: 4, limit: 1, reverse: true }), {
    ...{ seqs: [1], more: false },
  });
  t.same(
    (await seqsOf(node, { limit: 1, maxBytes: 1, fromSeq: 2 })).seqs,
    [5],
    "a page contains a message that exceeds maxBytes",
  );
});

t.test("a conversation shows its newest message that can be decoded", async (t) => {
  const node = await openGroup(t);
  await send(node, 2);
  for (let i = 0; i < 2; i++) await sendUnreadable(node);
  const conversation = await node.store.conversation("b", GROUP);
  t.equal(conversation?.last?.messageSeq, 2);
  t.equal(conversation?.headSeq, 4);
  const bounds = { limit: 10, maxBytes: 1_000_000 };
  const list = await node.store.readConversations("b", [GROUP], bounds);
  t.equal(list.conversations[0]?.last?.messageSeq, 2);
});

t.test("a conversation whose messages cannot be decoded has no newest message", async (t) => {
  const node = await openGroup(t);
  await sendUnreadable(node);
  const conversation = await node.store.conversation("b", GROUP);
  t.equal(conversation?.last, undefined);
  const bounds = { limit: 10, maxBytes: 1_000_000 };
  const list = await node.store.readConversations("b", [GROUP], bounds);
  t.same(list, { conversations: [], more: false });
});

t.test("a sweep removes undecodable messages when their retention time ends", async (t) => {
  const node = await openStore(t, url, { limits: { retentionS: 3600 } });
  await send(node, 1);
  await sendUnreadable(node, idAt(node.time.nowMs));
  await send(node, 1);
  const log = node.link.keys.channel("log", KEY);
  t.equal(await node.store.sweep(), 0);
  t.equal(await node.link.call("xlen", log), 3);
  node.time.nowMs += 3_600_001;
  await node.store.sweep();
  t.equal(await node.link.call("xlen", log), 0);
});

t.test("copies that cannot be decoded are skipped when an inbox is read", async (t) => {
  const node = await openGroup(t);
  const { store, link } = node;
  const command = {
    ...draftOf({ key: KEY, channel: GROUP, fromUid: "a" }),
    ...{ recipients: ["b"], pushOnlyRecipients: [] },
  };
  const inbox = link.keys.user("inbox", "b");
  const addUnreadable = async () => {
    const seq = await link.call("incr", link.keys.user("inboxSeq", "b"));
    const endMs = node.time.nowMs + 1_000_000;
    const entry = ["x", endMs, "i", 5, "n", 1, "r", FUTURE];
    await link.call("xadd", inbox, `${Number(seq)}-0`, ...entry);
  };
  await addUnreadable();
  await addUnreadable();
  await store.appendCommand(command);
  await addUnreadable();
  const page = { limit: 1, maxBytes: 1_000_000 };
  const first = await store.readInbox("b", 0, page);
  t.same(
    first.map(({ inboxSeq }) => inboxSeq),
    [3],
  );
  t.same(await store.readInbox("b", 3, page), [], "a page is empty only at the end");
});

/** Damages to a stream, by their names. */
const DAMAGES: Readonly<Record<string, (node: StoreNode) => Promise<unknown>>> = {
  "an ending of a newer build": ({ link }) =>
    link.call("hset", link.keys.channel("logHead", KEY, "s"), "c", 99),
  "frames that are cut off": async ({ link }) => {
    const frames = link.keys.channel("logFrames", KEY, "s");
    const bytes = (await link.call("get", frames)) as Buffer;
    await link.call("set", frames, bytes.subarray(0, bytes.length - 9));
  },
  "frames of zeros": async ({ link }) => {
    const frames = link.keys.channel("logFrames", KEY, "s");
    await link.call("set", frames, Buffer.alloc(Number(await link.call("strlen", frames))));
  },
};

t.test("an active stream that cannot be decoded is not returned, nor is its message", async (t) => {
  for (const [name, damage] of Object.entries(DAMAGES)) {
    const node = await openGroup(t);
    const { store, time } = node;
    for (const type of [STREAM_START, STREAM_CONTENT])
      await store.streamEvent({
        ...{ key: KEY, channel: GROUP, fromUid: "a", clientMsgNo: "s" },
        ...{ eventId: type, type, data: "text", force: false },
        timestampMs: time.nowMs,
      });
    t.equal((await store.activeStreams([KEY]))[0]?.clientMsgNo, "s");
    await damage(node);
    t.equal((await store.activeStreams([KEY]))[0], undefined, name);
    await send(node, 1);
    t.same((await seqsOf(node)).seqs, [2], `${name}: only the stream's message is left out`);
    t.ok(node.store.stats().unreadable > 0, `${name} is counted`);
  }
});
