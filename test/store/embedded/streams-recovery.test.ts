// Streams after every state that a crash can leave: acknowledged events are stored once, and the
// producer continues.

import { statSync, truncateSync } from "node:fs";
import { join } from "node:path";
import { open } from "lmdb";
import type { Test } from "tap";
import { STREAM_CONTENT, STREAM_END, STREAM_START } from "../../../src/broker/model.ts";
import type { Store, StreamDraft } from "../../../src/broker/ports.ts";
import { SEGMENT_HEADER_BYTES } from "../../../src/store/embedded/engine/segment.ts";
import type { EmbeddedStore } from "../../../src/store/embedded/store.ts";
import { draftOf } from "../../contract/store-fixture.ts";
import { eventOf, KEY, TOOL } from "../../contract/store-stream-fixture.ts";
import { t } from "../../support/suite.ts";
import { sample } from "../../support/volume.ts";
import {
  ALL,
  copyWal,
  crashedCopy,
  inAnotherBoot,
  openStore,
  seqsIn,
  testFolder,
  walFiles,
  withoutCheckpoint,
} from "./folder.ts";

const NOW_MS = Date.UTC(2026, 0, 1);
const OPTIONS = { clock: () => NOW_MS };
const post =
  (type: string, data = "", over: Partial<StreamDraft> = {}) =>
  (store: Store) =>
    store.streamEvent(eventOf(type, data, over));
const sendMessage = (store: Store) => store.append(draftOf());
const second = { clientMsgNo: "s2" };

/** Every kind of change to streams. The last stream stays active. */
const CHANGES: readonly ((store: Store) => Promise<unknown>)[] = [
  sendMessage,
  post(STREAM_START, "meta", { eventId: "a" }),
  post(STREAM_CONTENT, "one ", { eventId: "b" }),
  sendMessage,
  post(TOOL, '{"q":1}', { eventId: "c" }),
  post(STREAM_CONTENT, "zwö"),
  post(STREAM_END, "fin", { eventId: "d" }),
  post(STREAM_START, "", second),
  post(STREAM_CONTENT, "two", second),
  post(STREAM_START, "", { clientMsgNo: "s3", force: true }),
  (store) => store.cancelStream(KEY, "s3"),
  sendMessage,
  post(STREAM_START, "", { clientMsgNo: "s4" }),
  post(STREAM_CONTENT, "go on", { clientMsgNo: "s4", eventId: "e" }),
];

/** Returns the results of all reads. */
async function readEverything(store: Store) {
  const names = ["s", "s2", "s3", "s4"];
  const streams = await Promise.all(names.map((no) => store.stream(KEY, no)));
  const offsets = await Promise.all(
    names.map(async (no, i) => {
      const indexes = Array.from({ length: streams[i]?.nextIndex ?? 0 });
      return Promise.all(indexes.map((_, index) => store.streamTextOffset(KEY, no, index)));
    }),
  );
  const { messages } = await store.readMessages(KEY, ALL);
  const active = (await store.activeStreams([KEY]))[0];
  return { streams, offsets, messages, active };
}

/** Asserts that retries of the changes have no effect, and that the active stream continues. */
async function assertContinues(t: Test, store: EmbeddedStore): Promise<void> {
  const before = await readEverything(store);
  const retryFields = { clientMsgNo: "s4", eventId: "e" };
  await store.streamEvent(eventOf(STREAM_CONTENT, "go on", retryFields));
  await store.streamEvent(eventOf(STREAM_CONTENT, "one ", { eventId: "b" }));
  t.same(await readEverything(store), before, "a retry changes nothing");
  const { length } = before.messages;
  await store.streamEvent(eventOf(STREAM_CONTENT, "!", { clientMsgNo: "s4" }));
  await store.streamEvent(eventOf(STREAM_END, "", { clientMsgNo: "s4" }));
  const check = async () =>
    t.match(await store.stream(KEY, "s4"), {
      ...{ text: "go on!", state: "closed", nextIndex: 4 },
      messageSeq: length,
    });
  await check();
  await store.checkpoint();
  await check();
  t.equal((await store.append(draftOf())).messageSeq, length + 1);
  t.equal(store.stats().activeStreamBytes, 0);
}

t.test(
  "a WAL replay restores the same streams, however many events are already in the database",
  async (t) => {
    for (const stored of sample([...CHANGES.keys(), CHANGES.length])) {
      const path = testFolder(t);
      const store = await openStore(t, path, OPTIONS);
      for (const [i, act] of CHANGES.entries()) {
        await act(store);
        if (i + 1 === stored || i + 1 === stored + 3) await store.checkpoint();
      }
      const expected = await readEverything(store);
      const crashed = await crashedCopy(t, path);
      const unmarked = await crashedCopy(t, path, withoutCheckpoint);
      for (const copy of [crashed, unmarked]) {
        const reopened = await openStore(t, copy, OPTIONS);
        t.same(
          await readEverything(reopened),
          expected,
          `the streams are restored if ${stored} events were in the database`,
        );
        await assertContinues(t, reopened);
        await reopened.close();
      }
      await store.close();
    }
  },
);

t.test("no stream is lost if a checkpoint was interrupted between its transactions", async (t) => {
  const path = testFolder(t);
  const store = await openStore(t, path, OPTIONS);
  for (const act of CHANGES) await act(store);
  const expected = await readEverything(store);
  await store.checkpoint();
  const tables = [
    ["logNames", "logHeads"],
    ["streamsActive", "streamEnds"],
  ];
  for (const emptied of [tables[0], tables[1], tables.flat()]) {
    const copy = await crashedCopy(t, path, withoutCheckpoint);
    await clear(copy, emptied ?? []);
    const reopened = await openStore(t, copy, OPTIONS);
    t.same(await readEverything(reopened), expected);
    await assertContinues(t, reopened);
  }
});

/** Empties tables of a folder that no process has open. */
async function clear(path: string, names: readonly string[]): Promise<void> {
  const env = open({ path: join(path, "lmdb"), maxDbs: 32 });
  for (const name of names) await env.openDB({ name, keyEncoding: "binary" }).clearAsync();
  await env.close();
}

t.test(
  "a stream that 30 checkpoints have written is read in order, and is stored in one log when it ends",
  async (t) => {
    const path = testFolder(t);
    const store = await openStore(t, path, OPTIONS);
    await store.streamEvent(eventOf(STREAM_START));
    for (let i = 0; i < 30; i++) {
      await store.streamEvent(eventOf(STREAM_CONTENT, `${i} `));
      await store.checkpoint();
    }
    const copy = await crashedCopy(t, path);
    const reopened = await openStore(t, copy, OPTIONS);
    const text = Array.from({ length: 30 }, (_, i) => `${i} `).join("");
    t.match(await reopened.stream(KEY, "s"), { text, nextIndex: 31 });
    t.equal(await countIn(t, copy, "streamsActive"), 1);
    await reopened.streamEvent(eventOf(STREAM_END));
    await reopened.checkpoint();
    t.match(await reopened.stream(KEY, "s"), { text, state: "closed" });
    await store.streamEvent(eventOf(STREAM_END));
    await store.checkpoint();
    for (const folder of [copy, path]) {
      for (const name of ["streamsActive", "logFrames"])
        t.equal(await countIn(t, folder, name), 0, name);
      for (const name of ["logNames", "logHeads"]) t.equal(await countIn(t, folder, name), 1, name);
    }
  },
);

/** Returns the number of rows of a table in a copy of the folder. */
async function countIn(t: Test, path: string, name: string): Promise<number> {
  const copy = await crashedCopy(t, path);
  const env = open({ path: join(copy, "lmdb"), maxDbs: 32 });
  const count = env.openDB({ name, keyEncoding: "binary" }).getKeysCount({});
  await env.close();
  return count;
}

t.test(
  "a power loss that undoes the removal of a stream does not affect a new stream of the same name",
  async (t) => {
    const path = testFolder(t);
    const time = { nowMs: NOW_MS };
    const over = { clock: () => time.nowMs, retentionS: 60, dedupeWindowS: 1, segmentBytes: 64 };
    const store = await openStore(t, path, over);
    const produce = async (text: string) => {
      await store.streamEvent(eventOf(STREAM_START));
      await store.streamEvent(eventOf(STREAM_CONTENT, text));
      await store.streamEvent(eventOf(STREAM_END));
    };
    await produce("x".repeat(5000));
    const inWal = await crashedCopy(t, path);
    await store.checkpoint();
    const inDatabase = await crashedCopy(t, path);
    time.nowMs += 60_000;
    t.equal(await store.sweep(), 1);
    await produce("new");
    for (const copy of [inWal, inDatabase]) {
      copyWal(path, copy);
      const reopened = await openStore(t, copy, over);
      t.match(await reopened.stream(KEY, "s"), { text: "new", state: "closed", messageSeq: 2 });
      await reopened.checkpoint();
      await reopened.sweep();
      t.match(await reopened.stream(KEY, "s"), { text: "new", state: "closed", messageSeq: 2 });
      t.same(await seqsIn(reopened), [2]);
      for (const name of ["logNames", "logHeads"]) t.equal(await countIn(t, copy, name), 1, name);
      for (const name of ["streamsActive", "logFrames"])
        t.equal(await countIn(t, copy, name), 0, name);
    }
  },
);

t.test("streams survive a power loss that leaves the database ahead of the WAL", async (t) => {
  const path = testFolder(t);
  const store = await openStore(t, path, OPTIONS);
  for (const act of CHANGES) await act(store);
  const expected = await readEverything(store);
  await store.checkpoint();
  const copy = await crashedCopy(t, path, inAnotherBoot);
  const [file] = walFiles(copy);
  // A power loss removed the content of the page cache.
  truncateSync(file ?? "", SEGMENT_HEADER_BYTES);
  const reopened = await openStore(t, copy, OPTIONS);
  t.same(await readEverything(reopened), expected);
  await assertContinues(t, reopened);
});

t.test("events of a stream are not applied again if old WAL segments still exist", async (t) => {
  const path = testFolder(t);
  const store = await openStore(t, path, { ...OPTIONS, segmentBytes: 64 });
  for (const act of CHANGES) await act(store);
  const before = await crashedCopy(t, path);
  const expected = await readEverything(store);
  await store.checkpoint();
  const after = await crashedCopy(t, path, withoutCheckpoint);
  copyWal(before, after);
  const reopened = await openStore(t, after, OPTIONS);
  t.same(await readEverything(reopened), expected);
  await assertContinues(t, reopened);
});

t.test(
  "the count of messages with a red dot is exact after a crash, whether the WAL, the database or both contain the channel's head",
  async (t) => {
    const path = testFolder(t);
    const store = await openStore(t, path, OPTIONS);
    const quiet = { header: { noPersist: false, redDot: false } };
    const send = async (to: Store) => {
      await to.append(draftOf());
      await to.append(draftOf(quiet));
      await to.append(draftOf({ expireS: 60 }));
      await to.streamEvent(eventOf(STREAM_START, "", { force: true, clientMsgNo: `n${sent++}` }));
    };
    let sent = 0;
    await send(store);
    await store.checkpoint();
    const half = statSync(walFiles(path)[0] ?? "").size;
    await send(store);
    const beforeCheckpoint = await crashedCopy(t, path);
    await store.checkpoint();
    const repeated = await crashedCopy(t, path, withoutCheckpoint);
    const ahead = await crashedCopy(t, path, inAnotherBoot);
    truncateSync(walFiles(ahead)[0] ?? "", SEGMENT_HEADER_BYTES);
    const halfAhead = await crashedCopy(t, path, withoutCheckpoint);
    truncateSync(walFiles(halfAhead)[0] ?? "", half);
    for (const copy of [beforeCheckpoint, repeated, ahead, halfAhead]) {
      const reopened = await openStore(t, copy, OPTIONS);
      await send(reopened);
      await reopened.close();
      const env = open({ path: join(copy, "lmdb"), maxDbs: 32 });
      const heads = env.openDB<number[], string>({ name: "heads" });
      t.same(heads.get(KEY)?.slice(0, 4), [3, 1, 12, 6]);
      await env.close();
    }
  },
);
