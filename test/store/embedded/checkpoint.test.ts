// Checkpoints that fail: whatever part of a checkpoint was stored, the store continues, and a
// later crash loses nothing.

import { join } from "node:path";
import { open } from "lmdb";
import type { Test } from "tap";
import { EVENTS_START } from "../../../src/broker/event-ports.ts";
import { bucketOf } from "../../../src/broker/log-frame.ts";
import { STREAM_CONTENT, STREAM_START } from "../../../src/broker/model.ts";
import type { EmbeddedStore } from "../../../src/store/embedded/store.ts";
import { ALL, codeOf, draftOf, group } from "../../contract/store-fixture.ts";
import { eventOf, KEY } from "../../contract/store-stream-fixture.ts";
import { t } from "../../support/suite.ts";
import { brittleDatabase } from "./brittle-database.ts";
import { brittleFiles } from "./brittle-files.ts";
import { crashedCopy, openStore, testFolder, walFiles, withoutCheckpoint } from "./folder.ts";

const OTHER_CHANNEL = { channel: { id: "other", type: 2 } } as const;
const MESSAGES = 600;

/**
 * Fills a store with so much data of every kind that a checkpoint needs several transactions. Then
 * runs a checkpoint in which commit number `failing` fails.
 */
async function failCheckpoint(t: Test, failing: number) {
  const path = testFolder(t);
  const problems: string[] = [];
  const { fail, databaseWrites } = brittleDatabase();
  const onError = (_: Error, what: string) => void problems.push(what);
  const store = await openStore(t, path, { databaseWrites, onError });
  const calls = [store.streamEvent(eventOf(STREAM_START))];
  const sent: Promise<unknown>[] = [];
  for (let i = 0; i < MESSAGES; i++)
    sent.push(
      store.append(draftOf(OTHER_CHANNEL)),
      store.append(draftOf({ channel: { id: `g${i}`, type: 2 } })),
    );
  sent.push(store.append(draftOf({ clientMsgNo: "n" })));
  calls.push(store.streamEvent(eventOf(STREAM_CONTENT, "hello")));
  await Promise.all([...sent, ...calls]);
  Object.assign(fail, { commit: failing, commits: 0 });
  await store.checkpoint();
  return { path, store, fail, problems };
}

/** Asserts that the store has all messages and the stream, and that the stream continues. */
async function assertComplete(t: Test, store: EmbeddedStore): Promise<void> {
  t.match(await store.stream(KEY, "s"), { text: "hello", state: "active" });
  const { messages } = await store.readMessages("2:other", ALL);
  t.equal(messages.length, MESSAGES);
  const retry = draftOf({ clientMsgNo: "n" });
  t.match(await store.append(retry), { messageSeq: 2, duplicate: true });
  await store.streamEvent(eventOf(STREAM_CONTENT, "!"));
  await store.checkpoint();
  t.match(await store.stream(KEY, "s"), { text: "hello!", nextIndex: 3 });
}

t.test(
  "the store continues if any commit of a checkpoint fails, and a later crash loses no message",
  async (t) => {
    let failing = 1;
    for (; ; failing++) {
      const { path, store, fail, problems } = await failCheckpoint(t, failing);
      if (fail.commit > 0) break; // the checkpoint has fewer commits
      t.same(
        problems,
        ["A checkpoint failed and will be retried"],
        `the failure of commit ${failing} is reported`,
      );
      t.equal(await codeOf(store.ping()), "unavailable");
      const reopened = await openStore(t, await crashedCopy(t, path));
      await assertComplete(t, reopened);
      await reopened.close();
      await assertComplete(t, store);
      t.equal(await codeOf(store.ping()), undefined);
      await store.close();
    }
    t.ok(failing > 5, "several commits were made to fail");
  },
);

t.test(
  "old WAL segments are deleted only after the database has synced their contents to disk",
  async (t) => {
    const path = testFolder(t);
    const { fail, databaseWrites } = brittleDatabase();
    let onError = (_error: Error, _what: string) => {};
    const store = await openStore(t, path, {
      ...{ databaseWrites, segmentBytes: 64 },
      onError: (error, what) => onError(error, what),
    });
    for (let i = 0; i < 4; i++) await store.append(draftOf());
    const before = walFiles(path);
    t.equal(before.length, 4);
    fail.flush = true;
    const failed = new Promise<string>((resolve) => {
      onError = (_, what) => resolve(what);
    });
    await store.checkpoint();
    t.match(await failed, /WAL/);
    t.same(walFiles(path), before);
    fail.flush = false;
    await store.append(draftOf());
    await store.checkpoint();
    await store.close();
    t.same(walFiles(path), [], "the next checkpoint deletes the old segments");
  },
);

t.test(
  "rows of an active stream whose message is missing do not keep the store from starting, because the WAL contains the stream",
  async (t) => {
    const path = testFolder(t);
    const store = await openStore(t, path);
    await store.streamEvent(eventOf(STREAM_START));
    await store.streamEvent(eventOf(STREAM_CONTENT, "a"));
    await store.checkpoint();
    const copy = await crashedCopy(t, path, withoutCheckpoint);
    const env = open({ path: join(copy, "lmdb"), maxDbs: 48 });
    await env.openDB({ name: "log", keyEncoding: "binary" }).clearAsync();
    await env.close();
    const problems: string[] = [];
    const reopened = await openStore(t, copy, {
      onError: (_, what) => void problems.push(what),
    });
    t.same(problems, []);
    t.match(await reopened.stream(KEY, "s"), { text: "a", nextIndex: 2 });
    await reopened.streamEvent(eventOf(STREAM_CONTENT, "b"));
    await reopened.checkpoint();
    const later = await openStore(t, await crashedCopy(t, copy));
    t.match(await later.stream(KEY, "s"), { text: "ab", nextIndex: 3 });
  },
);

t.test(
  "the event of a channel change is in the event feed exactly once, even if writing the event fails and the store crashes",
  async (t) => {
    const { fail, files } = brittleFiles();
    const path = testFolder(t);
    const store = await openStore(t, path, { files, onError() {} });
    const eventsOf = async (from: EmbeddedStore) =>
      (await from.readEvents(bucketOf("2:g"), EVENTS_START, 9)).rows;
    await store.switchFeed(true);
    fail.write = 1;
    t.ok(await store.createChannel(group("g"), []));
    t.same(await eventsOf(store), [], "the event could not be written");
    const recovered = await openStore(t, await crashedCopy(t, path));
    t.match(await recovered.channel(group("g")), { id: "g" }, "the channel was stored");
    t.match(
      await eventsOf(recovered),
      [{ type: "channel.created" }],
      "the next start adds the event",
    );
    await store.updateChannel(group("g"), { ban: true });
    const rows = await eventsOf(store);
    t.match(rows, [{ type: "channel.created" }, { type: "channel.updated", fields: { ban: 1 } }]);
    const replayed = await openStore(t, await crashedCopy(t, path));
    t.strictSame(await eventsOf(replayed), rows, "the replay assigns the same ids");
    await store.checkpoint();
    const stored = await openStore(t, await crashedCopy(t, path));
    t.strictSame(
      await eventsOf(stored),
      rows,
      "the checkpoint has removed the events from the outbox",
    );
  },
);
