// The Store contract: what reads and viewers are shown of streams, and when.

import type { Test } from "tap";
import { STREAM_START } from "../../src/broker/model.ts";
import { ALL, draftOf, type Given, seqsOf } from "./store-bench.ts";
import { ACTIVE, eventsIn, KEY, producer, streamIn, TOOL } from "./store-stream-bench.ts";

export async function streamReads(t: Test, given: Given): Promise<void> {
  t.test("a start publishes its message, then itself", async (t) => {
    const bench = await given(t);
    await bench.store.append(draftOf());
    const at = { timestampMs: 1234, eventId: "mine" };
    await producer(bench).start("meta", at);
    await bench.store.append(draftOf());
    await bench.heard(4);
    t.same(
      bench.events.map((e) => e.kind),
      ["message", "message", "event", "message"],
    );
    const [, message] = bench.messages;
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
    t.same(eventsIn(bench), [
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
    const bench = await given(t);
    const { start, content, tool, end } = producer(bench);
    await Promise.all([start(), content("ab")]);
    await bench.store.append(draftOf());
    await Promise.all([tool("{}"), content("c"), end("fin")]);
    await bench.store.append(draftOf());
    await bench.heard(8);
    t.same(
      bench.events.map((e) => {
        if (e.kind === "message") return e.message.messageSeq;
        if (e.kind !== "event" || e.event.stream === undefined) return e.kind;
        const { index, nextIndex, textOffset, state } = e.event.stream;
        t.equal(nextIndex, index + 1);
        t.equal(e.event.timestampMs, bench.nowMs);
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
    const bench = await given(t);
    const { start, content, tool, end } = producer(bench);
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
        ...{ index: 4, textOffset: 3, eventId: "4", timestampMs: bench.nowMs },
        ...{ type: "___ToolCallResult", data: "" },
      },
    ];
    const check = async () => t.match((await streamIn(bench)).notes, notes);
    await check();
    await bench.reopen();
    await check();
    await end();
    await check();
    await bench.reopen();
    await check();
  });

  t.test("a snapshot never changes, and a new read shows what came since", async (t) => {
    const bench = await given(t);
    const { start, content, tool } = producer(bench);
    await start();
    await content("a");
    const first = await streamIn(bench);
    t.equal(await streamIn(bench), first, "made once");
    await content("b");
    await tool("{}");
    t.match(first, { text: "a", nextIndex: 2, notes: [] });
    t.match(await streamIn(bench), { text: "ab", nextIndex: 4 });
  });

  t.test("text offsets of every index, active and ended", async (t) => {
    const bench = await given(t);
    const { start, content, tool, end } = producer(bench);
    await start("s");
    await content("äb");
    await tool("{}");
    await content("\u{1F600}");
    const offsets = async (upTo: number) =>
      Promise.all(
        Array.from({ length: upTo + 2 }, (_, i) => bench.store.streamTextOffset(KEY, "s", i - 1)),
      );
    t.same(await offsets(5), [undefined, 0, 0, 2, 2, 4, undefined]);
    await end();
    const ended = [undefined, 0, 0, 2, 2, 4, 4, undefined];
    t.same(await offsets(6), ended);
    await bench.reopen();
    t.same(await offsets(6), ended);
    t.equal(await bench.store.streamTextOffset(KEY, "x", 0), undefined);
  });

  t.test("history shows the message with its stream", async (t) => {
    const bench = await given(t);
    const { start, content, end } = producer(bench);
    await bench.store.append(draftOf());
    await start();
    await content("so ");
    const read = async (over = {}) =>
      (await bench.store.readMessages(KEY, { ...ALL, ...over })).messages;
    const check = async (text: string, state: string) => {
      const [plain, message] = await read();
      t.equal(plain?.stream, undefined);
      t.same(textOf(message?.payload), { type: 1, content: text });
      t.match(message?.stream, { text, state, messageSeq: 2 });
      t.same(message?.stream, await streamIn(bench));
    };
    await check("so ", "active");
    await bench.reopen();
    await check("so ", "active");
    await content("far");
    await end();
    await check("so far", "closed");
    await bench.reopen();
    await check("so far", "closed");
    const budget = { reverse: true, maxBytes: 30 };
    await bench.store.append(draftOf({ payload: new Uint8Array(10) }));
    t.equal((await read(budget)).length, 1, "its text counts");
  });

  t.test("all that a stream carries counts in a slice", async (t) => {
    const bench = await given(t);
    const { start, tool, end } = producer(bench);
    const long = "x".repeat(1000);
    for (const one of [start, tool, end]) {
      const stream = { clientMsgNo: `${[start, tool, end].indexOf(one)}` };
      for (const post of [start, tool, end]) await post(post === one ? long : "", stream);
    }
    const read = async (maxBytes: number, reverse: boolean) => {
      const range = { ...ALL, maxBytes, reverse };
      const slice = await bench.store.readMessages(KEY, range);
      return [...seqsOf(slice.messages), slice.more];
    };
    const check = async () => {
      t.same(await read(1500, false), [1, true]);
      t.same(await read(1500, true), [3, true]);
      t.same(await read(2500, false), [1, 2, true]);
      t.same(await read(5000, false), [1, 2, 3, false]);
    };
    await check();
    await bench.reopen();
    await check();
  });

  t.test("the personal streams of a user, from either side", async (t) => {
    const bench = await given(t);
    const { start, end } = producer(bench);
    const to = (id: string) => ({ channel: { id, type: 1 } }) as const;
    await start();
    await start("", to("bob"));
    await start("", { ...to("carol"), clientMsgNo: "s2" });
    const numbersOf = async (uid: string) =>
      (await bench.store.personalStreamsOf(uid)).map((s) => s.clientMsgNo);
    const check = async () => {
      t.same((await numbersOf("alice")).sort(), ["s", "s2"]);
      t.same(await numbersOf("bob"), ["s"]);
      t.same(await numbersOf("carol"), ["s2"]);
      t.same(await numbersOf("ali"), []);
    };
    await check();
    await bench.reopen();
    await check();
    await end("", to("bob"));
    t.same(await numbersOf("bob"), []);
    t.same(await numbersOf("alice"), ["s2"]);
  });

  t.test("no read shows what is not published", async (t) => {
    const bench = await given(t);
    const { start, content, end } = producer(bench);
    let published = 0;
    bench.onPublish = (e) => {
      if (e.kind === "event") published = e.event.stream?.nextIndex ?? 0;
    };
    let early = 0;
    let isDone = false;
    const reading = (async () => {
      while (!isDone) {
        const shown = (await bench.store.stream(KEY, "s"))?.nextIndex ?? 0;
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
    const bench = await given(t);
    const { start, content } = producer(bench);
    bench.onPublish = () => {
      throw new Error("a publisher's bug");
    };
    t.same(await start(), ACTIVE);
    t.same(await content("a"), ACTIVE);
    t.match(await streamIn(bench), { text: "a", nextIndex: 2 });
  });
}

function textOf(payload: Uint8Array | undefined): unknown {
  return JSON.parse(new TextDecoder().decode(payload));
}
