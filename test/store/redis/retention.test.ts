// Sweeps remove expired data from Redis, and nothing else.

import t from "tap";
import { bucketOf } from "../../../src/broker/log-frame.ts";
import { ALL, draftOf, seqsOf } from "../../contract/store-fixture.ts";
import { eventOf } from "../../contract/store-stream-fixture.ts";
import { startRedis } from "../../support/redis.ts";
import { openStore, type StoreNode } from "./one-store.ts";

const server = await startRedis(t);
const GROUPS = ["g", "h"].map((id) => ({ id, type: 2 }) as const);

async function send({ store }: StoreNode, count: number, over = {}) {
  const drafts = Array.from({ length: count }, () => draftOf(over));
  await Promise.all(drafts.map((draft) => store.append(draft)));
}

/** Returns the names of all keys, without prefix and bucket. */
async function keysOf({ link }: StoreNode): Promise<string[]> {
  const keys = await link.call("keys", `${link.keys.prefix}:*`);
  return (keys as Buffer[]).map((key) => String(key).replace(/^.*?}:/, "")).sort();
}

/** Returns the number of messages in the log. */
async function logLength({ link }: StoreNode, key = "2:g"): Promise<number> {
  return Number(await link.call("xlen", link.keys.channel("log", key)));
}

t.test("a sweep removes all expired messages", async (t) => {
  const node = await openStore(t, server.url);
  for (const channel of GROUPS) {
    await send(node, 1, { channel });
    await send(node, 250, { channel, expireS: 10 });
    const header = { noPersist: false, redDot: false };
    await send(node, 2, { channel, header, expireS: 20 });
  }
  t.equal(await node.store.sweep(), 0);
  node.time.nowMs += 9_999;
  t.equal(await node.store.sweep(), 0);
  node.time.nowMs += 1;
  t.equal(await node.store.sweep(), 500);
  t.equal(await node.store.sweep(), 0);
  t.equal(await logLength(node), 3);
  node.time.nowMs += 10_000;
  t.equal(await node.store.sweep(), 4);
  const remaining = ["due", "format", "head:2:g", "log:2:g", "messageIds"];
  t.same(
    (await keysOf(node)).filter((key) => !key.endsWith("2:h")),
    ["due", ...remaining],
  );
  t.equal(await node.store.headSeq("2:g"), 253);
});

t.test("a channel whose sweep fails does not prevent the sweep of other channels", async (t) => {
  const node = await openStore(t, server.url);
  const bucket = bucketOf("2:g");
  let other = 0;
  while (bucketOf(`2:h${other}`) !== bucket) other++;
  const neighbour = { id: `h${other}`, type: 2 } as const;
  await send(node, 1, { expireS: 10 });
  await send(node, 1, { channel: neighbour, expireS: 20 });
  const log = node.link.keys.channel("log", "2:g");
  await node.link.write("del", log);
  await node.link.write("set", log, "a wrong type");
  node.time.nowMs += 20_000;
  await t.rejects(node.store.sweep(), { cause: { message: /WRONGTYPE/ } });
  t.equal(await logLength(node, `2:h${other}`), 0, "the other channel of the bucket is swept");
  await t.rejects(node.store.sweep(), "the failed channel is tried again");
});

t.test("a trim of the event feed removes no event because of a concurrent write", async (t) => {
  const node = await openStore(t, server.url);
  const { store } = node;
  await store.switchFeed(true);
  await send(node, 1);
  const trimmed = store.trimEvents({ beforeMs: 0, maxBytes: 1e9, held: undefined });
  await send(node, 1);
  t.equal(await trimmed, 0);
});

t.test("a node whose clock is an hour ahead runs no periodic sweeps", async (t) => {
  const limits = { sweepIntervalMs: 10 };
  const node = await openStore(t, server.url, { limits });
  node.time.nowMs = Date.now() - 3_600_000;
  await send(node, 1, { expireS: 10 });
  node.time.nowMs = Date.now() + 3_600_000;
  while (node.problems.length < 2) await new Promise((resolve) => setTimeout(resolve, 5));
  t.equal(await logLength(node), 1);
  node.time.nowMs = Date.now();
  while ((await logLength(node)) > 0) await new Promise((resolve) => setTimeout(resolve, 5));
});

t.test(
  "a sweep removes messages older than the retention time, and ended streams with all their keys",
  async (t) => {
    const limits = { retentionS: 100 };
    const node = await openStore(t, server.url, { limits });
    const event = (type: string, data = "") =>
      node.store.streamEvent({
        ...{ key: "2:g", channel: { id: "g", type: 2 }, fromUid: "alice" },
        ...{ clientMsgNo: "s", type, data, force: false },
        ...{ eventId: undefined, timestampMs: undefined },
      });
    await send(node, 210);
    await event("___TextMessageStart");
    await event("___TextMessageContent", "text");
    await send(node, 1, { expireS: 1000 });
    node.time.nowMs += 100_000;
    t.equal(await node.store.sweep(), 210, "an active stream and all later messages stay");
    t.equal(await logLength(node), 2);
    await event("___TextMessageEnd");
    t.equal(await node.store.sweep(), 0, "the channel is not processed again at once");
    node.time.nowMs += 60_000;
    t.equal(await node.store.sweep(), 2);
    const remaining = await keysOf(node);
    t.same(
      remaining.filter((key) => !key.startsWith("dedupe:")),
      ["format", "head:2:g", "messageIds"],
    );
    t.equal(await node.store.stream("2:g", "s"), undefined);
    await send(node, 1);
    t.same(seqsOf((await node.store.readMessages("2:g", ALL)).messages), [213]);
    node.time.nowMs += 100_000;
    t.equal(await node.store.sweep(), 1, "a channel whose log was emptied is swept again");
  },
);

t.test("a retention time that is set later also applies to messages stored earlier", async (t) => {
  const before = await openStore(t, server.url);
  const { prefix } = before.link.settings;
  for (const channel of GROUPS) await send(before, 3, { channel });
  await send(before, 1, { channel: GROUPS[0], expireS: 1 });
  before.time.nowMs += 1000;
  t.equal(await before.store.sweep(), 1);
  const emptied = { id: "e", type: 2 } as const;
  await send(before, 1, { channel: emptied, expireS: 1 });
  before.time.nowMs += 1000;
  t.equal(await before.store.sweep(), 1);
  await send(before, 1, { channel: emptied });

  const after = await openStore(t, server.url, {
    ...{ settings: { prefix }, limits: { retentionS: 10 } },
  });
  after.time.nowMs = before.time.nowMs;
  t.equal(await after.store.sweep(), 0);
  after.time.nowMs += 10_000;
  t.equal(await after.store.sweep(), 7);
  t.equal(await after.store.sweep(), 0);
});

t.test("a sweep removes messages above maxChannelMessages and their expiry entries", async (t) => {
  const limits = { maxChannelMessages: 4 };
  const node = await openStore(t, server.url, { limits });
  for (const type of ["___TextMessageStart", "___TextMessageEnd"])
    await node.store.streamEvent(eventOf(type, "", { eventId: type }));
  await send(node, 450, { expireS: 60 });
  await send(node, 3);
  await send(node, 1, { expireS: 60 });
  t.equal(await node.store.sweep(), 451);
  t.equal(await node.store.sweep(), 0);
  const remaining = ["due", "expiry:2:g", "format", "head:2:g"];
  t.same(
    (await keysOf(node)).filter((key) => !key.startsWith("dedupe:")),
    [...remaining, "log:2:g", "messageIds", "redDots:2:g"],
  );
  for (const part of ["redDots", "expiry"])
    t.equal(await node.link.call("zcard", node.link.keys.channel(part, "2:g")), 1);
  t.equal(await logLength(node), 4);
});

t.test(
  "a channel above a `maxChannelMessages` of 100 is swept when its newest seq reaches or passes a multiple of 10, and after a day at the latest",
  async (t) => {
    const limits = { maxChannelMessages: 100 };
    const node = await openStore(t, server.url, { limits });
    await send(node, 105);
    t.equal(await node.store.sweep(), 5);
    await send(node, 4);
    t.equal(await node.store.sweep(), 0);
    await send(node, 1);
    t.equal(await node.store.sweep(), 5);
    await send(node, 9);
    node.time.nowMs += 86_400_000;
    t.equal(await node.store.sweep(), 9, "a channel is trimmed after a day at the latest");
  },
);

t.test("a maxChannelMessages set later also applies to messages stored earlier", async (t) => {
  const before = await openStore(t, server.url, {
    limits: { retentionS: 10_000_000 },
  });
  const { prefix } = before.link.settings;
  for (const channel of GROUPS) await send(before, 60, { channel });
  t.equal(await before.store.sweep(), 0);
  const after = await openStore(t, server.url, {
    ...{ settings: { prefix }, limits: { maxChannelMessages: 50 } },
  });
  t.equal(await after.store.sweep(), 20);
  t.equal(await after.store.sweep(), 0);
});

t.test("two nodes that sweep concurrently remove each message once", async (t) => {
  const node = await openStore(t, server.url);
  const { prefix } = node.link.settings;
  const other = await openStore(t, server.url, { settings: { prefix } });
  await send(node, 500, { expireS: 10 });
  await send(node, 1);
  for (const { time } of [node, other]) time.nowMs += 10_000;
  const sweeps = [node.store.sweep(), other.store.sweep(), node.store.sweep()];
  const [first = 0, second = 0, joined] = await Promise.all(sweeps);
  t.equal(first + second, 500);
  t.equal(joined, first, "a second call joins the sweep in progress");
  t.equal(await logLength(node), 1);
});

t.test("an open store sweeps periodically", async (t) => {
  const limits = { sweepIntervalMs: 5 };
  const node = await openStore(t, server.url, { limits });
  node.time.nowMs = Date.now() - 10_000;
  await send(node, 3, { expireS: 10 });
  node.time.nowMs += 10_000;
  while ((await logLength(node)) > 0) await new Promise((resolve) => setTimeout(resolve, 5));
  await node.store.close();
  t.same(node.problems, []);
});
