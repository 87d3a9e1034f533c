// Streams with size limits, failed writes, slow disks and a retention time.

import { join } from "node:path";
import { open, type RootDatabase } from "lmdb";
import type { Test } from "tap";
import { LOG_START } from "../../../src/broker/log-frame.ts";
import { STREAM_CONTENT, STREAM_END, STREAM_START } from "../../../src/broker/model.ts";
import type { ClusterEvent, StreamDraft } from "../../../src/broker/ports.ts";
import type { EmbeddedStore } from "../../../src/store/embedded/store.ts";
import { appendOf, free, draftOf as logDraftOf } from "../../contract/log-fixture.ts";
import { FORK_RETENTION_S, forksOfRemovedStreams } from "../../contract/store-channel-logs.ts";
import { codeOf, draftOf, retryOf, StoreFixture } from "../../contract/store-fixture.ts";
import { eventOf, KEY, TOOL } from "../../contract/store-stream-fixture.ts";
import { mountSmallDisk } from "../../support/small-disk.ts";
import { t } from "../../support/suite.ts";
import { brittleDatabase } from "./brittle-database.ts";
import { brittleFiles } from "./brittle-files.ts";
import {
  ALL,
  crashedCopy,
  logRowsIn,
  openStore,
  seqsIn,
  storeIn,
  sweptStoreIn,
  testFolder,
} from "./folder.ts";

/** Number of expired streams, more than one step of a sweep removes. */
const EXPIRED = 250;

/** Returns calls that post events to a store. */
function producer(store: EmbeddedStore) {
  const post =
    (type: string) =>
    (data = "", over: Partial<StreamDraft> = {}) =>
      store.streamEvent(eventOf(type, data, over));
  return {
    start: post(STREAM_START),
    content: post(STREAM_CONTENT),
    tool: post(TOOL),
    end: post(STREAM_END),
  };
}

t.test("a stream that has reached its size limit accepts no more data", async (t) => {
  const path = testFolder(t);
  const over = { maxStreamBytes: 9 };
  const store = await openStore(t, path, over);
  const { start, content, end } = producer(store);
  t.equal(await codeOf(start("12345678901")), "too_large");
  t.equal(await store.headSeq(KEY), 0);
  await start("12");
  await content("äöü");
  t.equal(await codeOf(content("123")), "too_large");
  t.equal(await codeOf(end("123")), "too_large");
  await content("");
  t.equal(await codeOf(content("")), "too_large", "empty events count too");
  t.match(await store.stream(KEY, "s"), { text: "äöü", nextIndex: 3 });
  const reopened = await openStore(t, await crashedCopy(t, path), over);
  const late = producer(reopened);
  t.equal(await codeOf(late.content("1")), "too_large", "the limit is the same after a restart");
  t.match(await late.end(), { state: "closed" });
});

t.test(
  "a silent stream whose log cannot be read does not affect other streams and messages",
  async (t) => {
    const { databaseWrites } = brittleDatabase();
    let env: RootDatabase | undefined;
    const batch: typeof databaseWrites.batch = (written, ...rest) => {
      env = written;
      return databaseWrites.batch(written, ...rest);
    };
    const time = { nowMs: Date.UTC(2026, 0, 1) };
    const problems: string[] = [];
    const store = await openStore(t, testFolder(t), {
      clock: () => time.nowMs,
      databaseWrites: { ...databaseWrites, batch },
      logs: { maxBytes: 1e6, maxRecords: 1e6, maxProducers: 9, maxOpen: 1, maxActiveBytes: 1e6 },
      onError: (_, what) => void problems.push(what),
    });
    const second = { id: "h", type: 2 } as const;
    for (const channel of [{ id: "g", type: 2 } as const, second])
      await store.streamEvent(eventOf(STREAM_START, "", { channel }));
    await store.checkpoint();
    await store.createLog(free("other"), logDraftOf()); // the heads of the streams leave the memory
    const heads = env?.openDB<Buffer, Buffer>({
      ...{ name: "logHeads", keyEncoding: "binary", encoding: "binary" },
    });
    const { key, value } = [...(heads?.getRange({}) ?? [])][1] ?? {};
    if (heads === undefined || key === undefined) throw new Error("there is no second log");
    await heads.put(key, Buffer.from([value?.[0] ?? 0, 99]));
    time.nowMs += 1000;
    const calls = [store.interruptStreams(100), store.append(draftOf())];
    t.match(await Promise.all(calls), [1, { messageSeq: 2 }]);
    t.match(await store.stream(KEY, "s"), { state: "interrupted" });
    t.same(problems, ["Could not interrupt a silent stream"]);
  },
);

t.test("a stream that has exactly reached its size limit can end without data", async (t) => {
  const store = await openStore(t, testFolder(t), { maxStreamBytes: 2 });
  const { start, content, end } = producer(store);
  await start();
  await content("1");
  t.equal(await codeOf(content("2")), "too_large");
  t.match(await end(), { verdict: "done", state: "closed" });
});

t.test(
  "stream starts and content that exceed the memory limit for all streams are refused with `overloaded`, but ends are accepted and free memory",
  async (t) => {
    const store = await openStore(t, testFolder(t), {
      maxActiveStreamBytes: 20_000,
    });
    const { start, content, end } = producer(store);
    await start();
    let accepted = 0;
    while ((await codeOf(content("x".repeat(100)))) === undefined) accepted++;
    t.ok(accepted > 10 && accepted < 100, `${accepted} events were accepted`);
    t.equal(await codeOf(content("x".repeat(100))), "overloaded");
    const otherChannel = { channel: { id: "h", type: 2 } } as const;
    t.equal(await codeOf(start("y".repeat(200), otherChannel)), "overloaded");
    const heldBytes = store.stats().activeStreamBytes;
    t.ok(heldBytes > 19_000 && heldBytes <= 20_000, `the streams use ${heldBytes} bytes`);
    t.equal(store.stats().activeStreams, 1);
    await end("fin");
    await store.checkpoint();
    t.match(store.stats(), { activeStreams: 0, activeStreamBytes: 0 });
    t.match(await start("y".repeat(200), otherChannel), { state: "active" });
    t.equal((await store.stream(KEY, "s"))?.text.length, accepted * 100);
  },
);

t.test("events of streams count towards `maxMemtableRecords`", async (t) => {
  const store = await openStore(t, testFolder(t), { maxMemtableRecords: 10 });
  const { start, content } = producer(store);
  await start();
  const codes = await Promise.all(Array.from({ length: 20 }, () => codeOf(content("x"))));
  t.equal(codes.filter((code) => code === "overloaded").length, 13);
  t.equal(store.stats().memtableRecords, 10);
  t.equal(await codeOf(store.append(draftOf())), "overloaded");
  t.equal(await codeOf(store.cancelStream(KEY, "s")), "overloaded");
  for (const type of ["status", "___ToolCallArgs"]) {
    t.equal(await codeOf(store.streamEvent(eventOf(type))), "overloaded");
    t.match(
      await store.streamEvent(eventOf(type, "", { clientMsgNo: "none" })),
      { verdict: "missing" },
      "an event that is not stored needs no room",
    );
  }
  t.equal(
    await store.interruptStreams(-1000),
    1,
    "silent streams are ended even if the memtable is full",
  );
  await store.checkpoint();
  t.equal(store.stats().memtableRecords, 0);
  t.equal(store.stats().memtableBytes, 0);
  await store.append(draftOf());
});

t.test("an invalid event is refused, and the other events of its batch are stored", async (t) => {
  const store = await openStore(t, testFolder(t));
  const long = "n".repeat(301);
  const codes = await Promise.all(
    [
      eventOf("___Other"),
      eventOf(""),
      eventOf(long),
      eventOf(STREAM_START, "", { clientMsgNo: long }),
      eventOf(STREAM_START, "", { eventId: long }),
      eventOf(STREAM_START, "", { fromUid: long }),
      eventOf(STREAM_START, "", { channel: { id: long, type: 2 } }),
      eventOf(STREAM_START, "", { timestampMs: Number.NaN }),
      eventOf(STREAM_START),
    ].map((draft) => codeOf(store.streamEvent(draft))),
  );
  t.same(codes, [
    ...["bad_request", "bad_request"],
    ...Array(5).fill("too_large"),
    ...["bad_request", undefined],
  ]);
  t.equal(await store.stream(KEY, long), undefined);
  t.match(await store.cancelStream(KEY, long), { verdict: "missing" });
  const longest = "\uffff".repeat(300);
  const name = { clientMsgNo: longest, fromUid: longest, eventId: longest };
  const channel = { id: longest, type: 1 } as const;
  const { key } = eventOf(STREAM_START, "", { ...name, channel });
  const post = (type: string, data: string, over = {}) =>
    store.streamEvent(eventOf(type, data, { ...name, channel, ...over }));
  await post(STREAM_START, "");
  const otherId = { eventId: "2" };
  const text = "\uffff".repeat(1000);
  await post(STREAM_CONTENT, text, otherId);
  await post(STREAM_END, "", { eventId: "3" });
  await store.checkpoint();
  t.match(await post(STREAM_CONTENT, text, otherId), { verdict: "done" });
  t.equal((await store.stream(key, longest))?.text.length, 1000);
});

t.test("a failed write leaves streams exactly as they were", async (t) => {
  const { fail, files } = brittleFiles();
  const path = testFolder(t);
  const events: ClusterEvent[] = [];
  const publisher = { publish: (e: ClusterEvent) => void events.push(e) };
  const time = { nowMs: Date.UTC(2026, 0, 1) };
  const clock = () => time.nowMs;
  const store = await openStore(t, path, { files, publisher, clock });
  const { start, content, tool, end } = producer(store);
  await start();
  await content("kept", { eventId: "a" });
  const before = await store.stream(KEY, "s");
  const stats = store.stats();
  const { length } = events;
  const s2 = { clientMsgNo: "s2" };
  time.nowMs += 1000;
  fail.write = 1;
  const failing = [
    content(" lost", { eventId: "b" }),
    tool("{}"),
    store.append(retryOf("m")),
    start("", { ...s2, force: true }),
    content("lost", s2),
    end("", s2),
    store.cancelStream(KEY, "s2"),
  ];
  const codes = await Promise.all(failing.map(codeOf));
  t.same(codes, Array(7).fill("disk_full"));
  t.same(await store.stream(KEY, "s"), before);
  t.equal(await store.stream(KEY, "s2"), undefined);
  t.same((await store.activeStreams([KEY]))[0], before);
  t.equal(events.length, length, "no event was published");
  t.same({ ...store.stats(), freeBytes: 0 }, { ...stats, freeBytes: 0 });
  fail.write = 1;
  const silent = () => store.interruptStreams(0);
  t.equal(await codeOf(silent()), "disk_full", "the stream still counts as silent");
  t.match(await content(" more", { eventId: "b" }), { verdict: "done" });
  t.match(await start("", s2), { verdict: "running" });
  t.equal((await store.append(retryOf("m"))).messageSeq, 2);
  t.match(await end("fin"), { state: "closed" });
  t.match(await start("", s2), { state: "active" });
  await store.checkpoint();
  const reopened = await openStore(t, await crashedCopy(t, path));
  t.match(await reopened.stream(KEY, "s"), { text: "kept more", nextIndex: 4 });
  t.same(await seqsIn(reopened), [1, 2, 3]);
});

/** Starts a store on a disk that the test can make slow or broken. */
async function onSlowDisk(t: Test) {
  const { fail, files } = brittleFiles();
  const waiting: (() => void)[] = [];
  const slow = { on: false };
  const events: ClusterEvent[] = [];
  const store = storeIn(testFolder(t), {
    durability: "disk",
    // Each event of a stream is also a change of its log.
    publisher: { publish: (e) => void (e.kind !== "log" && events.push(e)) },
    onError() {},
    files: {
      ...files,
      fdatasync(fd, done) {
        if (slow.on) waiting.push(() => files.fdatasync(fd, done));
        else files.fdatasync(fd, done);
      },
    },
  });
  await store.start();
  t.teardown(() => store.close());
  const releaseSyncs = () => {
    slow.on = false;
    for (const next of waiting.splice(0)) next();
  };
  const nextTurn = () => new Promise(setImmediate);
  return { fail, slow, events, store, releaseSyncs, nextTurn };
}

t.test(
  "events and their retries are not shown, published or acknowledged before the events are on the disk",
  async (t) => {
    const { slow, events, store, releaseSyncs, nextTurn } = await onSlowDisk(t);
    const { start, content, end } = producer(store);
    await start();
    slow.on = true;
    const answers: string[] = [];
    const record = (name: string) => () => void answers.push(name);
    const calls = [content("a", { eventId: "a" }).then(record("content"))];
    await nextTurn();
    calls.push(content("a", { eventId: "a" }).then(record("retry")));
    calls.push(end().then(record("end")));
    await nextTurn();
    calls.push(content("late").then(({ verdict }) => void answers.push(verdict)));
    await nextTurn();
    await nextTurn();
    t.same(answers, []);
    t.equal(events.length, 2);
    t.match((await store.activeStreams([KEY]))[0], { text: "", nextIndex: 1 });
    t.match(await store.streamTextOffset(KEY, "s", 2), undefined);
    await store.checkpoint();
    t.equal(store.stats().activeStreams, 1, "the end is not on the disk yet");
    releaseSyncs();
    await Promise.all(calls);
    t.same(answers, ["content", "retry", "end", "closed"]);
    t.match(await store.stream(KEY, "s"), { text: "a", state: "closed" });
    await store.checkpoint();
    t.match(await store.stream(KEY, "s"), { text: "a", state: "closed" });
  },
);

t.test("a failed fsync rolls back every uncommitted event", async (t) => {
  const { fail, slow, events, store, releaseSyncs, nextTurn } = await onSlowDisk(t);
  const { start, content, end } = producer(store);
  await start();
  await content("kept");
  const before = await store.stream(KEY, "s");
  slow.on = true;
  const calls = [codeOf(content("lost"))];
  await nextTurn();
  calls.push(codeOf(content("lost too")), codeOf(end()));
  await nextTurn();
  calls.push(codeOf(start("", { clientMsgNo: "s2" })));
  await nextTurn();
  fail.sync = true;
  releaseSyncs();
  t.same(await Promise.all(calls), Array(4).fill("unavailable"));
  t.same(await store.stream(KEY, "s"), before);
  t.equal(await store.stream(KEY, "s2"), undefined);
  t.equal(events.length, 3);
});

t.test(
  "a stream older than the retention time is removed with its message, but not before it has ended",
  async (t) => {
    const path = testFolder(t);
    const time = { nowMs: Date.UTC(2026, 0, 1) };
    const over = { clock: () => time.nowMs, retentionS: 60 };
    const store = await openStore(t, path, over);
    const { start, content, end } = producer(store);
    await start();
    await content("old");
    await end();
    const s2 = { clientMsgNo: "s2" };
    await start("", s2);
    await content("long ", s2);
    await store.checkpoint();
    time.nowMs += 60_000;
    t.equal(await store.stream(KEY, "s"), undefined, "an expired stream is hidden at once");
    t.equal(await store.streamTextOffset(KEY, "s", 0), undefined);
    t.equal(await store.sweep(), 1);
    await content("lived", s2);
    await store.checkpoint();
    t.equal(await store.sweep(), 0);
    t.match(await store.stream(KEY, "s2"), { text: "long lived" });
    t.equal((await store.readMessages(KEY, ALL)).messages.length, 0);
    await end("", s2);
    t.equal(await store.sweep(), 0, "the end of the stream is not in the database");
    await store.checkpoint();
    t.equal(await store.sweep(), 1);
    const copy = await crashedCopy(t, path);
    const env = open({ path: join(copy, "lmdb"), maxDbs: 32 });
    for (const name of ["streamsActive", "streamEnds", "logNames", "logHeads", "logFrames"])
      t.equal(env.openDB({ name, keyEncoding: "binary" }).getKeysCount({}), 0, name);
    await env.close();
  },
);

t.test(
  "a silent stream is not interrupted while writes are refused because the disk is full",
  async (t) => {
    const time = { nowMs: Date.UTC(2026, 0, 1) };
    const disk = await mountSmallDisk(t, 32);
    const path = join(disk.hostPath, "store");
    const store = await openStore(t, path, { clock: () => time.nowMs, onError() {} });
    const { start } = producer(store);
    await start();
    time.nowMs += 60_000;
    const payload = new Uint8Array(1_000_000);
    while ((await codeOf(store.append(draftOf({ payload })))) !== "disk_full");
    t.equal(await store.interruptStreams(30_000), 0);
    t.match(await store.stream("2:g", "s"), { state: "active" });
  },
);

t.test("an expired stream is removed with everything that is stored for it", async (t) => {
  const path = testFolder(t);
  const time = { nowMs: Date.UTC(2026, 0, 1) };
  const store = await openStore(t, path, { clock: () => time.nowMs });
  const names = Array.from({ length: EXPIRED }, (_, at) => ({ clientMsgNo: `s${at}` }));
  const { start, content, end } = producer(store);
  for (const name of names) {
    await start("", { ...name, expireS: 60 });
    await content("text", { ...name, eventId: "e" });
    await end("", name);
  }
  const active = { clientMsgNo: "active" };
  await start("", { ...active, expireS: 1 });
  await store.checkpoint();
  time.nowMs += 60_000;
  t.equal(await store.sweep(), EXPIRED, "the active stream does not delay the others");
  await end("", active);
  await store.checkpoint();
  t.equal(await store.sweep(), 1);
  const copy = await crashedCopy(t, path);
  const env = open({ path: join(copy, "lmdb"), maxDbs: 32 });
  for (const name of [
    ...["log", "expiry", "expiring", "streamsActive", "streamEnds"],
    ...["logNames", "logHeads", "logFrames"],
  ])
    t.equal(env.openDB({ name, keyEncoding: "binary" }).getKeysCount({}), 0, name);
  await env.close();
});

t.test("the log of a stream returns equal bytes before and after a restart", async (t) => {
  const path = testFolder(t);
  const store = await openStore(t, path);
  const name = { kind: "channel", key: KEY, clientMsgNo: "s" } as const;
  const bytesIn = async ({ readLog }: EmbeddedStore) => {
    const read = await readLog(name, { from: LOG_START, maxBytes: 1_000_000 });
    return read.verdict === "read" ? Buffer.concat(read.pieces) : Buffer.alloc(0);
  };
  const { start, content, tool, end } = producer(store);
  await start("meta");
  await content("one ");
  await store.checkpoint();
  await tool("{}", { eventId: "t" });
  const before = await bytesIn(store);
  t.ok(before.length > 0);
  const reopened = await openStore(t, await crashedCopy(t, path));
  t.same(await bytesIn(reopened), before);
  await content("two");
  await end("", { isCancel: true });
  const whole = await bytesIn(store);
  t.same(whole.subarray(0, before.length), before);
  await store.checkpoint();
  t.same(await bytesIn(store), whole);
  t.same(await bytesIn(await openStore(t, await crashedCopy(t, path))), whole);
  t.match(await store.logHead(name), { records: 5, closed: "cancelled" });
  t.match(await store.appendLog(name, appendOf(["late"])), { verdict: "closed" });
});

t.test("the snapshot of an ended stream is cached between reads if it is small", async (t) => {
  const store = await openStore(t, testFolder(t), { maxStreamBytes: 262_144 });
  const { start, content, end } = producer(store);
  await start();
  await content("a");
  await end();
  const large = { clientMsgNo: "large" };
  await start("", large);
  await content("b".repeat(129 * 1024), large);
  await end("", large);
  const { key, channel, fromUid } = eventOf(STREAM_START);
  const sender = { key, channel, fromUid, clientMsgNo: "cut", permission: "granted" } as const;
  const records = Array.from({ length: 50 }, () => Buffer.from("c".repeat(10_000)));
  await store.createStream({ ...sender, contentType: "text/plain", records, isClosed: true });
  await store.checkpoint();
  const small = await store.stream(KEY, "s");
  t.match(small, { text: "a", state: "closed" });
  t.equal(await store.stream(KEY, "s"), small, "two reads return the same object");
  const [message] = (await store.readMessages(KEY, ALL)).messages;
  t.equal(message?.stream, small, "the history returns the same object");
  t.not(await store.stream(KEY, "large"), await store.stream(KEY, "large"), "not kept");
  const cut = await store.stream(KEY, "cut");
  t.match(cut, { state: "closed", nextIndex: 52, text: "c".repeat(65_536), truncated: true });
  t.match(cut?.notes, [{ index: 27 }]);
  t.ok((await store.stream(KEY, "cut")) === cut, "viewers are shown only a part of a long log");
});

t.test("streams that continue during checkpoints keep every event in order", async (t) => {
  const store = await openStore(t, testFolder(t), {
    ...{ checkpointMs: 1, segmentBytes: 4096 },
  });
  const { start, content, end } = producer(store);
  for (let n = 0; n < 5; n++) {
    const over = { clientMsgNo: `s${n}` };
    await start("", over);
    let text = "";
    for (let i = 0; i < 40; i++) {
      const chunks = Array.from({ length: 5 }, (_, j) => `${i}.${j} `);
      await Promise.all(chunks.map((chunk) => content(chunk, over)));
      text += chunks.join("");
      const stream = await store.stream(KEY, `s${n}`);
      if (stream?.text !== text) t.fail(`the text after round ${i} is wrong: ${stream?.text}`);
    }
    await end("", over);
    t.match(await store.stream(KEY, `s${n}`), { text, state: "closed" });
  }
  await store.checkpoint();
  const { messages } = await store.readMessages(KEY, ALL);
  t.same(
    messages.map((m) => m.stream?.nextIndex),
    Array(5).fill(202),
  );
});

t.test("forks of streams remain when the messages of the streams are removed", async (t) => {
  const folder = testFolder(t);
  const fixture = new StoreFixture({
    create: (options) => sweptStoreIn(folder, { ...options, retentionS: FORK_RETENTION_S }),
  });
  await fixture.store.start();
  t.teardown(() => fixture.store.close());
  await forksOfRemovedStreams(t, fixture, () => logRowsIn(folder));
});
