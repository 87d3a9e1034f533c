// Runs the contract of logs against the embedded driver.

import type { Test } from "tap";
import {
  framesIn,
  LOG_START,
  type LogName,
  type LogOffset,
  recordsIn,
} from "../../../src/broker/log-frame.ts";
import type { LogEvent, LogLimits, LogStore } from "../../../src/broker/log-ports.ts";
import {
  appended,
  appendOf,
  created,
  draftOf,
  free,
  type LogFixture,
  read,
} from "../../contract/log-fixture.ts";
import { logContract } from "../../contract/store-logs.ts";
import { LOG_LIMITS } from "../../support/log-limits.ts";
import { t } from "../../support/suite.ts";
import { logRowsIn, storeIn, testFolder } from "./folder.ts";

async function openFixture(t: Test, limits: Partial<LogLimits> = {}): Promise<LogFixture> {
  const folder = testFolder(t);
  const events: LogEvent[] = [];
  let nowMs = Date.UTC(2040, 0, 1);
  const create = () =>
    storeIn(folder, {
      logs: { ...LOG_LIMITS, ...limits },
      clock: () => nowMs,
      publisher: {
        publish(event) {
          if (event.kind === "log") events.push(event);
        },
      },
    });
  let store = create();
  await store.start();
  t.teardown(() => store.close());
  return {
    get store() {
      return store;
    },
    events,
    now: () => nowMs,
    advance(ms) {
      nowMs += ms;
    },
    async reopen() {
      await store.close();
      store = create();
      await store.start();
    },
    async sweep() {
      await store.checkpoint();
      await store.sweep();
      await store.checkpoint();
    },
    leftovers: async () => logRowsIn(folder),
  };
}

logContract(t, { name: "embedded", open: openFixture });

t.test(
  "a read of a log from any offset returns the same frames before, during and after checkpoints and a restart",
  async (t) => {
    const folder = testFolder(t);
    const store = storeIn(folder, { logs: LOG_LIMITS });
    await store.start();
    const name = free("log");
    await created(store.createLog(name, draftOf()));
    const texts: string[] = [];
    const offsets = [LOG_START];
    let checkpoint = Promise.resolve();
    for (let i = 0; i < 300; i++) {
      // Small frames, frames of about the distance of two kept starts, and frames above a row's size
      const text = `${i}`.padEnd([10, 700, 4096, 20_000][i % 7] ?? 30, "x");
      const { tail } = await appended(store.appendLog(name, appendOf([text])));
      texts.push(text);
      offsets.push(tail);
      // The appends that follow are made while the checkpoint runs.
      if (i % 37 === 0) checkpoint = checkpoint.then(() => store.checkpoint());
      if (i % 53 === 0) await expectSuffixes(t, store, { name, texts, offsets });
    }
    await expectSuffixes(t, store, { name, texts, offsets });
    await checkpoint;
    await expectSuffixes(t, store, { name, texts, offsets });
    await store.checkpoint();
    const { memtableRecords, memtableBytes, activeLogBytes } = store.stats();
    t.same([memtableRecords, memtableBytes, activeLogBytes], [0, 0, 0]);
    await store.close();
    const restarted = storeIn(folder, { logs: LOG_LIMITS });
    await restarted.start();
    t.teardown(() => restarted.close());
    await expectSuffixes(t, restarted, { name, texts, offsets });
  },
);

/** Checks that a read from each offset returns the records after it, and no offset is in between. */
async function expectSuffixes(
  t: Test,
  store: LogStore,
  log: {
    readonly name: LogName;
    readonly texts: readonly string[];
    readonly offsets: readonly LogOffset[];
  },
): Promise<void> {
  const { name, texts, offsets } = log;
  const wrong: number[] = [];
  for (const [at, offset] of offsets.entries()) {
    const { pieces } = await read(store, name, offset, 9000);
    const records = pieces.flatMap((piece) =>
      [...framesIn(piece)].flatMap((frame) => recordsIn(frame).map(String)),
    );
    const isWrong =
      records.length === 0
        ? at < texts.length
        : records.some((record, i) => record !== texts[at + i]);
    if (isWrong) wrong.push(at);
    const between = { position: offset.position + 1, check: offset.check };
    if ((await store.readLog(name, { from: between, maxBytes: 9000 })).verdict === "read")
      wrong.push(at + 0.5);
  }
  t.same(wrong, []);
}

t.test("the bytes that a read of a log has returned never change", async (t) => {
  const folder = testFolder(t);
  const store = storeIn(folder, { logs: LOG_LIMITS });
  await store.start();
  t.teardown(() => store.close());
  const name = free("log");
  await created(store.createLog(name, draftOf()));
  const reads: { readonly pieces: readonly Uint8Array[]; readonly copies: readonly Buffer[] }[] =
    [];
  let checkpoint = Promise.resolve();
  for (let i = 0; i < 100; i++) {
    await appended(store.appendLog(name, appendOf([`${i}`.padEnd(200, "x")])));
    const { pieces } = await read(store, name);
    reads.push({ pieces, copies: pieces.map((piece) => Buffer.from(piece)) });
    if (i % 20 === 10) checkpoint = checkpoint.then(() => store.checkpoint());
  }
  await checkpoint;
  await appended(store.appendLog(name, appendOf(["last"])));
  for (const { pieces, copies } of reads)
    if (!pieces.every((piece, at) => copies[at]?.equals(piece))) t.fail("the bytes have changed");
  t.equal(reads.length, 100);
});
