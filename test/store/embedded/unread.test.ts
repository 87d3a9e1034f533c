// Unread messages that expire: counted to a bound, wherever they are, and no row of them is read twice for one call.

import t from "tap";
import type { ChannelRef } from "../../../src/broker/model.ts";
import type { EmbeddedStore } from "../../../src/store/embedded/store.ts";
import { Unread } from "../../../src/store/embedded/unread.ts";
import { draftOf, group, PERMANENT } from "../../contract/store-bench.ts";
import { openStore, testFolder } from "./folder.ts";

const G: ChannelRef = { id: "g", type: 2 };

async function send(store: EmbeddedStore, count: number, expireS: number) {
  const sends: Promise<unknown>[] = [];
  for (let i = 0; i < count; i++)
    sends.push(store.append(draftOf({ expireS })));
  await Promise.all(sends);
}

t.test(
  "of messages that expire a thousand count, the newest, beside all that do not",
  async (t) => {
    const time = { nowMs: Date.UTC(2026, 0, 1) };
    const store = await openStore(t, testFolder(t), {
      clock: () => time.nowMs,
    });
    await store.createChannel(group("g"), []);
    await store.addSubscribers(G, ["bob"], PERMANENT);
    const unread = async () => (await store.conversation("bob", G))?.unread;
    const set = async (kind: "unread", count: number) => {
      const change = { kind, unread: count };
      const now = await store.changeConversation("bob", G, change);
      return [now?.readSeq, now?.unread];
    };
    await send(store, 2, 0);
    await send(store, 700, 60);
    await store.checkpoint();
    t.equal(await unread(), 702);
    await send(store, 800, 60);
    await send(store, 3, 0);
    t.equal(await unread(), 1005, "in the database and not");
    t.same(await set("unread", 2000), [0, 1005]);
    t.same(await set("unread", 1004), [1, 1004], "one of the oldest is read");
    t.same(await set("unread", 1003), [502, 1003]);
    t.same(await set("unread", 5), [1500, 5]);
    await store.changeConversation("bob", G, { kind: "read", seq: 0 });
    await store.checkpoint();
    t.equal(await unread(), 1005, "in the database");
    time.nowMs += 60_000;
    t.equal(await unread(), 5);
  },
);

t.test("rows of messages that expire are read once, newest first", (t) => {
  const rows = 100_000;
  let taken = 0;
  const state = { number: 1, head: rows, headCounted: 0, active: undefined };
  const unread = new Unread({
    clock: () => 0,
    retentionMs: 0,
    states: {
      recordFrom: (_, seq) =>
        ({ seq, timestampMs: 0, counted: 0, counts: false }) as const,
      *expiringDown(_, fromSeq) {
        for (let seq = rows; seq >= fromSeq; seq--) {
          taken++;
          yield { seq, timestampMs: 0, expiresAtMs: seq > 50_000 ? 1 : 0 };
        }
      },
    },
  });
  t.equal(unread.count(state, 0), 1000);
  t.equal(taken, 1000);
  t.equal(unread.positionOf(state, 5, 0), rows - 5);
  t.equal(taken, 2000);
  t.end();
});
