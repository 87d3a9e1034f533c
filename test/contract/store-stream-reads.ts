// Store contract: streams in reads and in published messages, while they run and after they end.

import type { Test } from "tap";
import { STREAM_START } from "../../src/broker/model.ts";
import type { StreamDraft } from "../../src/broker/ports.ts";
import { ALL, draftOf, type FixtureFactory, seqsOf } from "./store-fixture.ts";
import {
  ACTIVE,
  channelEventsOf,
  KEY,
  producer,
  snapshotOf,
  streamResult,
  TOOL,
} from "./store-stream-fixture.ts";

export async function streamReads(t: Test, createFixture: FixtureFactory): Promise<void> {
  t.test(
    "starting a stream publishes the message of the stream and then the start event",
    async (t) => {
      const fixture = await createFixture(t);
      await fixture.store.append(draftOf());
      const over = { timestampMs: 1234, eventId: "mine" };
      await producer(fixture).start("meta", over);
      await fixture.store.append(draftOf());
      await fixture.untilEvents(4);
      t.same(
        fixture.events.map((event) => event.kind),
        ["message", "message", "event", "message"],
      );
      const [, message] = fixture.messages;
      t.match(message, {
        ...{ messageSeq: 2, clientMsgNo: "s", fromUid: "alice", expireS: 0 },
        ...{ header: { noPersist: false, redDot: true }, streamNo: undefined },
        stream: {
          ...{ nextIndex: 0, text: "", startData: "", notes: [] },
          ...{ state: "active", messageSeq: 2 },
        },
      });
      t.same(parsePayload(message?.payload), { type: 1, content: "" });
      t.equal(message?.stream?.messageId, message?.messageId);
      t.same(channelEventsOf(fixture), [
        {
          ...{ key: KEY, channel: { id: "g", type: 2 }, fromUid: "alice" },
          ...{ clientMsgNo: "s", eventId: "mine", hasGivenId: true, timestampMs: 1234 },
          ...{ type: STREAM_START, data: "meta" },
          stream: {
            ...{ messageSeq: 2, index: 0, nextIndex: 1, textOffset: 0 },
            state: "active",
          },
        },
      ]);
    },
  );

  t.test(
    "stream events and messages are published in the order of the calls, and each event has its index and text offset",
    async (t) => {
      const fixture = await createFixture(t);
      const { start, content, tool, end } = producer(fixture);
      await Promise.all([start(), content("ab")]);
      await fixture.store.append(draftOf());
      await Promise.all([tool("{}"), content("c"), end("fin")]);
      await fixture.store.append(draftOf());
      await fixture.untilEvents(8);
      t.same(
        fixture.events.map((clusterEvent) => {
          if (clusterEvent.kind === "message") return clusterEvent.message.messageSeq;
          if (clusterEvent.kind !== "event" || clusterEvent.event.stream === undefined)
            return clusterEvent.kind;
          const { index, nextIndex, textOffset, state } = clusterEvent.event.stream;
          t.equal(nextIndex, index + 1);
          t.equal(clusterEvent.event.timestampMs, fixture.nowMs);
          return [index, textOffset, state];
        }),
        [
          1,
          [0, 0, "active"],
          [1, 0, "active"],
          2,
          [2, 2, "active"],
          [3, 2, "active"],
          [4, 3, "closed"],
          3,
        ],
      );
    },
  );

  t.test("tool calls and custom events are stored with the stream", async (t) => {
    const fixture = await createFixture(t);
    const { start, content, tool, end } = producer(fixture);
    await start();
    await content("ab");
    await tool('{"q":1}', { eventId: "t1", timestampMs: 5 });
    await content("c");
    await tool("", { type: "___ToolCallResult" });
    const custom = { type: "état 👋", eventId: "c1" };
    for (let times = 0; times < 2; times++) t.same(await tool("thinking", custom), ACTIVE);
    const notes = [
      {
        ...{ index: 2, textOffset: 2, eventId: "t1", timestampMs: 5 },
        ...{ type: TOOL, data: '{"q":1}' },
      },
      {
        ...{ index: 4, textOffset: 3, eventId: "4", timestampMs: fixture.nowMs },
        ...{ type: "___ToolCallResult", data: "" },
      },
      {
        ...{ index: 5, textOffset: 3, eventId: "c1", timestampMs: fixture.nowMs },
        ...{ type: "état 👋", data: "thinking" },
      },
    ];
    const check = async () => t.strictSame((await snapshotOf(fixture)).notes, notes);
    await check();
    await fixture.reopen();
    await check();
    t.same(await tool("thinking", custom), ACTIVE, "a retry after a restart is not added");
    await check();
    await end();
    await check();
    await fixture.reopen();
    await check();
    t.same(await tool("thinking", custom), streamResult("done", "closed"));
    for (const over of [{ type: "status" }, { data: "done" }])
      t.same(
        await tool("thinking", { ...custom, ...over }),
        streamResult("missing", "closed"),
        "an event with a different type or different data is not a retry",
      );
  });

  t.test("a snapshot does not change when later events arrive", async (t) => {
    const fixture = await createFixture(t);
    const { start, content, tool } = producer(fixture);
    await start();
    await content("a");
    const first = await snapshotOf(fixture);
    t.equal(
      await snapshotOf(fixture),
      first,
      "two reads without new events return the same object",
    );
    await content("b");
    await tool("{}");
    t.match(first, { text: "a", nextIndex: 2, notes: [] });
    t.match(await snapshotOf(fixture), { text: "ab", nextIndex: 4 });
  });

  t.test(
    "streamTextOffset returns the text offset of every index, while the stream runs and after it ended",
    async (t) => {
      const fixture = await createFixture(t);
      const { start, content, tool, end } = producer(fixture);
      await start("s");
      await content("äb");
      await tool("{}");
      await content("\u{1F600}");
      const offsets = async (lastIndex: number) =>
        Promise.all(
          Array.from({ length: lastIndex + 2 }, (_, i) =>
            fixture.store.streamTextOffset(KEY, "s", i - 1),
          ),
        );
      t.same(await offsets(5), [undefined, 0, 0, 2, 2, 4, undefined]);
      await end();
      const endedOffsets = [undefined, 0, 0, 2, 2, 4, 4, undefined];
      t.same(await offsets(6), endedOffsets);
      await fixture.reopen();
      t.same(await offsets(6), endedOffsets);
      t.equal(await fixture.store.streamTextOffset(KEY, "x", 0), undefined);
    },
  );

  t.test(
    "the history contains the message of a stream with its current text and state",
    async (t) => {
      const fixture = await createFixture(t);
      const { start, content, end } = producer(fixture);
      await fixture.store.append(draftOf());
      await start();
      await content("so ");
      const read = async (over = {}) =>
        (await fixture.store.readMessages(KEY, { ...ALL, ...over })).messages;
      const check = async (text: string, state: string) => {
        const [plain, message] = await read();
        t.equal(plain?.stream, undefined);
        t.same(parsePayload(message?.payload), { type: 1, content: text });
        t.match(message?.stream, { text, state, messageSeq: 2 });
        t.same(message?.stream, await snapshotOf(fixture));
      };
      await check("so ", "active");
      await fixture.reopen();
      await check("so ", "active");
      await content("far");
      await end();
      await check("so far", "closed");
      await fixture.reopen();
      await check("so far", "closed");
      const budget = { reverse: true, maxBytes: 30 };
      await fixture.store.append(draftOf({ payload: new Uint8Array(10) }));
      t.equal((await read(budget)).length, 1, "the text of the stream counts towards maxBytes");
    },
  );

  t.test("all data of a stream counts towards `maxBytes` of a read", async (t) => {
    const fixture = await createFixture(t);
    const { start, tool, end } = producer(fixture);
    const long = "x".repeat(1000);
    for (const longPost of [start, tool, end]) {
      const stream = { clientMsgNo: `${[start, tool, end].indexOf(longPost)}` };
      for (const post of [start, tool, end]) await post(post === longPost ? long : "", stream);
    }
    const read = async (maxBytes: number, reverse: boolean) => {
      const range = { ...ALL, maxBytes, reverse };
      const page = await fixture.store.readMessages(KEY, range);
      return [...seqsOf(page.messages), page.more];
    };
    const check = async () => {
      t.same(await read(1500, false), [1, true]);
      t.same(await read(1500, true), [3, true]);
      t.same(await read(2500, false), [1, 2, true]);
      t.same(await read(5000, false), [1, 2, 3, false]);
    };
    await check();
    await fixture.reopen();
    await check();
  });

  t.test("personalStreamsOf returns an active personal stream to both of its users", async (t) => {
    const fixture = await createFixture(t);
    const { start, end } = producer(fixture);
    const to = (id: string) => ({ channel: { id, type: 1 } }) as const;
    await start();
    await start("", to("bob"));
    await start("", { ...to("carol"), clientMsgNo: "s2" });
    const streamNames = async (uid: string) =>
      (await fixture.store.personalStreamsOf(uid)).map((stream) => stream.clientMsgNo);
    const check = async () => {
      t.same((await streamNames("alice")).sort(), ["s", "s2"]);
      t.same(await streamNames("bob"), ["s"]);
      t.same(await streamNames("carol"), ["s2"]);
      t.same(await streamNames("ali"), []);
    };
    await check();
    await fixture.reopen();
    await check();
    await end("", to("bob"));
    t.same(await streamNames("bob"), []);
    t.same(await streamNames("alice"), ["s2"]);
  });

  t.test("streamEnds and personalStreamEnds return ended streams, newest end first", async (t) => {
    const fixture = await createFixture(t);
    const { start, end } = producer(fixture);
    const groups = Array.from({ length: 40 }, (_, n) => `2:g${n}`);
    const inGroup = (n: number) => ({ channel: { id: `g${n}`, type: 2 } }) as const;
    const run = async (over: Partial<StreamDraft>) => {
      await start("", over);
      fixture.nowMs += 10;
      await end("", over);
    };
    await start("", inGroup(39)); // stays active
    for (const n of [3, 1, 7, 1]) await run({ ...inGroup(n), clientMsgNo: `s${fixture.nowMs}` });
    const sinceMs = fixture.nowMs;
    await run({ ...inGroup(7), clientMsgNo: "late" });
    await run({ channel: { id: "bob", type: 1 }, clientMsgNo: "p" });
    await run({ channel: { id: "alice", type: 1 }, clientMsgNo: "own" });
    const names = async (ms: number, limit: number) =>
      (await fixture.store.streamEnds(groups, ms, limit)).map(
        ({ key, messageSeq }) => `${key} ${messageSeq}`,
      );
    const personal = async (uid: string, ms = 0, limit = 9) =>
      (await fixture.store.personalStreamEnds(uid, ms, limit)).map(
        ({ key, clientMsgNo }) => `${key} ${clientMsgNo}`,
      );
    const check = async () => {
      t.same(await names(0, 200), ["2:g7 2", "2:g1 2", "2:g7 1", "2:g1 1", "2:g3 1"]);
      t.same(await names(0, 3), ["2:g7 2", "2:g1 2", "2:g7 1"]);
      const [first] = await fixture.store.streamEnds(["2:g7"], 0, 1);
      t.match(first, { clientMsgNo: "late", messageSeq: 2 });
      t.ok((first?.endedMs ?? 0) > sinceMs, "the end is later than the start");
      t.same(await personal("alice"), ["1:alice@alice own", "1:alice@bob p"]);
      t.same(await personal("alice", 0, 1), ["1:alice@alice own"]);
      t.same(await personal("bob"), ["1:alice@bob p"]);
      t.same(await personal("carol"), []);
    };
    await check();
    t.same(await names(sinceMs + 1, 200), ["2:g7 2"]);
    await fixture.reopen();
    await check();
    await run({ ...inGroup(7), clientMsgNo: "last" });
    t.same(await names(0, 2), ["2:g7 3", "2:g7 2"], "later ends are found as well");
  });

  t.test("streamEnds finds a stream that ended after the clock was set back", async (t) => {
    const fixture = await createFixture(t);
    const { start, end } = producer(fixture);
    await start();
    const startedMs = fixture.nowMs;
    fixture.nowMs -= 3_600_000;
    await end();
    const ends = await fixture.store.streamEnds([KEY], startedMs - 1000, 1);
    t.equal(ends.length, 1);
  });

  t.test("a read returns a stream event only after it was published", async (t) => {
    const fixture = await createFixture(t);
    const { start, content, end } = producer(fixture);
    let published = 0;
    fixture.onPublish = (clusterEvent) => {
      if (clusterEvent.kind === "event") published = clusterEvent.event.stream?.nextIndex ?? 0;
    };
    let early = 0;
    let isDone = false;
    const reading = (async () => {
      while (!isDone) {
        const nextIndex = (await fixture.store.stream(KEY, "s"))?.nextIndex ?? 0;
        if (nextIndex > published) early++;
        await new Promise(setImmediate);
      }
    })();
    await start();
    for (let i = 0; i < 20; i++) await Promise.all(Array.from({ length: 10 }, () => content("x")));
    await end();
    isDone = true;
    await reading;
    t.equal(early, 0, "no event is read before it is published");
    t.equal(published, 202);
  });

  t.test("stream events are stored even if the publisher throws an exception", async (t) => {
    const fixture = await createFixture(t);
    const { start, content } = producer(fixture);
    fixture.onPublish = () => {
      throw new Error("the publisher failed");
    };
    t.same(await start(), ACTIVE);
    t.same(await content("a"), ACTIVE);
    t.match(await snapshotOf(fixture), { text: "a", nextIndex: 2 });
  });
}

/** Returns the payload as parsed JSON. */
function parsePayload(payload: Uint8Array | undefined): unknown {
  return JSON.parse(new TextDecoder().decode(payload));
}
