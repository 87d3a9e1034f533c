// The Store contract: the state machine of streams, row by row [spec: Streaming text session; decisions: Messages and events].

import type { Test } from "tap";
import { STREAM_END, STREAM_START } from "../../src/broker/model.ts";
import { earlier, type Given, retryOf } from "./store-bench.ts";
import {
  ACTIVE,
  eventsIn,
  KEY,
  producer,
  step,
  streamIn,
} from "./store-stream-bench.ts";

/** Every row of the specification's table, and of the decisions that complete it. */
export async function streamStates(t: Test, given: Given): Promise<void> {
  t.test("none, start, no other stream active: active", async (t) => {
    const bench = await given(t);
    t.same(await producer(bench).start("hi"), ACTIVE);
    t.match(await streamIn(bench), {
      ...{ key: KEY, clientMsgNo: "s", fromUid: "alice" },
      ...{ state: "active", text: "", nextIndex: 1, messageSeq: 1 },
      ...{ channel: { id: "g", type: 2 }, startData: "hi", notes: [] },
    });
    t.equal((await streamIn(bench)).endData, undefined);
    t.same(await bench.store.activeStream(KEY), await streamIn(bench));
  });

  t.test(
    "none, start with force: existing streams are ended first",
    async (t) => {
      const bench = await given(t);
      const { start, content } = producer(bench);
      await start();
      await content("kept");
      const other = { clientMsgNo: "s2", force: true };
      t.same(await start("", other), ACTIVE);
      t.match(await streamIn(bench), {
        ...{ state: "cancelled", text: "kept", endData: "", nextIndex: 3 },
      });
      t.equal((await bench.store.activeStream(KEY))?.clientMsgNo, "s2");
      t.same(
        bench.events.slice(3).map((e) => {
          if (e.kind !== "event") return e.kind;
          const { clientMsgNo, type, data, stream } = e.event;
          return [clientMsgNo, type, data, stream?.state];
        }),
        [
          ["s", STREAM_END, "", "cancelled"],
          "message",
          ["s2", STREAM_START, "", "active"],
        ],
      );
      t.same(await start("", { clientMsgNo: "s3", force: true }), ACTIVE);
    },
  );

  t.test(
    "none, start, another stream active and no force: running",
    async (t) => {
      const bench = await given(t);
      const { start } = producer(bench);
      await start();
      const refused = await start("", { clientMsgNo: "s2" });
      t.same(refused, step("running", undefined));
      t.equal(await bench.store.stream(KEY, "s2"), undefined);
      t.equal(await bench.store.headSeq(KEY), 1);
      t.same(
        await start("", { channel: { id: "h", type: 2 } }),
        ACTIVE,
        "in another channel",
      );
    },
  );

  t.test("active, content: a chunk is added", async (t) => {
    const bench = await given(t);
    const { start, content } = producer(bench);
    await start();
    t.same(await content("one "), ACTIVE);
    t.same(await content("zwö"), ACTIVE);
    t.match(await streamIn(bench), { text: "one zwö", nextIndex: 3 });
  });

  t.test("active, end: closed", async (t) => {
    const bench = await given(t);
    const { start, content, end } = producer(bench);
    await start("meta");
    await content("text");
    t.same(await end("fin"), step("done", "closed"));
    t.match(await streamIn(bench), {
      ...{ state: "closed", text: "text", startData: "meta", endData: "fin" },
      nextIndex: 3,
    });
    t.equal(await bench.store.activeStream(KEY), undefined);
    t.same(await start("", { clientMsgNo: "s2" }), ACTIVE, "a new one may");
  });

  t.test("none, content or end or tool call: missing", async (t) => {
    const bench = await given(t);
    const { content, end, tool } = producer(bench);
    for (const post of [content, end, tool])
      t.same(await post("x"), step("missing", undefined));
    t.equal(bench.events.length, 0);
    t.same(
      await bench.store.cancelStream(KEY, "s"),
      step("missing", undefined),
    );
  });

  t.test(
    "closed: content and start are refused, an end is a retry",
    async (t) => {
      const bench = await given(t);
      const { start, content, end, tool } = producer(bench);
      await start();
      await content("text");
      await end("fin");
      const check = async () => {
        t.same(await content("more"), step("closed", "closed"));
        t.same(await start(), step("closed", "closed"));
        t.same(await start("", { force: true }), step("closed", "closed"));
        t.same(await end("other"), step("done", "closed"));
        t.same(await tool("{}"), step("missing", "closed"));
        t.match(await streamIn(bench), { text: "text", endData: "fin" });
      };
      const { length } = bench.events;
      await check();
      await bench.reopen();
      await check();
      t.equal(bench.events.length, length, "nothing is told");
    },
  );

  t.test("a start again while active is a retry", async (t) => {
    const bench = await given(t);
    const { start } = producer(bench);
    await start("first");
    t.same(await start("second"), ACTIVE);
    t.same(await start("third", { force: true }), ACTIVE);
    t.match(await streamIn(bench), { startData: "first", nextIndex: 1 });
    t.equal(bench.events.length, 2, "the message and the start");
  });

  t.test("a start with the number of a plain message: taken", async (t) => {
    const bench = await given(t);
    await bench.store.append(retryOf("s"));
    const taken = await producer(bench).start();
    t.same(taken, step("taken", undefined));
    t.equal(await bench.store.headSeq(KEY), 1);
    const byBob = await producer(bench).start("", { fromUid: "bob" });
    t.same(byBob, ACTIVE, "another sender's number is another's");
  });

  t.test(
    "a plain message with the number of a stream is its retry",
    async (t) => {
      const bench = await given(t);
      const { start, end } = producer(bench);
      await start();
      const { messageId } = await streamIn(bench);
      const check = async () =>
        t.same(await bench.store.append(retryOf("s")), {
          ...{ messageId, messageSeq: 1, duplicate: true },
        });
      await check();
      await end();
      await bench.reopen();
      await check();
      t.match(await earlier(bench.store, retryOf("s")), { messageId });
    },
  );
}

export async function streamEnds(t: Test, given: Given): Promise<void> {
  t.test(
    "a viewer's cancel ends it at once; the producer hears stopped",
    async (t) => {
      const bench = await given(t);
      const { start, content, end, tool } = producer(bench);
      await start();
      await content("so far");
      const cancel = () => bench.store.cancelStream(KEY, "s");
      t.same(await cancel(), step("done", "cancelled"));
      t.match(eventsIn(bench).at(-1), {
        ...{ type: STREAM_END, data: "", fromUid: "alice" },
        stream: { index: 2, textOffset: 6, state: "cancelled" },
      });
      const { length } = bench.events;
      const check = async () => {
        t.same(await content("more"), step("stopped", "cancelled"));
        t.same(await tool("{}"), step("stopped", "cancelled"));
        t.same(await end(), step("done", "cancelled"));
        t.same(await start(), step("closed", "cancelled"));
        t.same(await cancel(), step("done", "cancelled"));
        t.match(await streamIn(bench), { text: "so far", endData: "" });
      };
      await check();
      await bench.reopen();
      await check();
      t.equal(bench.events.length, length);
    },
  );

  t.test("a cancel of a closed stream leaves it as it is", async (t) => {
    const bench = await given(t);
    const { start, end } = producer(bench);
    await start();
    await end();
    const cancel = () => bench.store.cancelStream(KEY, "s");
    t.same(await cancel(), step("done", "closed"));
    await bench.reopen();
    t.same(await cancel(), step("done", "closed"));
    t.equal(eventsIn(bench).length, 2);
  });

  t.test("content of a stream that a forced start ended: closed", async (t) => {
    const bench = await given(t);
    const { start, content } = producer(bench);
    await start();
    await start("", { clientMsgNo: "s2", force: true });
    t.same(await content("late"), step("closed", "cancelled"));
    await bench.reopen();
    t.same(await content("late"), step("closed", "cancelled"));
  });

  t.test(
    "streams without an event for too long end as interrupted",
    async (t) => {
      const bench = await given(t);
      const { start, content } = producer(bench);
      const inH = { channel: { id: "h", type: 2 } } as const;
      await start();
      await start("", inH);
      await content("kept");
      bench.nowMs += 1000;
      await content("more", inH);
      const startedMs = bench.nowMs - 1000;
      t.equal(await bench.store.interruptStreams(startedMs), 0);
      t.equal(await bench.store.interruptStreams(startedMs + 1), 1);
      t.equal(await bench.store.interruptStreams(startedMs + 1), 0);
      t.match(await streamIn(bench), { state: "interrupted", text: "kept" });
      t.match(eventsIn(bench).at(-1), {
        ...{ type: STREAM_END, data: "" },
        stream: { state: "interrupted", index: 2 },
      });
      t.same(await content("late"), step("closed", "interrupted"));
      t.match(await streamIn(bench, "s", "2:h"), { state: "active" });
      t.same(await start("", { clientMsgNo: "s2" }), ACTIVE);
    },
  );

  t.test(
    "after a restart an active stream goes on and has its time anew",
    async (t) => {
      const bench = await given(t);
      const { start, content, end } = producer(bench);
      await start();
      await content("before ");
      bench.nowMs += 60_000;
      await bench.reopen();
      t.equal(await bench.store.interruptStreams(bench.nowMs - 1), 0);
      t.equal((await bench.store.activeStream(KEY))?.text, "before ");
      t.same(
        await start("", { clientMsgNo: "s2" }),
        step("running", undefined),
      );
      t.same(await start(), ACTIVE, "its start again is a retry");
      await content("after");
      t.match(eventsIn(bench).at(-1), { stream: { index: 2, textOffset: 7 } });
      await bench.reopen();
      t.same(await end(), step("done", "closed"));
      t.match(await streamIn(bench), { text: "before after", nextIndex: 4 });
    },
  );
}

export async function streamRetries(t: Test, given: Given): Promise<void> {
  const id = (eventId: string) => ({ eventId });

  t.test(
    "an event with the id of an earlier one changes nothing",
    async (t) => {
      const bench = await given(t);
      const { start, content, end, tool } = producer(bench);
      const all = async () => [
        await start("s", id("e0")),
        await content("a", id("e1")),
        await tool("{}", id("e2")),
        await content("a", id("e3")),
      ];
      t.same(await all(), Array(4).fill(ACTIVE));
      t.same(await all(), Array(4).fill(ACTIVE));
      await bench.reopen();
      t.same(await all(), Array(4).fill(ACTIVE));
      t.same(
        eventsIn(bench).map((e) => e.eventId),
        ["e0", "e1", "e2", "e3"],
      );
      t.match(await streamIn(bench), { text: "aa", nextIndex: 4 });
      t.same(await end("", id("e4")), step("done", "closed"));
      const closed = step("done", "closed");
      t.same(await content("a", id("e1")), closed, "also after the end");
      t.same(await tool("{}", id("e2")), closed);
      await bench.reopen();
      t.same(await content("a", id("e3")), closed, "and a restart");
      t.same(await content("a", id("e5")), step("closed", "closed"));
      t.equal(eventsIn(bench).length, 5);
    },
  );

  t.test("the same id in another stream is another event", async (t) => {
    const bench = await given(t);
    const { start, content, end } = producer(bench);
    await start();
    await content("one", id("e"));
    await end();
    const other = { clientMsgNo: "s2" };
    await start("", other);
    await content("two", { ...other, ...id("e") });
    t.equal((await streamIn(bench, "s2")).text, "two");
  });

  t.test(
    "events without an id are never retries and get ids in order",
    async (t) => {
      const bench = await given(t);
      const { start, content } = producer(bench);
      await start();
      for (let i = 0; i < 12; i++) await content("x");
      const ids = eventsIn(bench).map((e) => Number(e.eventId));
      t.same(
        ids,
        [...new Set(ids)].sort((a, b) => a - b),
      );
      t.equal(ids.length, 13);
    },
  );

  t.test(
    "calls of one turn are decided in their order, each once",
    async (t) => {
      const bench = await given(t);
      const { start, content, end } = producer(bench);
      const other = { clientMsgNo: "s2" };
      t.same(
        await Promise.all([
          content("early"),
          start("", id("a")),
          start("", id("a")),
          content("x", id("b")),
          content("x", id("b")),
          start("", other),
          end("", id("c")),
          end("", id("c")),
          content("late"),
          start("", other),
          start("", { clientMsgNo: "s3", force: true }),
          content("gone", other),
          bench.store.cancelStream(KEY, "s3"),
          content("stop", { clientMsgNo: "s3" }),
        ]),
        [
          step("missing", undefined),
          ACTIVE,
          ACTIVE,
          ACTIVE,
          ACTIVE,
          step("running", undefined),
          step("done", "closed"),
          step("done", "closed"),
          step("closed", "closed"),
          ACTIVE,
          ACTIVE,
          step("closed", "cancelled"),
          step("done", "cancelled"),
          step("stopped", "cancelled"),
        ],
      );
      t.equal((await streamIn(bench)).text, "x");
      t.equal(await bench.store.headSeq(KEY), 3);
      await bench.reopen();
      t.equal((await streamIn(bench)).text, "x");
      t.equal((await streamIn(bench, "s3")).state, "cancelled");
    },
  );
}
