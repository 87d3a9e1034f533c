// Logs after every state that a crash or a failed write can leave: acknowledged changes are stored
// once, and writers continue.

import type { Test } from "tap";
import { LOG_START } from "../../../src/broker/log-frame.ts";
import type { LogStore } from "../../../src/broker/log-ports.ts";
import { STREAM_START } from "../../../src/broker/model.ts";
import type { EmbeddedStore } from "../../../src/store/embedded/store.ts";
import {
  appended,
  appendOf,
  appendsOf,
  bytesOf,
  created,
  draftOf,
  forkOf,
  free,
  producerOf,
} from "../../contract/log-fixture.ts";
import { codeOf } from "../../contract/store-fixture.ts";
import { eventOf } from "../../contract/store-stream-fixture.ts";
import { LOG_LIMITS } from "../../support/log-limits.ts";
import { t } from "../../support/suite.ts";
import { sample } from "../../support/volume.ts";
import { brittleDatabase } from "./brittle-database.ts";
import { brittleFiles } from "./brittle-files.ts";
import { crashedCopy, openAfterKill, openStore, testFolder, withoutCheckpoint } from "./folder.ts";
import { startChild } from "./process.ts";

const OPTIONS = { clock: () => Date.UTC(2040, 0, 1), logs: LOG_LIMITS };
const NAMES = ["a", "b", "c", "d", "e"].map(free);
const [A, B, C, D, E] = NAMES as [
  ReturnType<typeof free>,
  ReturnType<typeof free>,
  ReturnType<typeof free>,
  ReturnType<typeof free>,
  ReturnType<typeof free>,
];

/** Every kind of change to logs. */
const CHANGES: readonly ((store: LogStore) => Promise<unknown>)[] = [
  (store) => created(store.createLog(A, draftOf({ ttlS: 1000 }))),
  (store) => appended(store.appendLog(A, appendOf(["one"], producerOf(0)))),
  (store) => appended(store.appendLog(A, appendOf(["x".repeat(30_000)], producerOf(1)))),
  (store) => created(store.createLog(B, draftOf({ records: [bytesOf("b")], closed: "closed" }))),
  (store) => created(store.createLog(C, draftOf({ origin: forkOf("a", undefined) }))),
  (store) => appended(store.appendLog(C, appendOf(["own"], { order: "1" }))),
  (store) => appended(store.appendLog(A, appendOf(["two"], producerOf(2)))),
  (store) => store.deleteLog(A),
  (store) => created(store.createLog(D, draftOf({ origin: forkOf("b", LOG_START, 1) }))),
  (store) => store.deleteLog(B),
  (store) => created(store.createLog(E, draftOf({ origin: forkOf("c") }))),
  (store) => store.deleteLog(C),
  (store) => store.deleteLog(D),
  (store) => created(store.createLog(B, draftOf({ contentType: "text/html" }))),
  (store) => appended(store.appendLog(E, appendOf(["end"], { close: "interrupted" }))),
];

/** Returns the results of all reads. */
async function readEverything(store: LogStore) {
  const heads = await Promise.all(NAMES.map((name) => store.logHead(name)));
  const appends = [];
  for (const [i, name] of NAMES.entries())
    appends.push(typeof heads[i] === "string" ? [] : await appendsOf(store, name));
  return { heads, appends };
}

/** Asserts that the logs of all changes can be written, forked and removed. */
async function assertContinues(t: Test, store: EmbeddedStore): Promise<void> {
  t.equal(
    (await store.createLog(A, draftOf())).verdict,
    "deleted",
    "the log a has a fork of a fork",
  );
  t.match(await store.appendLog(E, appendOf(["late"])), { verdict: "closed" });
  await appended(store.appendLog(B, appendOf(["new"], { contentType: "text/html" })));
  t.strictSame(await appendsOf(store, B), [["new"]]);
  t.equal(await store.deleteLog(E), "done");
  t.strictSame(
    await Promise.all([A, C, E].map((name) => store.logHead(name))),
    ["missing", "missing", "missing"],
    "the last fork removed its sources",
  );
  await created(store.createLog(A, draftOf()));
  t.match(await store.appendLog(A, appendOf(["1"], producerOf(0))), { verdict: "appended" });
}

t.test(
  "a WAL replay restores the same logs, however many changes are already in the database",
  async (t) => {
    for (const stored of sample([...CHANGES.keys(), CHANGES.length])) {
      const path = testFolder(t);
      const store = await openStore(t, path, OPTIONS);
      for (const [i, act] of CHANGES.entries()) {
        await act(store);
        if (i + 1 === stored || i + 1 === stored + 3) await store.checkpoint();
      }
      const expected = await readEverything(store);
      for (const change of [undefined, withoutCheckpoint]) {
        const reopened = await openStore(t, await crashedCopy(t, path, change), OPTIONS);
        t.strictSame(
          await readEverything(reopened),
          expected,
          `the logs are restored if ${stored} changes were in the database`,
        );
        await assertContinues(t, reopened);
        await reopened.close();
      }
      await store.close();
    }
  },
);

t.test(
  "a checkpoint whose transactions fail is repeated, and the logs do not change",
  async (t) => {
    for (let failing = 1; failing <= 4; failing++) {
      const { fail, databaseWrites } = brittleDatabase();
      const path = testFolder(t);
      const options = { ...OPTIONS, databaseWrites, onError() {} };
      const store = await openStore(t, path, options);
      for (const [i, act] of CHANGES.entries()) {
        await act(store);
        if (i % 4 !== 3) continue;
        fail.commit = failing;
        await store.checkpoint();
      }
      fail.commit = 0;
      const expected = await readEverything(store);
      const copy = await openStore(t, await crashedCopy(t, path), OPTIONS);
      t.strictSame(await readEverything(copy), expected, `after a crash, commit ${failing} failed`);
      await copy.close();
      await store.checkpoint();
      t.strictSame(await readEverything(store), expected, `commit ${failing} failed`);
      await assertContinues(t, store);
      await store.close();
    }
  },
);

t.test("a small log that is closed after a failed checkpoint stores each frame once", async (t) => {
  for (let failing = 1; failing <= 4; failing++) {
    const { fail, databaseWrites } = brittleDatabase();
    const path = testFolder(t);
    const store = await openStore(t, path, { ...OPTIONS, databaseWrites, onError() {} });
    await created(store.createLog(A, draftOf()));
    await appended(store.appendLog(A, appendOf(["one"])));
    fail.commit = failing;
    await store.checkpoint();
    fail.commit = 0;
    await appended(store.appendLog(A, appendOf(["two"], { close: "closed" })));
    await store.checkpoint();
    t.strictSame(await appendsOf(store, A), [["one"], ["two"]], `commit ${failing} failed`);
    await store.close();
  }
});

for (const durability of ["process", "disk"] as const)
  t.test(
    `with durability ${durability}, changes to logs that cannot be written are undone`,
    async (t) => {
      const { fail, files } = brittleFiles();
      const path = testFolder(t);
      const store = await openStore(t, path, { ...OPTIONS, durability, files, onError() {} });
      await created(store.createLog(A, draftOf()));
      await appended(store.appendLog(A, appendOf(["0"], producerOf(0))));
      await created(store.createLog(B, draftOf({ origin: forkOf("a") })));
      const before = await readEverything(store);
      const calls = () => [
        store.appendLog(A, appendOf(["1"], { ...producerOf(1), order: "1" })),
        store.appendLog(A, appendOf(["2"], { ...producerOf(2), close: "closed" })),
        store.deleteLog(B),
        store.createLog(B, draftOf({ contentType: "text/html" })),
        store.createLog(C, draftOf({ origin: forkOf("a"), records: [bytesOf("c")] })),
        store.deleteLog(A),
      ];
      fail.write = 1;
      const codes = await Promise.all(calls().map(codeOf));
      t.strictSame(codes, Array(codes.length).fill("disk_full"));
      t.strictSame(await readEverything(store), before, "nothing has changed");
      const results = await Promise.all(calls());
      t.match(results[0], { verdict: "appended" });
      t.match(results[1], { verdict: "appended", closed: "closed" });
      t.match(results[4], { verdict: "created", head: { records: 4 } });
      t.equal(results[5], "done");
      const expected = await readEverything(store);
      t.equal(expected.heads[0], "deleted");
      await store.checkpoint();
      t.strictSame(await readEverything(store), expected);
    },
  );

t.test("an append that would exceed `maxActiveBytes` is rejected until a checkpoint", async (t) => {
  const logs = { ...LOG_LIMITS, maxActiveBytes: 10_000 };
  const store = await openStore(t, testFolder(t), { ...OPTIONS, logs });
  await created(store.createLog(A, draftOf()));
  const append = () => store.appendLog(A, appendOf(["x".repeat(6000)]));
  await appended(append());
  t.equal(await codeOf(append()), "overloaded");
  t.match(store.stats(), { openLogs: 1 });
  t.ok(store.stats().activeLogBytes > 6000);
  await store.checkpoint();
  t.equal(store.stats().activeLogBytes, 0);
  await appended(append());
});

t.test(
  "a fork is rejected if it and concurrent forks would copy more than `maxActiveBytes`",
  async (t) => {
    const logs = { ...LOG_LIMITS, maxActiveBytes: 10_000 };
    const store = await openStore(t, testFolder(t), { ...OPTIONS, logs });
    const { key, channel, fromUid, clientMsgNo } = eventOf(STREAM_START);
    const draft = {
      ...({ key, channel, fromUid, clientMsgNo, permission: "granted", isClosed: true } as const),
      ...{ contentType: "text/plain", records: [bytesOf("x".repeat(6000))] },
    } as const;
    t.match(await store.createStream(draft), { verdict: "created" });
    await store.checkpoint();
    const source = { kind: "channel", key, clientMsgNo } as const;
    const fork = draftOf({ origin: { source, offset: undefined, subOffset: 0 } });
    const forks = await Promise.all([A, B, C].map((name) => codeOf(store.createLog(name, fork))));
    t.same(forks, [undefined, "overloaded", "overloaded"], "only one copy fits");
    t.equal(await store.logHead(B), "missing", "nothing is left of a rejected fork");
  },
);

t.test(
  "every acknowledged append is in its log once, in the order of the appends, after a kill -9 under load, and the producer continues",
  async (t) => {
    const path = testFolder(t);
    const acknowledged = [0, 0, 0];
    for (const count of [1, 200, 1000]) {
      const child = startChild(t, [path, "log", JSON.stringify(acknowledged)]);
      await child.line(() => child.lines.length >= count);
      await child.kill();
      for (const { worker, count, verdict } of child.lines) {
        if (worker === undefined || count === undefined) continue;
        if (verdict !== "appended" && verdict !== "repeated")
          t.fail(`append ${count} of worker ${worker} was answered with ${verdict}`);
        acknowledged[worker] = Math.max(acknowledged[worker] ?? 0, count + 1);
      }
    }
    const store = await openAfterKill(t, path);
    for (const [worker, count] of acknowledged.entries()) {
      const texts = (await appendsOf(store, free(`w${worker}`))).flat();
      t.strictSame(
        texts,
        texts.map((_, i) => `${i};`),
        "the appends are in order and without gaps",
      );
      t.ok(texts.length >= count, `all ${count} acknowledged appends are stored`);
    }
  },
);
