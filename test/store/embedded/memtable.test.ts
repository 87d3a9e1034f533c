// The limits of the memtable, and the checkpoints that keep it below them.

import { readdirSync } from "node:fs";
import { join } from "node:path";
import { setTimeout } from "node:timers/promises";
import { STREAM_START } from "../../../src/broker/model.ts";
import { appendOf, draftOf as draftOfLog, free } from "../../contract/log-fixture.ts";
import { codeOf, draftOf } from "../../contract/store-fixture.ts";
import { eventOf } from "../../contract/store-stream-fixture.ts";
import { LOG_LIMITS } from "../../support/log-limits.ts";
import { t } from "../../support/suite.ts";
import { openStore, seqsIn, testFolder } from "./folder.ts";

t.test(
  "sends above the limits of the memtable are refused with `overloaded` until a checkpoint has made space",
  async (t) => {
    for (const over of [{ maxMemtableRecords: 10 }, { maxMemtableBytes: 10 * 1300 }]) {
      const store = await openStore(t, testFolder(t), over);
      const payload = new Uint8Array(1000);
      const send = () => codeOf(store.append(draftOf({ payload })));
      t.same(await Promise.all(Array.from({ length: 5 }, send)), Array(5));
      const codes = await Promise.all(Array.from({ length: 100 }, send));
      const refused = codes.filter((code) => code === "overloaded").length;
      t.ok(refused >= 90 && refused < 100, `${refused} sends are refused`);
      await store.checkpoint();
      const { messageSeq } = await store.append(draftOf({ payload }));
      t.equal(messageSeq, 105 - refused + 1, "the seqs have no gap");
    }
  },
);

t.test(
  "a memtable that is a quarter full is flushed before the checkpoint interval ends",
  async (t) => {
    const over = { checkpointMs: 1_000_000, maxMemtableRecords: 100 };
    const store = await openStore(t, testFolder(t), over);
    const { checkpoints } = store.stats();
    for (let i = 0; i < 30; i++) void store.append(draftOf());
    while (store.stats().checkpoints === checkpoints) await new Promise(setImmediate);
    t.equal(store.stats().memtableRecords, 0);
    t.equal((await seqsIn(store)).length, 30);
  },
);

t.test(
  "a memtable with 3 MB of messages is flushed within half of the checkpoint interval, and one with 300 kB is not",
  async (t) => {
    for (const [payloadBytes, isFlushed] of [
      [300_000, true],
      [30_000, false],
    ] as const) {
      const store = await openStore(t, testFolder(t), { checkpointMs: 5000 });
      const payload = new Uint8Array(payloadBytes);
      for (let i = 0; i < 10; i++) await store.append(draftOf({ payload }));
      await setTimeout(2500);
      const isEmpty = store.stats().memtableRecords === 0;
      t.equal(isEmpty, isFlushed, `10 messages of ${payloadBytes} bytes`);
    }
  },
);

t.test(
  "logs and streams that fill a quarter of their limits are flushed within half of the checkpoint interval",
  async (t) => {
    const over = { checkpointMs: 5000, logs: { ...LOG_LIMITS, maxActiveBytes: 100_000 } };
    const withLog = await openStore(t, testFolder(t), over);
    await withLog.createLog(free("log"), draftOfLog());
    await withLog.appendLog(free("log"), appendOf(["x".repeat(30_000)]));
    const streams = { checkpointMs: 5000, maxActiveStreamBytes: 100_000 };
    const withStream = await openStore(t, testFolder(t), streams);
    await withStream.streamEvent(eventOf(STREAM_START, "x".repeat(20_000)));
    await setTimeout(2500);
    t.equal(withLog.stats().memtableRecords, 0, "logs");
    t.equal(withStream.stats().memtableRecords, 0, "streams");
  },
);

t.test(
  "calls that are queued in the same event-loop turn count towards the limit of the memtable",
  async (t) => {
    const store = await openStore(t, testFolder(t), { maxMemtableRecords: 10 });
    const sends = Array.from({ length: 50 }, () => codeOf(store.append(draftOf())));
    const codes = await Promise.all(sends);
    t.equal(codes.filter((code) => code === undefined).length, 10);
  },
);

t.test(
  "a checkpoint empties the memtable and never changes the messages that a read returns",
  async (t) => {
    const path = testFolder(t);
    const store = await openStore(t, path, { segmentBytes: 65_536 });
    const sends = Array.from({ length: 3000 }, (_, i) =>
      store.append(draftOf({ key: `2:g${i % 50}`, payload: new Uint8Array(100) })),
    );
    await Promise.all(sends.slice(0, 1500));
    for (let i = 0; i < 20; i++) {
      await store.append(draftOf());
      await new Promise(setImmediate);
    }
    const before = await seqsIn(store);
    const checkpoint = store.checkpoint();
    while (store.stats().checkpoints === 1) {
      t.same(await seqsIn(store), before);
      await new Promise(setImmediate);
    }
    await checkpoint;
    t.equal(store.stats().memtableRecords, 0);
    t.same(await seqsIn(store), before);
    await Promise.all(sends);
    t.equal((await seqsIn(store, "2:g7")).length, 60);
  },
);

t.test("messages sent during checkpoints keep their order and stay readable", async (t) => {
  const store = await openStore(t, testFolder(t), {
    checkpointMs: 1,
    segmentBytes: 4096,
  });
  const seqs: number[] = [];
  for (let i = 0; i < 100; i++) {
    const sends = Array.from({ length: 10 }, () => store.append(draftOf()));
    for (const { messageSeq } of await Promise.all(sends)) seqs.push(messageSeq);
    if (i % 10 === 0) t.same(await seqsIn(store), seqs);
  }
  t.same(await seqsIn(store), seqs);
  t.same(
    seqs,
    seqs.map((_, i) => i + 1),
  );
});

t.test("an orderly shutdown leaves no WAL file", async (t) => {
  const path = testFolder(t);
  const store = await openStore(t, path);
  await store.append(draftOf());
  await store.close();
  t.same(readdirSync(join(path, "journal")), []);
  const reopened = await openStore(t, path);
  t.same(await seqsIn(reopened), [1]);
});

t.test(
  "a message with an invalid field is refused, and the other messages of its batch are stored",
  async (t) => {
    const store = await openStore(t, testFolder(t));
    const sends = [
      store.append(draftOf()),
      store.append(draftOf({ clientMsgNo: "n".repeat(301) })),
      store.append(draftOf({ expireS: -1 })),
      store.append(draftOf({ expireS: 2 ** 32 })),
      store.append(draftOf()),
    ];
    t.same(await Promise.all(sends.map(codeOf)), [
      undefined,
      "too_large",
      "bad_request",
      "bad_request",
      undefined,
    ]);
    t.same(await seqsIn(store), [1, 2]);
    const longest = "\uffff".repeat(300);
    const big = draftOf({
      key: `1:${longest}@${longest}`,
      channel: { id: longest, type: 1 },
      fromUid: longest,
      clientMsgNo: longest,
      expireS: 2 ** 32 - 1,
      payload: new Uint8Array(200_000),
    });
    await store.append(big);
    await store.checkpoint();
    t.equal((await store.append(big)).duplicate, true);
    t.same(await seqsIn(store, big.key), [1]);
  },
);
