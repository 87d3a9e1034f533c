// Slices of history that take more than one step in Redis.

import t from "tap";
import type { DeliveredMark } from "../../../src/redis/channel-feed.ts";
import { ALL, draftOf, seqsOf } from "../../contract/store-fixture.ts";
import { startRedis } from "../../support/redis.ts";
import { type OneStore, openStore } from "./one-store.ts";

const server = await startRedis(t);
const NOTHING = { streams: [], marks: [] };
const upTo = (n: number) => Array.from({ length: n }, (_, i) => i + 1);

async function send({ store }: OneStore, count: number, over = {}) {
  await Promise.all(upTo(count).map(() => store.append(draftOf(over))));
}

t.test("a long slice is put together from pieces, in either direction", async (t) => {
  const one = await openStore(t, server.url);
  await send(one, 1500);
  const read = async (over: Partial<typeof ALL>) => {
    const slice = await one.store.readMessages("2:g", { ...ALL, ...over });
    return [seqsOf(slice.messages), slice.more];
  };
  t.same(await read({}), [upTo(1500), false]);
  t.same(await read({ reverse: true }), [upTo(1500).reverse(), false]);
  t.same(await read({ limit: 1499 }), [upTo(1499), true]);
  t.same(await read({ limit: 1500 }), [upTo(1500), false]);
  t.same(await read({ limit: 1200, reverse: true }), [upTo(1500).slice(300).reverse(), true]);
  const inner = { fromSeq: 11, toSeq: 1300 };
  t.same(await read(inner), [upTo(1300).slice(10), false]);
  t.same(await read({ ...inner, reverse: true }), [upTo(1300).slice(10).reverse(), false]);
});

t.test("large messages end a piece, not the slice; maxBytes ends the slice", async (t) => {
  const one = await openStore(t, server.url);
  const payload = new Uint8Array(60_000);
  await send(one, 50, { payload });
  for (const reverse of [false, true]) {
    const read = async (maxBytes: number) => {
      const range = { ...ALL, reverse, maxBytes };
      const slice = await one.store.readMessages("2:g", range);
      return [slice.messages.length, slice.more];
    };
    t.same(await read(Number.MAX_SAFE_INTEGER), [50, false]);
    t.same(await read(50 * 60_000), [50, false]);
    t.same(await read(50 * 60_000 - 1), [49, true]);
    t.same(await read(30 * 60_000), [30, true]);
    t.same(await read(1), [1, true]);
  }
});

t.test("many that expired and are still there hide none behind them", async (t) => {
  const one = await openStore(t, server.url);
  await send(one, 1);
  await send(one, 2500, { expireS: 10 });
  await send(one, 1);
  one.time.nowMs += 10_000;
  for (const reverse of [false, true]) {
    const read = async (over = {}) => {
      const range = { ...ALL, reverse, ...over };
      const slice = await one.store.readMessages("2:g", range);
      return [seqsOf(slice.messages).sort(), slice.more];
    };
    t.same(await read(), [[1, 2502], false]);
    t.same(await read({ limit: 1 }), [[reverse ? 2502 : 1], true]);
    t.same(await read({ fromSeq: 2, toSeq: 2501 }), [[], false]);
    t.same(await read({ fromSeq: 2, toSeq: 2502, maxBytes: 1 }), [[2502], false]);
  }
});

t.test("payloads of every size count as what they are", async (t) => {
  const { store } = await openStore(t, server.url);
  for (const size of [0, 1, 255, 256, 65_535, 65_536]) {
    const channel = { id: `g${size}`, type: 2 } as const;
    const payload = new Uint8Array(size);
    for (let i = 0; i < 2; i++)
      await store.append(draftOf({ channel, payload, tagKey: "t", streamNo: "s" }));
    const read = async (maxBytes: number) => {
      const range = { ...ALL, maxBytes };
      const slice = await store.readMessages(`2:${channel.id}`, range);
      return slice.messages.map((m) => m.payload.length);
    };
    t.same(await read(2 * size), [size, size]);
    if (size > 0) t.same(await read(2 * size - 1), [size]);
  }
});

t.test("retention hides what is past it", async (t) => {
  const limits = { retentionS: 100 };
  const one = await openStore(t, server.url, { limits });
  await send(one, 1);
  one.time.nowMs += 50_000;
  await send(one, 1);
  const shown = async () => seqsOf((await one.store.readMessages("2:g", ALL)).messages);
  one.time.nowMs += 49_999;
  t.same(await shown(), [1, 2]);
  one.time.nowMs += 1;
  t.same(await shown(), [2]);
  t.same(seqsOf((await one.store.messages("2:g", ALL)).messages), [2]);
  t.equal(await one.store.headSeq("2:g"), 2);
});

t.test("a channel's position tells which messages it never had, or lost", async (t) => {
  const one = await openStore(t, server.url);
  const { store } = one;
  const send = async (over = {}) => (await store.append(draftOf(over))).messageId;
  const passing = { header: { noPersist: true, redDot: false } };
  const [a, b, c] = [await send(), await send({ expireS: 1 }), await send()];
  const d = await send(passing);
  const kept = (seq: number, messageId: number) => ({
    ...{ seq, messageId, isStored: true },
  });
  const unkept = (seq: number, messageId: number) => ({
    ...{ seq, messageId, isStored: false },
  });
  const lostOf = async (...marks: readonly DeliveredMark[]) =>
    (await store.position("2:g", { ...NOTHING, marks })).lostFromId;
  const whole = [kept(1, a), kept(2, b), kept(3, c), unkept(3, d)];
  const cases = async (name: string) => {
    t.equal(await lostOf(...whole), Infinity, `${name}: all are there`);
    t.equal(await lostOf(kept(3, c - 1)), c - 1, `${name}: another id`);
    t.equal(await lostOf(kept(4, d)), d, `${name}: a seq to come`);
    t.equal(await lostOf(unkept(4, d)), d, `${name}: behind one to come`);
    t.equal(await lostOf(kept(3, d + 1)), d + 1, `${name}: an id to come`);
    t.equal(await lostOf(kept(2, c + 1)), c + 1, `${name}: too great an id`);
    t.equal(await lostOf(unkept(2, c + 1)), c + 1, `${name}: of one passing`);
    t.equal(
      await lostOf(kept(1, a), kept(2, c + 1), unkept(3, d)),
      c + 1,
      `${name}: what came behind a lost one`,
    );
  };
  await cases("whole");
  one.time.nowMs += 1000;
  t.equal(await store.sweep(), 1);
  await cases("a message expired");
  await one.link.call("del", one.link.keys.channel("log", "2:g"));
  t.equal(await lostOf(...whole), Infinity, "nothing shows any loss");
  t.equal(await lostOf(...whole, kept(4, d)), d, "but what is to come");
});

t.test("a channel's position tells of its streams", async (t) => {
  const { store } = await openStore(t, server.url);
  t.equal(await store.publicationSeqOf("2:g"), 0);
  t.same(await store.position("2:g", { ...NOTHING, streams: ["s1"] }), {
    publicationSeq: 0,
    headSeq: 0,
    ...{ lastId: 0, newestId: 0, lostFromId: Number.POSITIVE_INFINITY },
    streams: [],
  });
  const event = (type: string, clientMsgNo: string, data = "") =>
    store.streamEvent({
      ...{ key: "2:g", channel: { id: "g", type: 2 }, fromUid: "alice" },
      ...{ clientMsgNo, type, data, force: false },
      ...{ eventId: undefined, timestampMs: undefined },
    });
  await event("___TextMessageStart", "s1");
  await event("___TextMessageContent", "s1", "text");
  await event("___TextMessageEnd", "s1");
  await event("___TextMessageStart", "s2");
  await store.append(draftOf());
  const position = await store.position("2:g", {
    ...NOTHING,
    streams: ["s1", "s2", "none"],
  });
  t.match(position, { publicationSeq: 7, headSeq: 3 });
  t.equal(await store.publicationSeqOf("2:g"), 7);
  t.same(
    position.streams.map((s) => [s.clientMsgNo, s.state, s.text]),
    [
      ["s2", "active", ""],
      ["s1", "closed", "text"],
    ],
  );
  t.same(
    (await store.position("2:g", NOTHING)).streams.map((s) => s.clientMsgNo),
    ["s2"],
  );
});
