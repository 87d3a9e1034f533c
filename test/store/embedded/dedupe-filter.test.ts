// The filters in front of the dedupe tables never hide a used clientMsgNo, even after a restart and
// over two windows.

import { setImmediate as nextTurn } from "node:timers/promises";
import { draftOf } from "../../contract/store-fixture.ts";
import { t } from "../../support/suite.ts";
import { openStore, storeIn, testFolder } from "./folder.ts";

const COUNT = 1200; // more keys than one event-loop turn handles

const draft = (i: number) =>
  draftOf({
    clientMsgNo: `no-${i}`,
    fromUid: `user-${i % 7}`,
    channel: { id: `g${i % 11}`, type: 2 },
  });

async function turns(count: number): Promise<void> {
  for (let i = 0; i < count; i++) await nextTurn();
}

t.test(
  "every retry is recognised after a restart, before and after the dedupe filters are complete",
  async (t) => {
    const path = testFolder(t);
    const first = storeIn(path);
    await first.start();
    const all = Array.from({ length: COUNT }, (_, i) => i);
    const sent = await Promise.all(all.map((i) => first.append(draft(i))));
    await first.close();

    const store = await openStore(t, path);
    t.ok((await store.append(draft(3))).duplicate, "a retry is recognised at once");
    await turns(20);
    const retries = await Promise.all(all.map((i) => store.append(draft(i))));
    t.same(
      retries.map(({ messageId }) => messageId),
      sent.map(({ messageId }) => messageId),
    );
    t.ok(retries.every(({ duplicate }) => duplicate));
    t.notOk((await store.append(draft(COUNT))).duplicate, "a new message is not a retry");
  },
);

t.test(
  "a retry is recognised until the dedupe window ends, over several rotations of the dedupe filters",
  async (t) => {
    let nowMs = 1_800_000_000_000;
    const store = await openStore(t, testFolder(t), {
      clock: () => nowMs,
      dedupeWindowS: 100,
    });
    await turns(5);
    await store.append(draft(0));
    await store.checkpoint();
    for (const aheadMs of [60_000, 39_000]) {
      nowMs += aheadMs;
      await store.append(draft(nowMs)); // gives the checkpoint a message to write
      await store.checkpoint();
      t.ok((await store.append(draft(0))).duplicate);
    }
    nowMs += 1000;
    t.notOk(
      (await store.append(draft(0))).duplicate,
      "the same clientMsgNo is a new message after the window",
    );
    nowMs += 99_000;
    await store.checkpoint();
    t.ok((await store.append(draft(0))).duplicate, "a retry of the new message is recognised");
  },
);

t.test(
  "a retry of a message that was sent during a rotation of the dedupe filters is recognised",
  async (t) => {
    let nowMs = 1_800_000_000_000;
    const gate = { isClosed: false, open() {} };
    const store = await openStore(t, testFolder(t), {
      clock: () => nowMs,
      dedupeWindowS: 100,
      databaseWrites: {
        async batch(_env, steps, write) {
          if (gate.isClosed)
            await new Promise<void>((resolve) => {
              gate.open = resolve;
            });
          return write(steps);
        },
        flushed: (env) => env.flushed,
      },
    });
    await turns(20); // until the filters are complete
    await store.append(draft(0));
    await store.checkpoint();
    nowMs += 100_000;
    await store.append(draft(1));
    gate.isClosed = true;
    const rotating = store.checkpoint(); // its first transaction is the rotation
    nowMs += 50_000;
    await store.append(draft(2));
    gate.isClosed = false;
    gate.open();
    await rotating;
    t.ok((await store.append(draft(2))).duplicate);
    nowMs += 50_000;
    await store.checkpoint(); // the next rotation empties the previous filter
    t.ok((await store.append(draft(2))).duplicate, "a retry is recognised after 50 of 100 seconds");
  },
);
