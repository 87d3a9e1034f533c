// Slices of history that take more than one step in Redis.

import t from "tap";
import { ALL, draftOf, seqsOf } from "../../contract/store-bench.ts";
import { startRedis } from "../../support/redis.ts";
import { type OneStore, openStore } from "./one-store.ts";

const server = await startRedis(t);
const upTo = (n: number) => Array.from({ length: n }, (_, i) => i + 1);

async function send({ store }: OneStore, count: number, over = {}) {
  await Promise.all(upTo(count).map(() => store.append(draftOf(over))));
}

t.test(
  "a long slice is put together from pieces, in either direction",
  async (t) => {
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
    t.same(await read({ limit: 1200, reverse: true }), [
      upTo(1500).slice(300).reverse(),
      true,
    ]);
    const inner = { fromSeq: 11, toSeq: 1300 };
    t.same(await read(inner), [upTo(1300).slice(10), false]);
    t.same(await read({ ...inner, reverse: true }), [
      upTo(1300).slice(10).reverse(),
      false,
    ]);
  },
);

t.test(
  "large messages end a piece, not the slice; maxBytes ends the slice",
  async (t) => {
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
  },
);

t.test(
  "many that expired and are still there hide none behind them",
  async (t) => {
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
      t.same(await read({ fromSeq: 2, toSeq: 2502, maxBytes: 1 }), [
        [2502],
        false,
      ]);
    }
  },
);

t.test("payloads of every size count as what they are", async (t) => {
  const { store } = await openStore(t, server.url);
  for (const size of [0, 1, 255, 256, 65_535, 65_536]) {
    const channel = { id: `g${size}`, type: 2 } as const;
    const payload = new Uint8Array(size);
    for (let i = 0; i < 2; i++)
      await store.append(
        draftOf({ channel, payload, tagKey: "t", streamNo: "s" }),
      );
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
  const shown = async () =>
    seqsOf((await one.store.readMessages("2:g", ALL)).messages);
  one.time.nowMs += 49_999;
  t.same(await shown(), [1, 2]);
  one.time.nowMs += 1;
  t.same(await shown(), [2]);
  t.same(seqsOf((await one.store.messages("2:g", ALL)).messages), [2]);
  t.equal(await one.store.headSeq("2:g"), 2);
});

t.test("a channel's position tells of its streams", async (t) => {
  const { store } = await openStore(t, server.url);
  t.equal(await store.pubOf("2:g"), 0);
  t.same(await store.position("2:g", ["s1"]), {
    pub: 0,
    headSeq: 0,
    lastId: 0,
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
  const position = await store.position("2:g", ["s1", "s2", "none"]);
  t.match(position, { pub: 7, headSeq: 3 });
  t.equal(await store.pubOf("2:g"), 7);
  t.same(
    position.streams.map((s) => [s.clientMsgNo, s.state, s.text]),
    [
      ["s2", "active", ""],
      ["s1", "closed", "text"],
    ],
  );
  t.same(
    (await store.position("2:g", [])).streams.map((s) => s.clientMsgNo),
    ["s2"],
  );
});
