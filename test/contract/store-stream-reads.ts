// The Store contract: what reads and viewers are shown of streams, and when.

import type { Test } from "tap";
import { STREAM_START } from "../../src/broker/model.ts";
import { ALL, draftOf, type FixtureFactory, seqsOf } from "./store-fixture.ts";
import {
  ACTIVE,
  channelEventsOf,
  KEY,
  producer,
  snapshotOf,
  TOOL,
} from "./store-stream-fixture.ts";

export async function streamReads(t: Test, createFixture: FixtureFactory): Promise<void> {
  t.test("a start publishes its message, then itself", async (t) => {
    const fixture = await createFixture(t);
    await fixture.store.append(draftOf());
    const at = { timestampMs: 1234, eventId: "mine" };
    await producer(fixture).start("meta", at);
    await fixture.store.append(draftOf());
    await fixture.untilEvents(4);
    t.same(
      fixture.events.map((e) => e.kind),
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
    t.same(textOf(message?.payload), { type: 1, content: "" });
    t.equal(message?.stream?.messageId, message?.messageId);
    t.same(channelEventsOf(fixture), [
      {
        ...{ key: KEY, channel: { id: "g", type: 2 }, fromUid: "alice" },
        ...{ clientMsgNo: "s", eventId: "mine", timestampMs: 1234 },
        ...{ type: STREAM_START, data: "meta" },
        stream: {
          ...{ messageSeq: 2, index: 0, nextIndex: 1, textOffset: 0 },
          state: "active",
        },
      },
    ]);
  });

  t.test("events come in turn with messages, with their places", async (t) => {
    const fixture = await createFixture(t);
    const { start, content, tool, end } = producer(fixture);
    await Promise.all([start(), content("ab")]);
    await fixture.store.append(draftOf());
    await Promise.all([tool("{}"), content("c"), end("fin")]);
    await fixture.store.append(draftOf());
    await fixture.untilEvents(8);
    t.same(
      fixture.events.map((e) => {
        if (e.kind === "message") return e.message.messageSeq;
        if (e.kind !== "event" || e.event.stream === undefined) return e.kind;
        const { index, nextIndex, textOffset, state } = e.event.stream;
        t.equal(nextIndex, index + 1);
        t.equal(e.event.timestampMs, fixture.nowMs);
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
  });

  t.test("tool calls are kept with the stream", async (t) => {
    const fixture = await createFixture(t);
    const { start, content, tool, end } = producer(fixture);
    await start();
    await content("ab");
    await tool('{"q":1}', { eventId: "t1", timestampMs: 5 });
    await content("c");
    await tool("", { type: "___ToolCallResult" });
    const notes = [
      {
        ...{ index: 2, textOffset: 2, eventId: "t1", timestampMs: 5 },
        ...{ type: TOOL, data: '{"q":1}' },
      },
      {
        ...{ index: 4, textOffset: 3, eventId: "4", timestampMs: fixture.nowMs },
        ...{ type: "___ToolCallResult", data: "" },
      },
    ];
    const check = async () => t.match((await snapshotOf(fixture)).notes, notes);
    await check();
    await fixture.reopen();
    await check();
    await end();
    await check();
    await fixture.reopen();
    await check();
  });

  t.test("a snapshot never changes, and a new read shows what came since", async (t) => {
    const fixture = await createFixture(t);
    const { start, content, tool } = producer(fixture);
    await start();
    await content("a");
    const first = await snapshotOf(fixture);
    t.equal(await snapshotOf(fixture), first, "made once");
    await content("b");
    await tool("{}");
    t.match(first, { text: "a", nextIndex: 2, notes: [] });
    t.match(await snapshotOf(fixture), { text: "ab", nextIndex: 4 });
  });

  t.test("text offsets of every index, active and ended", async (t) => {
    const fixture = await createFixture(t);
    const { start, content, tool, end } = producer(fixture);
    await start("s");
    await content("äb");
    await tool("{}");
    await content("\u{1F600}");
    const offsets = async (upTo: number) =>
      Promise.all(
        Array.from({ length: upTo + 2 }, (_, i) => fixture.store.streamTextOffset(KEY, "s", i - 1)),
      );
    t.same(await offsets(5), [undefined, 0, 0, 2, 2, 4, undefined]);
    await end();
    const ended = [undefined, 0, 0, 2, 2, 4, 4, undefined];
    t.same(await offsets(6), ended);
    await fixture.reopen();
    t.same(await offsets(6), ended);
    t.equal(await fixture.store.streamTextOffset(KEY, "x", 0), undefined);
  });

  t.test("history shows the message with its stream", async (t) => {
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
      t.same(textOf(message?.payload), { type: 1, content: text });
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
    t.equal((await read(budget)).length, 1, "its text counts");
  });

  t.test("all that a stream carries counts in a slice", async (t) => {
    const fixture = await createFixture(t);
    const { start, tool, end } = producer(fixture);
    const long = "x".repeat(1000);
    for (const one of [start, tool, end]) {
      const stream = { clientMsgNo: `${[start, tool, end].indexOf(one)}` };
      for (const post of [start, tool, end]) await post(post === one ? long : "", stream);
    }
    const read = async (maxBytes: number, reverse: boolean) => {
      const range = { ...ALL, maxBytes, reverse };
      const slice = await fixture.store.readMessages(KEY, range);
      return [...seqsOf(slice.messages), slice.more];
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

  t.test("the personal streams of a user, from either side", async (t) => {
    const fixture = await createFixture(t);
    const { start, end } = producer(fixture);
    const to = (id: string) => ({ channel: { id, type: 1 } }) as const;
    await start();
    await start("", to("bob"));
    await start("", { ...to("carol"), clientMsgNo: "s2" });
    const numbersOf = async (uid: string) =>
      (await fixture.store.personalStreamsOf(uid)).map((s) => s.clientMsgNo);
    const check = async () => {
      t.same((await numbersOf("alice")).sort(), ["s", "s2"]);
      t.same(await numbersOf("bob"), ["s"]);
      t.same(await numbersOf("carol"), ["s2"]);
      t.same(await numbersOf("ali"), []);
    };
    await check();
    await fixture.reopen();
    await check();
    await end("", to("bob"));
    t.same(await numbersOf("bob"), []);
    t.same(await numbersOf("alice"), ["s2"]);
  });

  t.test("no read shows what is not published", async (t) => {
    const fixture = await createFixture(t);
    const { start, content, end } = producer(fixture);
    let published = 0;
    fixture.onPublish = (e) => {
      if (e.kind === "event") published = e.event.stream?.nextIndex ?? 0;
    };
    let early = 0;
    let isDone = false;
    const reading = (async () => {
      while (!isDone) {
        const shown = (await fixture.store.stream(KEY, "s"))?.nextIndex ?? 0;
        if (shown > published) early++;
        await new Promise(setImmediate);
      }
    })();
    await start();
    for (let i = 0; i < 20; i++) await Promise.all(Array.from({ length: 10 }, () => content("x")));
    await end();
    isDone = true;
    await reading;
    t.equal(early, 0);
    t.equal(published, 202);
  });

  t.test("what a publisher throws harms no stream", async (t) => {
    const fixture = await createFixture(t);
    const { start, content } = producer(fixture);
    fixture.onPublish = () => {
      throw new Error("a publisher's bug");
    };
    t.same(await start(), ACTIVE);
    t.same(await content("a"), ACTIVE);
    t.match(await snapshotOf(fixture), { text: "a", nextIndex: 2 });
  });
}

function textOf(payload: Uint8Array | undefined): unknown {
  return JSON.parse(new TextDecoder().decode(payload));
}
