// Reads of history that need more than one script.

import t from "tap";
import type { DeliveredMark } from "../../../src/redis/channel-feed.ts";
import { ALL, draftOf, seqsOf } from "../../contract/store-fixture.ts";
import { startRedis } from "../../support/redis.ts";
import { openStore, type StoreNode } from "./one-store.ts";

const server = await startRedis(t);
const NOTHING = { streams: [], marks: [] };
const upTo = (n: number) => Array.from({ length: n }, (_, i) => i + 1);

async function send({ store }: StoreNode, count: number, over = {}) {
  await Promise.all(upTo(count).map(() => store.append(draftOf(over))));
}

t.test("a read of 1,500 messages is complete in both directions", async (t) => {
  const node = await openStore(t, server.url);
  await send(node, 1500);
  const read = async (over: Partial<typeof ALL>) => {
    const slice = await node.store.readMessages("2:g", { ...ALL, ...over });
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

t.test("a read of large messages returns those that fit in `maxBytes`, at least one", async (t) => {
  const node = await openStore(t, server.url);
  const payload = new Uint8Array(60_000);
  await send(node, 50, { payload });
  for (const reverse of [false, true]) {
    const read = async (maxBytes: number) => {
      const range = { ...ALL, reverse, maxBytes };
      const slice = await node.store.readMessages("2:g", range);
      return [slice.messages.length, slice.more];
    };
    t.same(await read(Number.MAX_SAFE_INTEGER), [50, false]);
    t.same(await read(50 * 60_000), [50, false]);
    t.same(await read(50 * 60_000 - 1), [49, true]);
    t.same(await read(30 * 60_000), [30, true]);
    t.same(await read(1), [1, true]);
  }
});

t.test("expired messages that are still stored do not hide other messages", async (t) => {
  const node = await openStore(t, server.url);
  await send(node, 1);
  await send(node, 2500, { expireS: 10 });
  await send(node, 1);
  node.time.nowMs += 10_000;
  for (const reverse of [false, true]) {
    const read = async (over = {}) => {
      const range = { ...ALL, reverse, ...over };
      const slice = await node.store.readMessages("2:g", range);
      return [seqsOf(slice.messages).sort(), slice.more];
    };
    t.same(await read(), [[1, 2502], false]);
    t.same(await read({ limit: 1 }), [[reverse ? 2502 : 1], true]);
    t.same(await read({ fromSeq: 2, toSeq: 2501 }), [[], false]);
    t.same(await read({ fromSeq: 2, toSeq: 2502, maxBytes: 1 }), [[2502], false]);
  }
});

t.test("maxBytes counts the exact size of each payload", async (t) => {
  const { store } = await openStore(t, server.url);
  for (const size of [0, 1, 255, 256, 65_535, 65_536]) {
    const channel = { id: `g${size}`, type: 2 } as const;
    const payload = new Uint8Array(size);
    for (let i = 0; i < 2; i++)
      await store.append(draftOf({ channel, payload, tagKey: "t", streamNo: "s" }));
    const read = async (maxBytes: number) => {
      const range = { ...ALL, maxBytes };
      const slice = await store.readMessages(`2:${channel.id}`, range);
      return slice.messages.map((message) => message.payload.length);
    };
    t.same(await read(2 * size), [size, size]);
    if (size > 0) t.same(await read(2 * size - 1), [size]);
  }
});

t.test("messages older than the retention time are not returned", async (t) => {
  const limits = { retentionS: 100 };
  const node = await openStore(t, server.url, { limits });
  await send(node, 1);
  node.time.nowMs += 50_000;
  await send(node, 1);
  const shown = async () => seqsOf((await node.store.readMessages("2:g", ALL)).messages);
  node.time.nowMs += 49_999;
  t.same(await shown(), [1, 2]);
  node.time.nowMs += 1;
  t.same(await shown(), [2]);
  t.same(seqsOf((await node.store.messages("2:g", ALL)).messages), [2]);
  t.equal(await node.store.headSeq("2:g"), 2);
});

t.test(
  "a read of a channel's position returns the lowest id of a delivered message that was lost",
  async (t) => {
    const node = await openStore(t, server.url);
    const { store } = node;
    const send = async (over = {}) => (await store.append(draftOf(over))).messageId;
    const notStored = { header: { noPersist: true, redDot: false } };
    const [a, b, c] = [await send(), await send({ expireS: 1 }), await send()];
    const d = await send(notStored);
    const stored = (seq: number, messageId: number) => ({
      ...{ seq, messageId, isStored: true },
    });
    const unstored = (seq: number, messageId: number) => ({
      ...{ seq, messageId, isStored: false },
    });
    const lostOf = async (...marks: readonly DeliveredMark[]) =>
      (await store.position("2:g", { ...NOTHING, marks })).lostFromId;
    const delivered = [stored(1, a), stored(2, b), stored(3, c), unstored(3, d)];
    const cases = async (name: string) => {
      t.equal(await lostOf(...delivered), Infinity, `${name}: no message is lost`);
      t.equal(
        await lostOf(stored(3, c - 1)),
        c - 1,
        `${name}: a different id at a stored seq is lost`,
      );
      t.equal(await lostOf(stored(4, d)), d, `${name}: a seq above the head is lost`);
      t.equal(
        await lostOf(unstored(4, d)),
        d,
        `${name}: an unstored message after a seq above the head is lost`,
      );
      t.equal(await lostOf(stored(3, d + 1)), d + 1, `${name}: an id above the counter is lost`);
      t.equal(
        await lostOf(stored(2, c + 1)),
        c + 1,
        `${name}: an id above a later message is lost`,
      );
      t.equal(
        await lostOf(unstored(2, c + 1)),
        c + 1,
        `${name}: an unstored id above a later message is lost`,
      );
      t.equal(
        await lostOf(stored(1, a), stored(2, c + 1), unstored(3, d)),
        c + 1,
        `${name}: the lowest lost id is returned`,
      );
    };
    await cases("complete log");
    node.time.nowMs += 1000;
    t.equal(await store.sweep(), 1);
    await cases("after a message expired");
    await node.link.call("del", node.link.keys.channel("log", "2:g"));
    t.equal(await lostOf(...delivered), Infinity, "without a log no message is known to be lost");
    t.equal(
      await lostOf(...delivered, stored(4, d)),
      d,
      "a seq above the head is lost even without a log",
    );
  },
);

t.test(
  "a read of a channel's position returns the channel's active streams and the streams that the caller names",
  async (t) => {
    const { store } = await openStore(t, server.url);
    t.equal(await store.publicationSeqOf("2:g"), 0);
    t.same(await store.position("2:g", { ...NOTHING, streams: ["s1"] }), {
      publicationSeq: 0,
      headSeq: 0,
      ...{ lastId: 0, newestId: 0, lostFromId: Number.POSITIVE_INFINITY },
      streams: [],
      otherStreams: [],
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
      position.streams.map(({ clientMsgNo, state, text }) => [clientMsgNo, state, text]),
      [
        ["s2", "active", ""],
        ["s1", "closed", "text"],
      ],
    );
    t.same(
      (await store.position("2:g", NOTHING)).streams.map(({ clientMsgNo }) => clientMsgNo),
      ["s2"],
    );
  },
);

t.test(
  "a read of a channel's position returns at most 1 MiB of streams, and only the end positions of the other streams",
  async (t) => {
    const { store } = await openStore(t, server.url);
    const text = "é".repeat(300_000);
    const event = (type: string, clientMsgNo: string, data = "") =>
      store.streamEvent({
        ...{ key: "2:g", channel: { id: "g", type: 2 }, fromUid: "alice" },
        ...{ clientMsgNo, type, data, force: false },
        ...{ eventId: undefined, timestampMs: undefined },
      });
    const names = ["s1", "s2", "s3"];
    for (const name of names) {
      for (const [type, data] of [
        ["___TextMessageStart", ""],
        ["___TextMessageContent", text],
        ["___TextMessageEnd", ""],
      ] as const)
        await event(type, name, data);
    }
    await event("___TextMessageStart", "s4");
    await event("___TextMessageContent", "s4", text);
    const { streams, otherStreams } = await store.position("2:g", { ...NOTHING, streams: names });
    t.match(streams, [{ clientMsgNo: "s4", nextIndex: 2 }]);
    t.same(
      otherStreams,
      names.map((clientMsgNo) => ({ clientMsgNo, index: 3, textOffset: text.length })),
    );
    t.match(await store.stream("2:g", "s1"), { text, nextIndex: 3 });
    const started = (await store.positions(["2:g"])).get("2:g");
    t.match(started, { publicationSeq: 15, headSeq: 4, streams: [] });
    t.same(started?.otherStreams, [{ clientMsgNo: "s4", index: 2, textOffset: text.length }]);
  },
);
