// A record in Redis that this build cannot read hides no other: history, the list of conversations,
// the inbox and streams leave it out and count it.

import t, { type Test } from "tap";
import { STREAM_START } from "../../../src/broker/model.ts";
import type { HistoryRange } from "../../../src/broker/ports.ts";
import { draftOf } from "../../contract/store-fixture.ts";
import { startRedis } from "../../support/redis.ts";
import { type OneStore, openStore } from "./one-store.ts";

const { url } = await startRedis(t);

const GROUP = { id: "g", type: 2 } as const;
const KEY = "2:g";
const FUTURE = Buffer.from([0x91, 99]); // a list that begins with version 99

async function send({ store, time }: OneStore, count: number): Promise<void> {
  for (let sent = 0; sent < count; sent++) {
    time.nowMs += 1;
    await store.append(draftOf({ key: KEY, channel: GROUP, fromUid: "a" }));
  }
}

/** Puts a record of a newer build in place of the channel's next message. */
async function sendUnreadable({ link }: OneStore, messageId = 1000): Promise<void> {
  const head = link.keys.channel("head", KEY);
  const seq = Number(await link.call("hincrby", head, "seq", 1));
  await link.call("hincrby", head, "pub", 1);
  const log = link.keys.channel("log", KEY);
  await link.call("xadd", log, `${seq}-${messageId}`, "c", 0, "r", FUTURE);
}

/** A message id of that time (`reserve_ids` of `lua/shared.lua`). */
const idAt = (ms: number): number => (ms - Date.UTC(2024, 0, 1)) * 4096;

async function openGroup(t: Test): Promise<OneStore> {
  const one = await openStore(t, url);
  const flags = { ban: false, disband: false, sendBan: false };
  const info = { ...GROUP, ...flags, allowStranger: false, large: false };
  await one.store.createChannel(info, ["a", "b"]);
  return one;
}

async function seqsOf(
  { store }: OneStore,
  range: Partial<HistoryRange> = {},
): Promise<{ readonly seqs: readonly number[]; readonly more: boolean }> {
  const { messages, more } = await store.readMessages(KEY, {
    ...{ fromSeq: 1, toSeq: 100, limit: 100, maxBytes: 1_000_000 },
    reverse: false,
    ...range,
  });
  return { seqs: messages.map(({ messageSeq }) => messageSeq), more };
}

t.test("history leaves out what cannot be read", async (t) => {
  const one = await openGroup(t);
  await send(one, 1);
  for (let i = 0; i < 2; i++) await sendUnreadable(one);
  await send(one, 2);
  await sendUnreadable(one);
  t.same(await seqsOf(one), { seqs: [1, 4, 5], more: false });
  t.same(await seqsOf(one, { reverse: true }), {
    ...{ seqs: [5, 4, 1], more: false },
  });
  t.ok(one.store.stats().unreadable > 0, "they are counted");
  t.equal(one.problems.length, 1, "and reported once");
});

t.test("each page of history has a message until the end", async (t) => {
  const one = await openGroup(t);
  await send(one, 1);
  for (let i = 0; i < 3; i++) await sendUnreadable(one);
  await send(one, 1);
  await sendUnreadable(one);
  const page = { fromSeq: 2, limit: 1 };
  t.same(await seqsOf(one, page), { seqs: [5], more: true });
  t.same(await seqsOf(one, { fromSeq: 6, limit: 1 }), {
    ...{ seqs: [], more: false },
  });
  t.same(await seqsOf(one, { toSeq: 4, limit: 1, reverse: true }), {
    ...{ seqs: [1], more: false },
  });
  t.same(
    (await seqsOf(one, { limit: 1, maxBytes: 1, fromSeq: 2 })).seqs,
    [5],
    "within any bound of bytes",
  );
});

t.test("a conversation shows its newest readable message", async (t) => {
  const one = await openGroup(t);
  await send(one, 2);
  for (let i = 0; i < 2; i++) await sendUnreadable(one);
  const found = await one.store.conversation("b", GROUP);
  t.equal(found?.last?.messageSeq, 2);
  t.equal(found?.headSeq, 4);
  const bounds = { limit: 10, maxBytes: 1_000_000 };
  const list = await one.store.readConversations("b", [GROUP], bounds);
  t.equal(list.conversations[0]?.last?.messageSeq, 2);
});

t.test("a conversation of which nothing can be read", async (t) => {
  const one = await openGroup(t);
  await sendUnreadable(one);
  const found = await one.store.conversation("b", GROUP);
  t.equal(found?.last, undefined);
  const bounds = { limit: 10, maxBytes: 1_000_000 };
  const list = await one.store.readConversations("b", [GROUP], bounds);
  t.same(list, { conversations: [], more: false });
});

t.test("the sweep keeps what it cannot read until its time", async (t) => {
  const one = await openStore(t, url, { limits: { retentionS: 3600 } });
  await send(one, 1);
  await sendUnreadable(one, idAt(one.time.nowMs));
  await send(one, 1);
  const log = one.link.keys.channel("log", KEY);
  t.equal(await one.store.sweep(), 0);
  t.equal(await one.link.call("xlen", log), 3);
  one.time.nowMs += 3_600_001;
  await one.store.sweep();
  t.equal(await one.link.call("xlen", log), 0);
});

t.test("an inbox leaves out what cannot be read", async (t) => {
  const one = await openGroup(t);
  const { store, link } = one;
  const command = {
    ...draftOf({ key: KEY, channel: GROUP, fromUid: "a" }),
    ...{ recipients: ["b"], pushOnlyRecipients: [] },
  };
  const inbox = link.keys.user("inbox", "b");
  const spoil = async () => {
    const seq = await link.call("incr", link.keys.user("inboxSeq", "b"));
    const endMs = one.time.nowMs + 1_000_000;
    const entry = ["x", endMs, "i", 5, "n", 1, "r", FUTURE];
    await link.call("xadd", inbox, `${Number(seq)}-0`, ...entry);
  };
  await spoil();
  await spoil();
  await store.appendCommand(command);
  await spoil();
  const page = { limit: 1, maxBytes: 1_000_000 };
  const first = await store.readInbox("b", 0, page);
  t.same(
    first.map(({ inboxSeq }) => inboxSeq),
    [3],
  );
  t.same(await store.readInbox("b", 3, page), [], "none only at the end");
});

t.test("a channel whose active stream cannot be read", async (t) => {
  const one = await openGroup(t);
  const { store, link, time } = one;
  await store.streamEvent({
    ...{ key: KEY, channel: GROUP, fromUid: "a", clientMsgNo: "s" },
    ...{ eventId: "1", type: STREAM_START, data: "", force: false },
    timestampMs: time.nowMs,
  });
  const stream = link.keys.channel("stream", KEY, "s");
  t.equal((await store.activeStream(KEY))?.clientMsgNo, "s");
  await link.call("hset", stream, "e", 99, "a", 5); // a version that no read has seen
  t.equal(await store.activeStream(KEY), undefined);
  await send(one, 1);
  t.same((await seqsOf(one)).seqs, [2], "its message is left out, as others are not");
});
