// Store contract: streams of channels that are written with the Durable Streams protocol.

import type { Test } from "tap";
import { MAX_OPEN_STREAMS } from "../../src/broker/log-ports.ts";
import {
  channelKey,
  messageTimeMs,
  STREAM_CONTENT,
  STREAM_END,
  STREAM_START,
  type StreamSnapshot,
} from "../../src/broker/model.ts";
import type { StreamAppendDraft, StreamCreationDraft } from "../../src/broker/ports.ts";
import { appended, appendsOf, created, free } from "./log-fixture.ts";
import { codeOf, draftOf, type FixtureFactory, type StoreFixture } from "./store-fixture.ts";
import { channelEventsOf, eventOf, KEY, producer, snapshotOf } from "./store-stream-fixture.ts";

const JSON_TYPE = "application/json";
const TEXT_TYPE = "text/plain";
const GROUP = { id: "g", type: 2 } as const;
const LARGE_TEXT = "x".repeat(70_000);
const recordsOf = (texts: readonly string[]) => texts.map((text) => Buffer.from(text));
const delta = (text: string) => JSON.stringify({ type: "text-delta", delta: text });

function creation(
  texts: readonly string[] = [],
  over: Partial<StreamCreationDraft> = {},
): StreamCreationDraft {
  const { channel = GROUP, fromUid = "alice" } = over;
  return {
    ...{ channel, fromUid, key: channelKey(channel, fromUid), clientMsgNo: "s" },
    ...{ permission: "granted", contentType: JSON_TYPE, records: recordsOf(texts) },
    isClosed: false,
    ...over,
  };
}

function appendOf(
  texts: readonly string[],
  over: Partial<StreamAppendDraft> = {},
): StreamAppendDraft {
  const { channel = GROUP, fromUid = "alice" } = over;
  return {
    ...{ channel, fromUid, key: channelKey(channel, fromUid), clientMsgNo: "s" },
    ...{ permission: "granted", records: recordsOf(texts), producer: undefined },
    ...{ contentType: texts.length > 0 ? JSON_TYPE : undefined, order: undefined },
    close: undefined,
    ...over,
  };
}

const CLOSE = { close: "closed" } as const;
const producing = (epoch: number, number: number, id = "p") => ({
  producer: { id, epoch, number },
});

/** Returns type, data, index and next index of each published event of a stream. */
const publishedOf = (fixture: StoreFixture, no = "s") =>
  channelEventsOf(fixture)
    .filter(({ clientMsgNo }) => clientMsgNo === no)
    .map(({ type, data, stream }) => [type, data, stream?.index, stream?.nextIndex]);

/** Retention time of the store that `forksOfRemovedStreams` tests. */
export const FORK_RETENTION_S = 3600;

/**
 * Tests a store with the retention time `FORK_RETENTION_S`. `leftovers` returns descriptions of the
 * rows or keys that the store keeps for logs.
 */
export async function forksOfRemovedStreams(
  t: Test,
  fixture: StoreFixture,
  leftovers: () => Promise<readonly string[]>,
): Promise<void> {
  const { start, content, end } = producer(fixture);
  const forkOf = (clientMsgNo: string) => free(`fork/${clientMsgNo}`);
  for (const [clientMsgNo, expireS] of [
    ["expiring", 60],
    ["retained", 0],
  ] as const) {
    await start("", { clientMsgNo, expireS });
    await content("x".repeat(5000), { clientMsgNo });
    await end("", { clientMsgNo });
  }
  await fixture.store.createStream(creation(["1"], { clientMsgNo: "records" }));
  await fixture.store.appendToStream(appendOf(["2"], { clientMsgNo: "records", ...CLOSE }));
  const names = ["expiring", "retained", "records"];
  const inherited = new Map<string, readonly (readonly string[])[]>();
  for (const clientMsgNo of names) {
    const source = { kind: "channel", key: KEY, clientMsgNo } as const;
    const origin = { source, offset: undefined, subOffset: 0 };
    await created(
      fixture.store.createLog(forkOf(clientMsgNo), {
        ...{ contentType: undefined, ttlS: undefined, expiresAtMs: undefined },
        ...{ closed: undefined, records: [], origin },
      }),
    );
    const fork = await appendsOf(fixture.store, forkOf(clientMsgNo));
    t.ok(fork.length > 0, `the fork of ${clientMsgNo} has records`);
    inherited.set(clientMsgNo, fork);
  }
  for (const [seconds, removed] of [
    [61, ["expiring"]],
    [FORK_RETENTION_S, names],
  ] as const) {
    fixture.nowMs += seconds * 1000;
    await fixture.store.sweep();
    for (const clientMsgNo of names) {
      const source = { kind: "channel", key: KEY, clientMsgNo } as const;
      const head = await fixture.store.logHead(source);
      // On Redis the head is `deleted` until the last fork is deleted.
      const isRead = typeof head !== "string";
      t.equal(isRead, !removed.some((name) => name === clientMsgNo), `after ${seconds} s`);
      t.strictSame(
        await appendsOf(fixture.store, forkOf(clientMsgNo)),
        inherited.get(clientMsgNo),
        `the fork of ${clientMsgNo} keeps its records`,
      );
    }
  }
  await fixture.reopen();
  for (const clientMsgNo of names) {
    const fork = forkOf(clientMsgNo);
    t.strictSame(await appendsOf(fixture.store, fork), inherited.get(clientMsgNo));
    await appended(
      fixture.store.appendLog(fork, {
        ...{ records: recordsOf(["3"]), contentType: JSON_TYPE, producer: undefined },
        ...{ order: undefined, close: undefined },
      }),
    );
  }
  t.not((await leftovers()).length, 0, "the store keeps the forks");
  for (const clientMsgNo of names)
    t.equal(await fixture.store.deleteLog(forkOf(clientMsgNo)), "done");
  await fixture.store.sweep();
  await fixture.reopen();
  t.strictSame(await leftovers(), []);
}

export async function channelLogs(t: Test, createFixture: FixtureFactory): Promise<void> {
  t.test("a stream is created once, and its message gets a seq of the channel", async (t) => {
    const fixture = await createFixture(t);
    await fixture.listen(["g:g"]);
    const { store } = fixture;
    const first = await store.createStream(creation([delta("a"), "7"]));
    t.match(first, {
      verdict: "created",
      head: { contentType: JSON_TYPE, records: 3, closed: undefined, ttlS: undefined },
    });
    const again = await store.createStream(creation(["8"]));
    t.strictSame(again, { ...first, verdict: "exists" });
    for (const over of [{ contentType: TEXT_TYPE }, { isClosed: true }, { fromUid: "bob" }])
      t.same(await store.createStream(creation([], over)), { verdict: "conflict" });
    t.equal(await store.headSeq(KEY), 1);
    await store.append(draftOf({ clientMsgNo: "m" }));
    const usedNo = creation([], { clientMsgNo: "m" });
    t.same(await store.createStream(usedNo), { verdict: "taken" });
    const refused = { permission: "not_subscriber", clientMsgNo: "r" } as const;
    t.same(await store.createStream(creation([], refused)), {
      ...{ verdict: "refused", refused: "not_subscriber" },
    });
    const closed = await store.createStream(
      creation(["é"], { clientMsgNo: "c", contentType: TEXT_TYPE, isClosed: true }),
    );
    t.match(closed, { verdict: "created", head: { records: 3, closed: "closed" } });
    await fixture.untilPublished(GROUP, "alice");
    t.same(publishedOf(fixture), [
      [STREAM_START, "", 0, 1],
      [STREAM_CONTENT, "a", 1, 2],
      ["record", "7", 2, 3],
    ]);
    t.same(publishedOf(fixture, "c"), [
      [STREAM_START, "", 0, 1],
      [STREAM_CONTENT, "é", 1, 2],
      [STREAM_END, "", 2, 3],
    ]);
    t.match(await snapshotOf(fixture, "c"), { state: "closed", text: "é", messageSeq: 3 });
    await fixture.reopen();
    t.match(await snapshotOf(fixture), {
      ...{ state: "active", text: "a", nextIndex: 3, messageSeq: 1 },
      notes: [{ index: 2, textOffset: 1, type: "record", data: "7" }],
    });
    t.equal((await fixture.store.createStream(creation())).verdict, "exists");
    t.equal((await fixture.store.createStream(usedNo)).verdict, "taken");
  });

  t.test("appended records become events of the stream, in the order of the records", async (t) => {
    const fixture = await createFixture(t);
    await fixture.listen(["g:g"]);
    const { store } = fixture;
    t.same(await store.appendToStream(appendOf(["1"])), { verdict: "missing" });
    await store.createStream(creation());
    const tool = '{"type":"___ToolCallArgs","data":"{}","id":"t1"}';
    const result = await store.appendToStream(appendOf([delta("He"), tool, delta("y"), "[]"]));
    t.match(result, { verdict: "appended", closed: undefined, producer: undefined });
    for (const [over, verdict] of [
      [{ fromUid: "bob" }, "other_sender"],
      [{ permission: "not_subscriber" }, "refused"],
      [{ contentType: TEXT_TYPE }, "other_type"],
      [{ clientMsgNo: "none" }, "missing"],
    ] as const)
      t.equal((await store.appendToStream(appendOf(["x"], over))).verdict, verdict);
    const { content, end } = producer(fixture);
    t.same(await content("!"), { verdict: "done", state: "active" });
    const last = await store.appendToStream(appendOf(["8"], CLOSE));
    t.match(last, { verdict: "appended", closed: "closed" });
    const again = await store.appendToStream(appendOf([], CLOSE));
    t.match(again, { ...last, verdict: "repeated" });
    t.match(await store.appendToStream(appendOf(["9"])), {
      ...{ verdict: "closed", closed: "closed" },
      tail: "tail" in last ? last.tail : undefined,
    });
    t.match(await end(), { verdict: "done", state: "closed" });
    await fixture.untilPublished(GROUP, "alice");
    t.same(publishedOf(fixture), [
      [STREAM_START, "", 0, 1],
      [STREAM_CONTENT, "He", 1, 2],
      ["___ToolCallArgs", "{}", 2, 3],
      [STREAM_CONTENT, "y", 3, 4],
      ["record", "[]", 4, 5],
      [STREAM_CONTENT, "!", 5, 6],
      ["record", "8", 6, 7],
      [STREAM_END, "", 7, 8],
    ]);
    t.same(
      channelEventsOf(fixture).map(({ stream }) => stream?.textOffset),
      [0, 0, 2, 2, 3, 3, 4, 4],
    );
    const { notes, ...shown } = await snapshotOf(fixture);
    t.match(shown, { state: "closed", text: "Hey!", nextIndex: 8 });
    t.same(
      notes.map(({ index, textOffset, eventId }) => [index, textOffset, eventId]),
      [
        [2, 2, "t1"],
        [4, 3, "4"],
        [6, 4, "6"],
      ],
    );
    t.equal(await store.streamTextOffset(KEY, "s", 4), 3);
    t.same(await store.activeStreams([KEY]), []);
    const [end0] = await store.streamEnds([KEY], 0, 10);
    t.match(end0, { key: KEY, clientMsgNo: "s", messageSeq: 1 });
  });

  t.test("a retried append is applied once, and appends with old epochs are refused", async (t) => {
    const fixture = await createFixture(t);
    const { store } = fixture;
    await store.createStream(creation());
    const first = await store.appendToStream(appendOf(["0"], producing(3, 0)));
    t.match(first, { verdict: "appended", producer: { epoch: 3, number: 0 } });
    t.match(await store.appendToStream(appendOf(["0"], producing(3, 0))), {
      ...first,
      verdict: "repeated",
    });
    t.same(await store.appendToStream(appendOf(["2"], producing(3, 2))), {
      ...{ verdict: "gap", expected: 1 },
    });
    t.same(await store.appendToStream(appendOf(["1"], producing(2, 0))), {
      ...{ verdict: "stale_epoch", epoch: 3 },
    });
    t.same(await store.appendToStream(appendOf(["1"], producing(4, 1))), { verdict: "bad_start" });
    const order = (text: string) => store.appendToStream(appendOf(["1"], { order: text }));
    t.match(
      [await order("b"), await order("b"), await order("c")],
      [{ verdict: "appended" }, { verdict: "out_of_order" }, { verdict: "appended" }],
    );
    await fixture.reopen();
    const later = await fixture.store.appendToStream(
      appendOf(["1"], { ...producing(3, 1), ...CLOSE }),
    );
    t.match(later, { verdict: "appended", closed: "closed", producer: { epoch: 3, number: 1 } });
    t.match(await fixture.store.appendToStream(appendOf(["1"], producing(3, 1))), {
      ...{ verdict: "repeated", closed: "closed" },
    });
    t.match(await snapshotOf(fixture), { state: "closed", nextIndex: 6 });
  });

  t.test(
    "several durable streams can be active in a channel at the same time, together with a stream started with POST /event",
    async (t) => {
      const fixture = await createFixture(t);
      await fixture.listen(["g:g"]);
      const { store } = fixture;
      const { start, end } = producer(fixture);
      await store.createStream(creation(["1"], { clientMsgNo: "a" }));
      t.match(await start(), { verdict: "done" });
      await store.createStream(creation(["2"], { clientMsgNo: "b" }));
      const activeNames = async () =>
        (await store.activeStreams([KEY, "2:h"])).map(({ clientMsgNo }) => clientMsgNo).sort();
      t.same(await activeNames(), ["a", "b", "s"]);
      t.match(await start("", { clientMsgNo: "s2" }), { verdict: "running" });
      t.match(await start("", { clientMsgNo: "s2", force: true }), { verdict: "done" });
      t.same(await activeNames(), ["a", "b", "s2"]);
      t.match(await snapshotOf(fixture), { state: "cancelled" });
      await end("", { clientMsgNo: "s2" });
      t.same(await store.cancelStream(KEY, "a"), { verdict: "done", state: "cancelled" });
      t.match(await store.appendToStream(appendOf(["3"], { clientMsgNo: "a" })), {
        ...{ verdict: "closed", closed: "stopped" },
      });
      t.same(await activeNames(), ["b"]);
      await store.appendToStream(appendOf([], { clientMsgNo: "b", ...CLOSE }));
      t.same(await activeNames(), []);
    },
  );

  t.test(
    "`personalStreamsOf` returns a durable stream of a personal channel to both users until the stream ends",
    async (t) => {
      const fixture = await createFixture(t);
      await fixture.listen(["u:alice", "u:bob"]);
      const { store } = fixture;
      const toBob = { channel: { id: "bob", type: 1 } } as const;
      const names = ["a", "b"];
      for (const clientMsgNo of names)
        await store.createStream(creation([delta("x")], { ...toBob, clientMsgNo }));
      const namesOf = async (uid: string) =>
        (await store.personalStreamsOf(uid)).map(({ clientMsgNo }) => clientMsgNo).sort();
      for (const uid of ["alice", "bob"]) t.same(await namesOf(uid), names);
      await store.appendToStream(appendOf(["1"], { ...toBob, ...CLOSE, clientMsgNo: "a" }));
      for (const uid of ["alice", "bob"]) t.same(await namesOf(uid), ["b"]);
      const repeated = await store.appendToStream(
        appendOf([], { ...toBob, ...CLOSE, clientMsgNo: "a" }),
      );
      t.match(repeated, { verdict: "repeated", closed: "closed" });
      await store.appendToStream(appendOf([], { ...toBob, ...CLOSE, clientMsgNo: "b" }));
      for (const uid of ["alice", "bob"]) t.same(await namesOf(uid), []);
      await fixture.untilPublished(toBob.channel, "alice");
      t.same(publishedOf(fixture, "a"), [
        [STREAM_START, "", 0, 1],
        [STREAM_CONTENT, "x", 1, 2],
        ["record", "1", 2, 3],
        [STREAM_END, "", 3, 4],
      ]);
      const other = { ...toBob, fromUid: "bob", channel: { id: "alice", type: 1 } } as const;
      t.same(await store.appendToStream(appendOf(["1"], { ...other, clientMsgNo: "a" })), {
        verdict: "other_sender",
      });
      const ends = await store.personalStreamEnds("bob", 0, 10);
      t.same(ends.map(({ clientMsgNo }) => clientMsgNo).sort(), names);
    },
  );

  t.test(
    "viewers are shown only the beginning of a stream that exceeds the size limit for viewers",
    async (t) => {
      const fixture = await createFixture(t);
      await fixture.listen(["g:g"]);
      const { store } = fixture;
      await store.createStream(creation());
      const read: StreamSnapshot[] = [];
      const readNow = async () => read.push(await snapshotOf(fixture));
      await store.appendToStream(appendOf([delta("ab"), '{"n":1}']));
      await readNow();
      await store.appendToStream(appendOf([delta("c"), delta(LARGE_TEXT), delta("d"), "2"]));
      await readNow();
      await store.appendToStream(appendOf([delta("e"), "3"]));
      await readNow();
      t.match(await producer(fixture).content("f"), { verdict: "done" });
      await store.appendToStream(appendOf(["4"], CLOSE));
      await readNow();
      const log = "/v1/stream/channel/2/g/s";
      const notice = JSON.stringify({ truncated: 1, log });
      const [before, ...cut] = read;
      t.match(before, { text: "ab", nextIndex: 3, truncated: undefined });
      for (const [at, nextIndex] of [7, 9, 12].entries())
        t.match(cut[at], {
          ...{ text: `abc${LARGE_TEXT.slice(0, 65_533)}`, nextIndex, truncated: true },
          notes: [{ index: 4, type: "record", data: notice }],
          state: at === 2 ? "closed" : "active",
        });
      await fixture.untilPublished(GROUP, "alice");
      t.same(publishedOf(fixture), [
        [STREAM_START, "", 0, 1],
        [STREAM_CONTENT, "ab", 1, 2],
        ["record", '{"n":1}', 2, 3],
        [STREAM_CONTENT, "c", 3, 4],
        ["record", notice, 4, 5],
        [STREAM_END, "", 5, 12],
      ]);
      await fixture.reopen();
      t.match(await snapshotOf(fixture), cut[2] as object);
      const [message] = (await fixture.store.readMessages(KEY, RANGE)).messages;
      t.match(message?.stream, { nextIndex: 12, truncated: true, notes: [{ index: 4 }] });
      t.equal(await fixture.store.streamTextOffset(KEY, "s", 13), undefined);
    },
  );

  t.test("a repeated event is recognised even if viewers are not shown the event", async (t) => {
    const fixture = await createFixture(t);
    const { store } = fixture;
    await store.createStream(creation([delta(LARGE_TEXT)]));
    const { content } = producer(fixture);
    const results = [];
    for (const _ of [1, 2]) results.push(await content("a", { eventId: "e1" }));
    t.match(results, [{ verdict: "done" }, { verdict: "done" }]);
    t.match(await store.logHead({ kind: "channel", key: KEY, clientMsgNo: "s" }), { records: 3 });
    await fixture.reopen();
    await producer(fixture).content("a", { eventId: "e1" });
    t.match(await snapshotOf(fixture), { truncated: true, notes: [{ index: 1 }], nextIndex: 3 });
  });

  t.test("a channel has at most 100 active durable streams", async (t) => {
    const fixture = await createFixture(t);
    const { store } = fixture;
    const create = (at: number, over: Partial<StreamCreationDraft> = {}) =>
      store.createStream(creation([], { clientMsgNo: `s${at}`, ...over }));
    const created = await Promise.all(
      Array.from({ length: MAX_OPEN_STREAMS }, (_, at) => create(at)),
    );
    for (const { verdict } of created) t.equal(verdict, "created");
    t.same(await create(100), { verdict: "full", limit: "streams" });
    t.match(await create(0), { verdict: "exists" });
    t.match(await create(101, { isClosed: true }), { verdict: "created" });
    t.match(await create(100, { channel: { id: "h", type: 2 } }), { verdict: "created" });
    t.match(await producer(fixture).start("", { clientMsgNo: "text" }), { verdict: "done" });
    await store.appendToStream(appendOf([], { clientMsgNo: "s7", ...CLOSE }));
    await producer(fixture).end("", { clientMsgNo: "text" });
    t.match(await create(100), { verdict: "created" });
    t.match(await create(102), { verdict: "full" });
  });

  t.test("viewers are shown a large record as a note with the path of the log", async (t) => {
    const fixture = await createFixture(t);
    await fixture.listen(["g:g"]);
    await fixture.store.createStream(creation([JSON.stringify([LARGE_TEXT]), "2"]));
    await fixture.untilPublished(GROUP, "alice");
    const notice = JSON.stringify({ truncated: 1, log: "/v1/stream/channel/2/g/s" });
    t.same(publishedOf(fixture).slice(1), [
      ["record", notice, 1, 2],
      ["record", "2", 2, 3],
    ]);
    t.match((await snapshotOf(fixture)).notes, [{ data: notice }, { data: "2" }]);
  });

  t.test(
    "a stream started with POST /event accepts appended records that fit within the stream's maximum size",
    async (t) => {
      const fixture = await createFixture(t);
      await fixture.listen(["g:g"]);
      const { store } = fixture;
      const { start, end } = producer(fixture);
      await start("", { eventId: "e" });
      t.match(await store.appendToStream(appendOf([delta("a"), "1"], producing(0, 0))), {
        verdict: "appended",
      });
      const half = delta("x".repeat(600_000));
      t.match(await store.appendToStream(appendOf([half])), { verdict: "appended" });
      t.equal(await codeOf(store.appendToStream(appendOf([half]))), "too_large");
      t.match(await store.appendToStream(appendOf(["2"], producing(0, 1))), {
        verdict: "appended",
      });
      await end("done");
      await fixture.untilPublished(GROUP, "alice");
      const published = publishedOf(fixture);
      t.same(published.slice(0, 3), [
        [STREAM_START, "", 0, 1],
        [STREAM_CONTENT, "a", 1, 2],
        ["record", "1", 2, 3],
      ]);
      t.same(published.slice(4), [
        ["record", "2", 4, 5],
        [STREAM_END, "done", 5, 6],
      ]);
      t.equal((await snapshotOf(fixture)).text.length, 600_001);
      t.equal((await store.createStream(creation([], { isClosed: true }))).verdict, "exists");
    },
  );

  t.test(
    "POST /event continues a stream that was created as a durable stream, and a repeated event is applied once",
    async (t) => {
      const fixture = await createFixture(t);
      const { store } = fixture;
      await store.createStream(creation());
      const { start, content, tool } = producer(fixture);
      t.match(await start(), { verdict: "done", state: "active" }, "a start counts as a retry");
      for (const _ of [1, 2]) t.match(await content("a", { eventId: "e1" }), { verdict: "done" });
      await tool("x", { eventId: "e2" });
      await store.streamEvent(eventOf(STREAM_END, "bye"));
      t.match(await content("a", { eventId: "e1" }), { verdict: "done", state: "closed" });
      t.match(await content("b"), { verdict: "closed" });
      t.match(await snapshotOf(fixture), {
        ...{ text: "a", endData: "bye", nextIndex: 4, notes: [{ eventId: "e2" }] },
      });
    },
  );
}

const RANGE = {
  ...{ fromSeq: 1, toSeq: 10, limit: 10, reverse: false },
  maxBytes: Number.MAX_SAFE_INTEGER,
} as const;

/** Tests times, on a store that reads the time from the clock of the fixture. */
export async function channelLogTimes(t: Test, createFixture: FixtureFactory): Promise<void> {
  t.test("a silent stream is interrupted, but a stream that receives records is not", async (t) => {
    const fixture = await createFixture(t);
    const { store } = fixture;
    for (const clientMsgNo of ["a", "b"]) await store.createStream(creation([], { clientMsgNo }));
    fixture.nowMs += 1000;
    await store.appendToStream(appendOf(["1"], { clientMsgNo: "b" }));
    fixture.nowMs += 500;
    t.equal(await store.interruptStreams(1000), 1);
    t.match(await snapshotOf(fixture, "a"), { state: "interrupted" });
    t.match(await store.appendToStream(appendOf(["2"], { clientMsgNo: "a" })), {
      ...{ verdict: "closed", closed: "interrupted" },
    });
    t.match(await store.appendToStream(appendOf(["2"], { clientMsgNo: "b" })), {
      verdict: "appended",
    });
  });

  t.test("an ended stream whose message has expired cannot be read as a log", async (t) => {
    const fixture = await createFixture(t);
    await fixture.store.close();
    fixture.retentionS = 3600;
    fixture.store = fixture.create();
    await fixture.store.start();
    const { store } = fixture;
    const { start, end } = producer(fixture);
    for (const [clientMsgNo, expireS] of [
      ["short", 60],
      ["long", 0],
      ["active", 0],
    ] as const) {
      await start("", { clientMsgNo, expireS });
      if (clientMsgNo !== "active") await end("", { clientMsgNo });
      else await store.createStream(creation([], { clientMsgNo: "other" }));
    }
    const verdicts = async () => {
      const list: string[] = [];
      for (const clientMsgNo of ["short", "long", "active", "other"]) {
        const name = { kind: "channel", key: KEY, clientMsgNo } as const;
        const { verdict } = await store.readLog(name, { from: undefined, maxBytes: 1000 });
        const head = await store.logHead(name);
        list.push(typeof head === "string" ? `${verdict} ${head}` : verdict);
      }
      return list;
    };
    t.same(await verdicts(), ["read", "read", "read", "read"]);
    fixture.nowMs += 61_000;
    t.same(await verdicts(), ["missing missing", "read", "read", "read"]);
    fixture.nowMs += 3_540_000;
    t.same(await verdicts(), ["missing missing", "missing missing", "read", "read"]);
  });

  t.test(
    "a stream whose message is twice as old as the retention time accepts only its end event",
    async (t) => {
      const fixture = await createFixture(t);
      await fixture.store.close();
      fixture.retentionS = 3600;
      fixture.store = fixture.create();
      await fixture.store.start();
      const { store } = fixture;
      const { start, content, tool, end } = producer(fixture);
      await start();
      await store.createStream(creation([], { clientMsgNo: "other" }));
      await store.append(draftOf());
      fixture.nowMs += 7_199_000;
      t.match(await content("a"), { verdict: "done" });
      fixture.nowMs += 1000;
      t.match(await content("b"), { verdict: "closed", state: "active" });
      t.match(await tool("b"), { verdict: "missing", state: "active" });
      const append = appendOf(["1"], { clientMsgNo: "other" });
      t.match(await store.appendToStream(append), { verdict: "closed" });
      t.match(await end(), { verdict: "done", state: "closed" });
      t.equal(await store.interruptStreams(60_000), 1, "a stream without events is interrupted");
      await store.sweep();
      t.same((await store.readMessages(KEY, RANGE)).messages, [], "nothing is kept");
    },
  );

  t.test(
    "a stream that ends after the clock was set back has an end time not earlier than the time of the newest message",
    async (t) => {
      const fixture = await createFixture(t);
      const { store } = fixture;
      const { start, end } = producer(fixture);
      await start();
      fixture.nowMs += 5000;
      const { messageId } = await store.append(draftOf());
      fixture.nowMs -= 3_600_000;
      await end();
      const [ended] = await store.streamEnds([KEY], 0, 10);
      t.ok((ended?.endedMs ?? 0) >= messageTimeMs(messageId));
    },
  );

  t.test("a stream is removed with its message, and its name can be used again", async (t) => {
    const fixture = await createFixture(t);
    await fixture.store.close();
    fixture.retentionS = 3600;
    fixture.store = fixture.create();
    await fixture.store.start();
    const { store } = fixture;
    await store.createStream(creation(["1"]));
    await store.appendToStream(appendOf(["2"], { ...producing(0, 0), ...CLOSE }));
    fixture.nowMs += 90_000_000; // past the dedupe window
    await store.sweep();
    t.equal(await store.stream(KEY, "s"), undefined);
    t.same(await store.appendToStream(appendOf(["3"], producing(0, 1))), { verdict: "missing" });
    t.match(await store.createStream(creation()), { verdict: "created", head: { records: 1 } });
    t.match(await store.appendToStream(appendOf(["3"], producing(0, 0))), { verdict: "appended" });
    t.match(await snapshotOf(fixture), { nextIndex: 2, messageSeq: 2 });
  });
}
