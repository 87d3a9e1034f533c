// Closing the embedded store while it works: earlier calls are completed, later calls are rejected.

import type { ChannelRef } from "../../../src/broker/model.ts";
import { codeOf, draftOf } from "../../contract/store-fixture.ts";
import { conversationsOf } from "../../support/conversation-list.ts";
import { t } from "../../support/suite.ts";
import { openStore, testFolder } from "./folder.ts";

const nextTurn = () => new Promise(setImmediate);

t.test(
  "`close` waits for list calls that take many event-loop turns, and later calls are rejected",
  async (t) => {
    const store = await openStore(t, testFolder(t));
    const channel: ChannelRef = { id: "u", type: 1 };
    const sends: Promise<unknown>[] = [];
    for (let i = 0; i < 3000; i++)
      sends.push(store.append(draftOf({ channel, fromUid: `peer-${i}` })));
    await Promise.all(sends);
    await store.checkpoint();
    const order: string[] = [];
    const lists = Array.from({ length: 6 }, async () => {
      const { length } = await conversationsOf(store, "u");
      order.push(`listed ${length}`);
    });
    await nextTurn();
    t.same(order, [], "no list is complete yet");
    const closed = [store.close(), store.close()].map(async (closing) => {
      await closing;
      order.push("closed");
    });
    t.equal(await codeOf(conversationsOf(store, "u")), "unavailable");
    await Promise.all([...lists, ...closed]);
    const listed = Array.from({ length: 6 }, () => "listed 3000");
    t.same(order, [...listed, "closed", "closed"]);
    await store.start();
    t.equal((await conversationsOf(store, "u")).length, 3000);
  },
);

t.test("`close` ends a sweep after the sweep's current step", async (t) => {
  const time = { nowMs: Date.UTC(2026, 0, 1) };
  const store = await openStore(t, testFolder(t), { clock: () => time.nowMs });
  const sends: Promise<unknown>[] = [];
  for (let i = 0; i < 1000; i++) sends.push(store.append(draftOf({ expireS: 1 })));
  await Promise.all(sends);
  await store.checkpoint();
  time.nowMs += 1000;
  const sweep = store.sweep();
  await store.close();
  t.ok((await sweep) < 1000, "the sweep did not remove everything");
  await store.start();
  t.equal((await sweep) + (await store.sweep()), 1000);
});
