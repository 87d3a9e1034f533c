// Streams over every state a crash can leave behind: what was acknowledged is there, once, and the
// producer goes on.

import { copyFileSync, statSync, truncateSync } from "node:fs";
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
import { ALL, crashedCopy, journalFiles, openStore, testFolder } from "./folder.ts";

const NOW_MS = Date.UTC(2026, 0, 1);
const at = { clock: () => NOW_MS };
const post =
  (type: string, data = "", over: Partial<StreamDraft> = {}) =>
  (store: Store) =>
    store.streamEvent(eventOf(type, data, over));
const say = (store: Store) => store.append(draftOf());
const second = { clientMsgNo: "s2" };

/** Everything that can happen to streams; the last one stays active. */
const STORY: readonly ((store: Store) => Promise<unknown>)[] = [
  say,
  post(STREAM_START, "meta", { eventId: "a" }),
  post(STREAM_CONTENT, "one ", { eventId: "b" }),
  say,
  post(TOOL, '{"q":1}', { eventId: "c" }),
  post(STREAM_CONTENT, "zwö"),
  post(STREAM_END, "fin", { eventId: "d" }),
  post(STREAM_START, "", second),
  post(STREAM_CONTENT, "two", second),
  post(STREAM_START, "", { clientMsgNo: "s3", force: true }),
  (store) => store.cancelStream(KEY, "s3"),
  say,
  post(STREAM_START, "", { clientMsgNo: "s4" }),
  post(STREAM_CONTENT, "go on", { clientMsgNo: "s4", eventId: "e" }),
];

/** All that reads show. */
async function shown(store: Store) {
  const names = ["s", "s2", "s3", "s4"];
  const streams = await Promise.all(names.map((no) => store.stream(KEY, no)));
  const offsets = await Promise.all(
    names.map(async (no, i) => {
      const indexes = Array.from({ length: streams[i]?.nextIndex ?? 0 });
      return Promise.all(indexes.map((_, index) => store.streamTextOffset(KEY, no, index)));
    }),
  );
  const { messages } = await store.readMessages(KEY, ALL);
  const active = await store.activeStream(KEY);
  return { streams, offsets, messages, active };
}

/** The retries of a story change nothing, and its active stream goes on. */
async function goOn(t: Test, store: EmbeddedStore): Promise<void> {
  const before = await shown(store);
  const again = { clientMsgNo: "s4", eventId: "e" };
  await store.streamEvent(eventOf(STREAM_CONTENT, "go on", again));
  await store.streamEvent(eventOf(STREAM_CONTENT, "one ", { eventId: "b" }));
  t.same(await shown(store), before, "a retry changes nothing");
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

const fromTheBeginning = (meta: Map<string, unknown[]>) =>
  void meta.set("journal", [1, 1, 0, meta.get("journal")?.at(3)]);

t.test("whatever the database has of it already, a replay gives the same streams", async (t) => {
  for (let moved = 0; moved <= STORY.length; moved++) {
    const path = testFolder(t);
    const store = await openStore(t, path, at);
    for (const [i, act] of STORY.entries()) {
      await act(store);
      if (i + 1 === moved || i + 1 === moved + 3) await store.checkpoint();
    }
    const expected = await shown(store);
    const crashed = await crashedCopy(t, path);
    const unmarked = await crashedCopy(t, path, fromTheBeginning);
    for (const copy of [crashed, unmarked]) {
      const again = await openStore(t, copy, at);
      t.same(await shown(again), expected, `${moved} were in the database`);
      await goOn(t, again);
      await again.close();
    }
    await store.close();
  }
});

t.test("a checkpoint cut off between its transactions is done again", async (t) => {
  const path = testFolder(t);
  const store = await openStore(t, path, at);
  for (const act of STORY) await act(store);
  const expected = await shown(store);
  await store.checkpoint();
  const tables = [
    ["streams", "streamTraces", "streamNames"],
    ["streamsActive", "streamParts"],
  ];
  for (const lost of [tables[0], tables[1], tables.flat()]) {
    const copy = await crashedCopy(t, path, fromTheBeginning);
    await clear(copy, lost ?? []);
    const again = await openStore(t, copy, at);
    t.same(await shown(again), expected);
    await goOn(t, again);
  }
});

/** Empties tables of a folder nobody has open. */
async function clear(path: string, names: readonly string[]): Promise<void> {
  const env = open({ path: join(path, "lmdb"), maxDbs: 32 });
  for (const name of names) await env.openDB({ name, keyEncoding: "binary" }).clearAsync();
  await env.close();
}

t.test(
  "a stream in many parts comes back in order, and its parts leave with its end",
  async (t) => {
    const path = testFolder(t);
    const store = await openStore(t, path, at);
    await store.streamEvent(eventOf(STREAM_START));
    for (let i = 0; i < 30; i++) {
      await store.streamEvent(eventOf(STREAM_CONTENT, `${i} `));
      await store.checkpoint();
    }
    const copy = await crashedCopy(t, path);
    const again = await openStore(t, copy, at);
    const text = Array.from({ length: 30 }, (_, i) => `${i} `).join("");
    t.match(await again.stream(KEY, "s"), { text, nextIndex: 31 });
    t.ok((await countIn(t, copy, "streamParts")) >= 30);
    await again.streamEvent(eventOf(STREAM_END));
    await again.checkpoint();
    t.match(await again.stream(KEY, "s"), { text, state: "closed" });
    await store.streamEvent(eventOf(STREAM_END));
    await store.checkpoint();
    for (const folder of [copy, path]) {
      for (const name of ["streamParts", "streamsActive"])
        t.equal(await countIn(t, folder, name), 0);
      for (const name of ["streams", "streamTraces", "streamNames"])
        t.equal(await countIn(t, folder, name), 1);
    }
  },
);

/** Entries in a table of a copy of the folder. */
async function countIn(t: Test, path: string, name: string): Promise<number> {
  const copy = await crashedCopy(t, path);
  const env = open({ path: join(copy, "lmdb"), maxDbs: 32 });
  const count = env.openDB({ name, keyEncoding: "binary" }).getKeysCount({});
  await env.close();
  return count;
}

t.test("a database that is ahead of the journal keeps its streams", async (t) => {
  const path = testFolder(t);
  const store = await openStore(t, path, at);
  for (const act of STORY) await act(store);
  const expected = await shown(store);
  await store.checkpoint();
  const copy = await crashedCopy(t, path);
  const [file] = journalFiles(copy);
  truncateSync(file ?? "", SEGMENT_HEADER_BYTES); // a power cut took what the page cache held
  const again = await openStore(t, copy, at);
  t.same(await shown(again), expected);
  await goOn(t, again);
});

t.test("old segments that were not deleted yet repeat nothing of a stream", async (t) => {
  const path = testFolder(t);
  const store = await openStore(t, path, { ...at, segmentBytes: 64 });
  for (const act of STORY) await act(store);
  const before = await crashedCopy(t, path);
  const expected = await shown(store);
  await store.checkpoint();
  const after = await crashedCopy(t, path, fromTheBeginning);
  for (const file of journalFiles(before)) copyFileSync(file, file.replace(before, after));
  const again = await openStore(t, after, at);
  t.same(await shown(again), expected);
  await goOn(t, again);
});

t.test("a journal that skips events of a stream refuses to start", async (t) => {
  const path = testFolder(t);
  const store = await openStore(t, path, at);
  await store.streamEvent(eventOf(STREAM_START));
  await store.streamEvent(eventOf(STREAM_CONTENT, "a"));
  await store.checkpoint();
  await store.streamEvent(eventOf(STREAM_CONTENT, "b"));
  const copy = await crashedCopy(t, path);
  await clear(copy, ["streamsActive"]);
  const refused = openStore(t, copy, at);
  await t.rejects(refused, { code: "internal", message: /skips events/ });
});

t.test("the count of red dots is exact after a crash, wherever the head comes from", async (t) => {
  const path = testFolder(t);
  const store = await openStore(t, path, at);
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
  const half = statSync(journalFiles(path)[0] ?? "").size;
  await send(store);
  const behind = await crashedCopy(t, path);
  await store.checkpoint();
  const repeated = await crashedCopy(t, path, fromTheBeginning);
  const ahead = await crashedCopy(t, path);
  truncateSync(journalFiles(ahead)[0] ?? "", SEGMENT_HEADER_BYTES);
  const halfAhead = await crashedCopy(t, path, fromTheBeginning);
  truncateSync(journalFiles(halfAhead)[0] ?? "", half);
  for (const copy of [behind, repeated, ahead, halfAhead]) {
    const again = await openStore(t, copy, at);
    await send(again);
    await again.close();
    const env = open({ path: join(copy, "lmdb"), maxDbs: 32 });
    const heads = env.openDB<number[], string>({ name: "heads" });
    t.same(heads.get(KEY), [2, 1, 12, 6]);
    await env.close();
  }
});
