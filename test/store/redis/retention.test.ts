// What is past its time leaves Redis, and nothing else does.

import t from "tap";
import { ALL, draftOf, seqsOf } from "../../contract/store-fixture.ts";
import { eventOf } from "../../contract/store-stream-fixture.ts";
import { startRedis } from "../../support/redis.ts";
import { type OneStore, openStore } from "./one-store.ts";

const server = await startRedis(t);
const GROUPS = ["g", "h"].map((id) => ({ id, type: 2 }) as const);

async function send({ store }: OneStore, count: number, over = {}) {
  const drafts = Array.from({ length: count }, () => draftOf(over));
  await Promise.all(drafts.map((draft) => store.append(draft)));
}

/** Names of the keys that are there, without prefix and bucket. */
async function keysOf({ link }: OneStore): Promise<string[]> {
  const found = await link.call("keys", `${link.keys.prefix}:*`);
  return (found as Buffer[]).map((key) => String(key).replace(/^.*?}:/, "")).sort();
}

async function logged({ link }: OneStore, key = "2:g"): Promise<number> {
  return Number(await link.call("xlen", link.keys.channel("log", key)));
}

t.test("expired messages go, in as many steps as it takes", async (t) => {
  const one = await openStore(t, server.url);
  for (const channel of GROUPS) {
    await send(one, 1, { channel });
    await send(one, 250, { channel, expireS: 10 });
    const header = { noPersist: false, redDot: false };
    await send(one, 2, { channel, header, expireS: 20 });
  }
  t.equal(await one.store.sweep(), 0);
  one.time.nowMs += 9_999;
  t.equal(await one.store.sweep(), 0);
  one.time.nowMs += 1;
  t.equal(await one.store.sweep(), 500);
  t.equal(await one.store.sweep(), 0);
  t.equal(await logged(one), 3);
  one.time.nowMs += 10_000;
  t.equal(await one.store.sweep(), 4);
  const left = ["due", "format", "head:2:g", "log:2:g", "messageIds"];
  t.same(
    (await keysOf(one)).filter((key) => !key.endsWith("2:h")),
    ["due", ...left],
  );
  t.equal(await one.store.headSeq("2:g"), 253);
});

t.test("a node whose clock is ahead removes nothing by itself", async (t) => {
  const limits = { sweepIntervalMs: 10 };
  const one = await openStore(t, server.url, { limits });
  one.time.nowMs = Date.now() - 3_600_000;
  await send(one, 1, { expireS: 10 });
  one.time.nowMs = Date.now() + 3_600_000;
  while (one.problems.length < 2) await new Promise((resolve) => setTimeout(resolve, 5));
  t.equal(await logged(one), 1);
  one.time.nowMs = Date.now();
  while ((await logged(one)) > 0) await new Promise((resolve) => setTimeout(resolve, 5));
});

t.test("messages past retention go, and streams with what belongs to them", async (t) => {
  const limits = { retentionS: 100 };
  const one = await openStore(t, server.url, { limits });
  const event = (type: string, data = "") =>
    one.store.streamEvent({
      ...{ key: "2:g", channel: { id: "g", type: 2 }, fromUid: "alice" },
      ...{ clientMsgNo: "s", type, data, force: false },
      ...{ eventId: undefined, timestampMs: undefined },
    });
  await send(one, 210);
  await event("___TextMessageStart");
  await event("___TextMessageContent", "text");
  await send(one, 1, { expireS: 1000 });
  one.time.nowMs += 100_000;
  t.equal(await one.store.sweep(), 210, "a stream that goes on stays, with all behind it");
  t.equal(await logged(one), 2);
  await event("___TextMessageEnd");
  t.equal(await one.store.sweep(), 0, "it is not looked at again at once");
  one.time.nowMs += 60_000;
  t.equal(await one.store.sweep(), 2);
  const left = await keysOf(one);
  t.same(
    left.filter((key) => !key.startsWith("dedupe:")),
    ["format", "head:2:g", "messageIds"],
  );
  t.equal(await one.store.stream("2:g", "s"), undefined);
  await send(one, 1);
  t.same(seqsOf((await one.store.readMessages("2:g", ALL)).messages), [213]);
  one.time.nowMs += 100_000;
  t.equal(await one.store.sweep(), 1, "an emptied channel that fills again is swept again");
});

t.test("a retention that is set later holds for what was kept for ever", async (t) => {
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

t.test("messages a channel does not keep go with all that belongs to them", async (t) => {
  const limits = { maxChannelMessages: 4 };
  const one = await openStore(t, server.url, { limits });
  for (const type of ["___TextMessageStart", "___TextMessageEnd"])
    await one.store.streamEvent(eventOf(type, "", { eventId: type }));
  await send(one, 450, { expireS: 60 });
  await send(one, 3);
  await send(one, 1, { expireS: 60 });
  t.equal(await one.store.sweep(), 451);
  t.equal(await one.store.sweep(), 0);
  const left = ["due", "expiry:2:g", "format", "head:2:g"];
  t.same(
    (await keysOf(one)).filter((key) => !key.startsWith("dedupe:")),
    [...left, "log:2:g", "messageIds", "redDots:2:g"],
  );
  for (const part of ["redDots", "expiry"])
    t.equal(await one.link.call("zcard", one.link.keys.channel(part, "2:g")), 1);
  t.equal(await logged(one), 4);
});

t.test("a channel is looked at when it has a tenth more than it keeps", async (t) => {
  const limits = { maxChannelMessages: 100 };
  const one = await openStore(t, server.url, { limits });
  await send(one, 105);
  t.equal(await one.store.sweep(), 5);
  await send(one, 4);
  t.equal(await one.store.sweep(), 0);
  await send(one, 1);
  t.equal(await one.store.sweep(), 5);
  await send(one, 9);
  one.time.nowMs += 86_400_000;
  t.equal(await one.store.sweep(), 9, "or after a day");
});

t.test("a limit that is set later holds for channels to be looked at in a long time", async (t) => {
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

t.test("two nodes may sweep at once", async (t) => {
  const one = await openStore(t, server.url);
  const { prefix } = one.link.settings;
  const other = await openStore(t, server.url, { settings: { prefix } });
  await send(one, 500, { expireS: 10 });
  await send(one, 1);
  for (const { time } of [one, other]) time.nowMs += 10_000;
  const sweeps = [one.store.sweep(), other.store.sweep(), one.store.sweep()];
  const [first = 0, second = 0, joined] = await Promise.all(sweeps);
  t.equal(first + second, 500);
  t.equal(joined, first, "a second call joins the run under way");
  t.equal(await logged(one), 1);
});

t.test("the store sweeps by itself until it is closed", async (t) => {
  const limits = { sweepIntervalMs: 5 };
  const one = await openStore(t, server.url, { limits });
  await send(one, 3, { expireS: 10 });
  one.time.nowMs += 10_000;
  while ((await logged(one)) > 0) await new Promise((resolve) => setTimeout(resolve, 5));
  await one.store.close();
  t.same(one.problems, []);
});
