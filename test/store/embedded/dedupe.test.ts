// The time for which a retry is recognised by its clientMsgNo, in memory and in the database.

import type { Test } from "tap";
import { draftOf, REUSED } from "../../contract/store-fixture.ts";
import { t } from "../../support/suite.ts";
import { crashedCopy, openStore, testFolder } from "./folder.ts";

const WINDOW_MS = 10_000;
const OTHER = new TextEncoder().encode('{"type":2}');
const draft = (clientMsgNo: string) => draftOf({ clientMsgNo });

function setUp(t: Test) {
  const path = testFolder(t);
  const time = { nowMs: Date.UTC(2026, 0, 1) };
  const open = (at = path) =>
    openStore(t, at, {
      clock: () => time.nowMs,
      dedupeWindowS: WINDOW_MS / 1000,
    });
  return { path, time, open };
}

t.test(
  "a retry is recognised until the dedupe window ends, to the millisecond, in memory and in the database",
  async (t) => {
    for (const checkpoint of [false, true]) {
      const { time, open } = setUp(t);
      const store = await open();
      const first = await store.append(draft("n"));
      if (checkpoint) await store.checkpoint();
      time.nowMs += WINDOW_MS - 1;
      t.same(await store.append(draft("n")), { ...first, duplicate: true });
      time.nowMs += 1;
      const late = await store.append(draft("n"));
      t.match(late, { messageSeq: 2, duplicate: false });
      if (checkpoint) await store.checkpoint();
      t.same(await store.append(draft("n")), { ...late, duplicate: true });
    }
  },
);

t.test(
  "a retry and a reused clientMsgNo are recognised within the dedupe window over many checkpoints, restarts and a crash",
  async (t) => {
    const { path, time, open } = setUp(t);
    const sentAt = new Map<string, number>();
    let store = await open();
    for (let i = 0; i < 25; i++) {
      time.nowMs += 1500;
      await store.append(draft(`n${i}`));
      sentAt.set(`n${i}`, time.nowMs);
      if (i % 3 === 0) await store.checkpoint();
      if (i % 7 === 6) {
        await store.close();
        store = await open();
      }
    }
    const crashed = await open(await crashedCopy(t, path));
    for (const [name, at] of sentAt) {
      const isRemembered = time.nowMs - at < WINDOW_MS;
      if (isRemembered) t.same(await crashed.append({ ...draft(name), payload: OTHER }), REUSED);
      const { duplicate } = await crashed.append(draft(name));
      t.equal(duplicate, isRemembered, name);
    }
  },
);

t.test("a clock that is set back does not end the dedupe window", async (t) => {
  const { time, open } = setUp(t);
  const store = await open();
  await store.append(draft("n"));
  await store.checkpoint();
  time.nowMs -= WINDOW_MS * 5;
  t.equal((await store.append(draft("n"))).duplicate, true);
  await store.append(draft("m"));
  await store.checkpoint();
  t.equal((await store.append(draft("n"))).duplicate, true);
  t.equal((await store.append(draft("m"))).duplicate, true);
});

t.test("retries during a checkpoint are recognised", async (t) => {
  const { open } = setUp(t);
  const store = await open();
  const sends = Array.from({ length: 5000 }, (_, i) => store.append(draft(`n${i}`)));
  await Promise.all(sends);
  const checkpoint = store.checkpoint();
  let missed = 0;
  for (let i = 0; i < 5000; i += 50) {
    if (!(await store.append(draft(`n${i}`))).duplicate) missed++;
    await new Promise(setImmediate);
  }
  await checkpoint;
  for (let i = 0; i < 5000; i += 50) if (!(await store.append(draft(`n${i}`))).duplicate) missed++;
  t.equal(missed, 0);
  t.equal(store.stats().appends, 5000);
  t.equal(store.stats().duplicates, 200);
  t.equal(store.stats().memtableRecords, 0);
});
