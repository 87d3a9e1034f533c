// Store contract: the state machine of streams by the table of `stream-cases.ts`. Further tests
// cover retries, concurrent calls, and streams without events.

import type { Test } from "tap";
import {
  type ChannelEvent,
  type ChannelRef,
  channelKey,
  groupTopic,
  STREAM_CONTENT,
  STREAM_END,
  STREAM_START,
  type StreamSnapshot,
  userTopic,
} from "../../src/broker/model.ts";
import type { StreamDraft, StreamResult } from "../../src/broker/ports.ts";
import { ALL, draftOf, type FixtureFactory, type StoreFixture } from "./store-fixture.ts";
import {
  ACTIVE,
  channelEventsOf,
  eventOf,
  KEY,
  producer,
  snapshotOf,
  streamResult,
  TOOL,
} from "./store-stream-fixture.ts";
import {
  type Outcome,
  PRECEDING_CALLS,
  type Precondition,
  STREAM_CASES,
  type StreamCall,
} from "./stream-cases.ts";

const TYPES: Readonly<Record<string, string>> = {
  start: STREAM_START,
  "forced-start": STREAM_START,
  content: STREAM_CONTENT,
  tool: TOOL,
  end: STREAM_END,
};

/** Runs every call of the table in every state. */
export async function streamStates(t: Test, createFixture: FixtureFactory): Promise<void> {
  const variants = [
    ["in a group", 2, false],
    ["in a group after a restart", 2, true],
    ["between two users", 1, false],
  ] as const;
  for (const [variant, type, restarts] of variants)
    t.test(`every stream call has the specified outcome in every state (${variant})`, async (t) => {
      const fixture = await createFixture(t);
      const cases = allCases(fixture, type);
      const [silent, others] = [true, false].map((isSilent) =>
        cases.filter((streamCase) => streamCase.isSilent === isSilent),
      ) as [StreamCase[], StreamCase[]];
      const compare = async (compared: readonly StreamCase[]) => {
        const outcomes = await Promise.all(compared.map((one) => one.outcome()));
        const entries = compared.map(({ name }, at) => [name, outcomes[at]]);
        const expected = compared.map(({ name, expected }) => [name, expected]);
        t.same(Object.fromEntries(entries), Object.fromEntries(expected));
      };
      await fixture.listen(cases.map(({ topic }) => topic));
      await Promise.all(silent.map((one) => one.prepare()));
      fixture.nowMs += 1000;
      t.equal(await fixture.store.interruptStreams(0), silent.length);
      await Promise.all(others.map((one) => one.prepare()));
      await Promise.all(cases.map((one) => one.skipEvents()));
      if (restarts) await fixture.reopen();

      await Promise.all(cases.map((one) => one.run()));
      await compare(cases.filter(({ call }) => call !== "silence"));

      const active = await Promise.all(cases.map((one) => one.active()));
      const running = active.filter((snapshot) => snapshot !== undefined);
      fixture.nowMs += 1000;
      const ended = await fixture.store.interruptStreams(0);
      t.equal(ended, running.length, "every active stream is interrupted");
      await compare(cases.filter(({ call }) => call === "silence"));
      await Promise.all(cases.map((one) => one.checkReads(t)));
    });
}

/** One call in one state, with a channel of its own. */
class StreamCase {
  readonly name: string;
  readonly call: StreamCall;
  readonly expected: Outcome;
  readonly topic: string;
  readonly #fixture: StoreFixture;
  readonly #precedingCalls: readonly string[];
  readonly #channel: ChannelRef;
  readonly #key: string;
  #result = "-";
  #skipped = 0;

  constructor(
    fixture: StoreFixture,
    type: ChannelRef["type"],
    [state, call, expected]: readonly [Precondition, StreamCall, Outcome],
  ) {
    this.name = `${state}: ${call}`;
    this.call = call;
    this.expected = expected;
    this.#fixture = fixture;
    this.#precedingCalls = PRECEDING_CALLS[state];
    this.#channel = { id: this.name, type };
    this.#key = channelKey(this.#channel, "alice");
    this.topic = type === 1 ? userTopic(this.name) : groupTopic(this.name);
  }

  /** True if the state is reached by interrupting silent streams. */
  get isSilent(): boolean {
    return this.#precedingCalls.includes("silence");
  }

  /** Makes the preceding calls, so that the channel is in the state. */
  async prepare(): Promise<void> {
    for (const line of this.#precedingCalls) {
      const [clientMsgNo = "", kind = "", eventId] = line.split(" ");
      const force = kind === "forced-start";
      if (clientMsgNo === "message") await this.#message();
      else if (clientMsgNo === "cancel") await this.#cancel();
      else if (clientMsgNo !== "silence") await this.#post(kind, { clientMsgNo, eventId, force });
    }
  }

  /** Waits for the events of the preceding calls, so that the outcome leaves them out. */
  async skipEvents(): Promise<void> {
    await this.#fixture.untilPublished(this.#channel, "alice");
    this.#skipped = this.#events().length;
  }

  /** Makes the call. */
  async run(): Promise<void> {
    this.#result = await this.#call();
  }

  /** Returns the outcome in the form of the table. */
  async outcome(): Promise<readonly string[]> {
    await this.#fixture.untilPublished(this.#channel, "alice");
    const events = this.#events();
    return [this.#result, ...events.slice(this.#skipped).map(describe)];
  }

  async active(): Promise<StreamSnapshot | undefined> {
    const [stream] = await this.#fixture.store.activeStreams([this.#key]);
    return stream;
  }

  /**
   * Checks that each stream in the store equals the sum of its published events, and that the
   * channel has its published messages.
   */
  async checkReads(t: Test): Promise<void> {
    const { store } = this.#fixture;
    const events = this.#events();
    const seqs = events.filter((event) => typeof event === "number");
    const expected: unknown[] = [seqs.at(-1) ?? 0];
    const actual: unknown[] = [await store.headSeq(this.#key)];
    for (const clientMsgNo of ["s", "o"]) {
      const streamEvents = events.filter(
        (event) => typeof event === "object" && event.clientMsgNo === clientMsgNo,
      ) as ChannelEvent[];
      expected.push(
        streamEvents.length > 0 ? sumOf(streamEvents) : undefined,
        offsetsOf(streamEvents),
      );
      actual.push(await store.stream(this.#key, clientMsgNo));
      actual.push(streamEvents.map(({ stream }) => stream?.textOffset));
    }
    t.match(actual, expected, this.name);
  }

  #call(): Promise<string> {
    switch (this.call) {
      case "start":
        return this.#post("start");
      case "forced start":
        return this.#post("start", { force: true });
      case "start by bob":
        return this.#post("start", this.#byBob());
      case "content":
        return this.#post("content");
      case "repeated content":
        return this.#post("content", { eventId: "e1" });
      case "tool":
        return this.#post("tool");
      case "repeated tool":
        return this.#post("tool", { eventId: "e2" });
      case "end":
        return this.#post("end");
      case "cancel":
        return this.#cancel();
      case "message":
        return this.#message();
      case "silence":
        return Promise.resolve("-");
    }
  }

  /**
   * Returns the fields of a draft by bob, who is another user of the group. In a personal channel,
   * returns those of the channel's other user.
   */
  #byBob(): Partial<StreamDraft> {
    const { id, type } = this.#channel;
    if (type === 2) return { fromUid: "bob" };
    return { fromUid: id, channel: { id: "alice", type } };
  }

  async #post(kind: string, over: Partial<StreamDraft> = {}): Promise<string> {
    const { store } = this.#fixture;
    const target = { channel: this.#channel, ...over };
    return resultText(await store.streamEvent(eventOf(TYPES[kind] ?? "", kind, target)));
  }

  async #cancel(): Promise<string> {
    return resultText(await this.#fixture.store.cancelStream(this.#key, "s"));
  }

  async #message(): Promise<string> {
    const draft = draftOf({ channel: this.#channel, clientMsgNo: "s" });
    const { duplicate, refused } = await this.#fixture.store.append(draft);
    return refused ?? (duplicate ? "retry" : "new");
  }

  /**
   * Returns the channel's stream events and the seqs of its messages, in the order of publication.
   */
  #events(): readonly (ChannelEvent | number)[] {
    return this.#fixture.events.flatMap((event): (ChannelEvent | number)[] => {
      if (event.kind === "event" && event.event.key === this.#key) return [event.event];
      if (event.kind !== "message" || event.message.key !== this.#key) return [];
      return event.message.messageSeq > 0 ? [event.message.messageSeq] : [];
    });
  }
}

function allCases(fixture: StoreFixture, type: ChannelRef["type"]): readonly StreamCase[] {
  return Object.entries(STREAM_CASES).flatMap(([state, calls]) =>
    Object.entries(calls).map(
      ([call, expected]) =>
        new StreamCase(fixture, type, [state as Precondition, call as StreamCall, expected]),
    ),
  );
}

const resultText = ({ verdict, state }: StreamResult) => `${verdict} ${state ?? "-"}`;

function describe(event: ChannelEvent | number): string {
  if (typeof event === "number") return "message";
  const { clientMsgNo, type, stream } = event;
  const kind = Object.keys(TYPES).find((name) => TYPES[name] === type);
  return `${clientMsgNo} ${stream?.index} ${kind} ${stream?.state}`;
}

/** Returns, for each event, the number of UTF-16 code units of text before it. */
function offsetsOf(events: readonly ChannelEvent[]): readonly number[] {
  let units = 0;
  return events.map(({ type, data }) => {
    const before = units;
    if (type === STREAM_CONTENT) units += data.length;
    return before;
  });
}

/** Returns the fields of the stream that results from these events. */
function sumOf(events: readonly ChannelEvent[]) {
  const ofType = (type: string) => events.filter((event) => event.type === type);
  const [first, last] = [events[0], events.at(-1)];
  return {
    ...{ clientMsgNo: first?.clientMsgNo, fromUid: first?.fromUid },
    ...{ key: first?.key, channel: first?.channel, startData: first?.data },
    messageSeq: first?.stream?.messageSeq,
    state: last?.stream?.state,
    nextIndex: events.length,
    text: ofType(STREAM_CONTENT)
      .map((event) => event.data)
      .join(""),
    endData: ofType(STREAM_END)[0]?.data,
    notes: ofType(TOOL).map(({ eventId, data, type, timestampMs, stream }) => ({
      ...{ eventId, data, type, timestampMs },
      ...{ index: stream?.index, textOffset: stream?.textOffset },
    })),
  };
}

export async function streamEnds(t: Test, createFixture: FixtureFactory): Promise<void> {
  retained(t, createFixture);
  expiring(t, createFixture);
  ownPayloads(t, createFixture);
  t.test(
    "an end event that cancels a stream is stored with its data and id, and later content is refused",
    async (t) => {
      const fixture = await createFixture(t);
      const { start, content, end } = producer(fixture);
      await start();
      await content("kept");
      const cancel = { isCancel: true, eventId: "e" };
      t.same(await end("why", cancel), streamResult("done", "cancelled"));
      t.same(await end("why", cancel), streamResult("done", "cancelled"));
      t.same(await content("late"), streamResult("closed", "cancelled"));
      t.match(channelEventsOf(fixture).at(-1), {
        ...{ type: STREAM_END, data: "why", eventId: "e" },
        stream: { state: "cancelled", index: 2 },
      });
      await fixture.reopen();
      const ended = { state: "cancelled", text: "kept", endData: "why", endId: "e" };
      t.match(await snapshotOf(fixture), ended);
      t.same(await start("", { clientMsgNo: "s2" }), ACTIVE, "the channel has no active stream");
    },
  );

  t.test("a stream keeps names of 1 to 128 characters", async (t) => {
    const fixture = await createFixture(t);
    for (const length of [1, 15, 20, 40, 64, 128]) {
      const id = "群".repeat(length);
      const clientMsgNo = "n".repeat(length);
      const names = { channel: { id, type: 2 }, fromUid: "é".repeat(length), clientMsgNo } as const;
      const { start, content, end } = producer(fixture, { ...names, key: `2:${id}` });
      const shown = () => snapshotOf(fixture, clientMsgNo, `2:${id}`);
      t.same(await start(), ACTIVE);
      await content("kept");
      t.match(await shown(), { ...names, text: "kept" }, `${length} characters`);
      await fixture.reopen();
      await end();
      t.match(await shown(), { ...names, text: "kept", state: "closed" }, `${length} characters`);
    }
  });

  t.test(
    "a stream that receives no event for longer than the idle time is interrupted",
    async (t) => {
      const fixture = await createFixture(t);
      const { start, content } = producer(fixture);
      const inH = { channel: { id: "h", type: 2 } } as const;
      await start();
      await start("", inH);
      await content("kept");
      fixture.nowMs += 1000;
      await content("more", inH);
      t.equal(await fixture.store.interruptStreams(1000), 0);
      t.equal(await fixture.store.interruptStreams(999), 1);
      t.equal(await fixture.store.interruptStreams(999), 0);
      t.match(await snapshotOf(fixture), { state: "interrupted", text: "kept" });
      t.match(channelEventsOf(fixture).at(-1), {
        ...{ type: STREAM_END, data: "" },
        stream: { state: "interrupted", index: 2 },
      });
      t.same(await content("late"), streamResult("closed", "interrupted"));
      t.match(await snapshotOf(fixture, "s", "2:h"), { state: "active" });
      t.same(await start("", { clientMsgNo: "s2" }), ACTIVE);
    },
  );

  t.test("one call returns the active streams of 600 channels", async (t) => {
    const fixture = await createFixture(t);
    const { store } = fixture;
    const ids = Array.from({ length: 600 }, (_, at) => `group-${at}`);
    const keys = ids.map((id) => `2:${id}`);
    t.same(await store.activeStreams([]), []);
    t.same(await store.activeStreams(keys), []);
    const active = ["group-7", "group-311", "group-599"];
    const { start, end } = producer(fixture);
    const inGroup = (id: string) => ({ key: `2:${id}`, channel: { id, type: 2 } as const });
    for (const id of [...active, "group-8"]) t.same(await start("", inGroup(id)), ACTIVE);
    await end("", inGroup("group-8"));
    const streams = await store.activeStreams(keys);
    t.same(streams.map(({ channel }) => channel.id).sort(), [...active].sort());
    t.same(
      (await store.activeStreams(["2:group-8", "2:group-7"])).map(({ key }) => key),
      ["2:group-7"],
      "an ended stream is not active",
    );
  });

  t.test(
    "an active stream continues after a restart, and its idle time is counted from the restart",
    async (t) => {
      const fixture = await createFixture(t);
      const { start, content, end } = producer(fixture);
      await start();
      await content("before ");
      fixture.nowMs += 60_000;
      await fixture.reopen();
      t.equal(await fixture.store.interruptStreams(1), 0);
      t.equal((await fixture.store.activeStreams([KEY]))[0]?.text, "before ");
      t.same(await start("", { clientMsgNo: "s2" }), streamResult("running", undefined));
      t.same(await start(), ACTIVE, "a repeated start is a retry");
      await content("after");
      t.match(channelEventsOf(fixture).at(-1), { stream: { index: 2, textOffset: 7 } });
      await fixture.reopen();
      t.same(await end(), streamResult("done", "closed"));
      t.match(await snapshotOf(fixture), { text: "before after", nextIndex: 4 });
    },
  );
}

function ownPayloads(t: Test, createFixture: FixtureFactory): void {
  const payload = new TextEncoder().encode('{"type":100,"content":"own"}');
  t.test(
    "the message of a stream keeps the payload that its producer chose, and the stream's text counts towards the size of a page of messages",
    async (t) => {
      const fixture = await createFixture(t);
      const { start, content, end } = producer(fixture);
      const text = "x".repeat(1000);
      await start("", { payload, eventId: "start" });
      const [message] = fixture.events.flatMap((event) =>
        event.kind === "message" ? [event.message] : [],
      );
      t.same(Buffer.from(message?.payload ?? []), Buffer.from(payload), "the published message");
      await content(text);
      const range = { fromSeq: 1, toSeq: 9, limit: 9, reverse: false, maxBytes: 1e6 };
      const read = async (maxBytes = 1e6) =>
        (await fixture.store.readMessages(KEY, { ...range, maxBytes })).messages;
      const assertKept = async (when: string) => {
        const [stored] = await read();
        t.same(Buffer.from(stored?.payload ?? []), Buffer.from(payload), when);
        t.match(stored?.stream, { text, startId: "start" }, when);
      };
      await assertKept("the message has its own payload while the stream is active");
      await fixture.reopen();
      await assertKept("after a restart");
      await end();
      await assertKept("the message has its own payload after the end");
      await fixture.reopen();
      await assertKept("the message has its own payload after another restart");
      await start("", { clientMsgNo: "s2", payload });
      t.equal((await read(900)).length, 1, "the first message fills the page with its text");
      t.equal((await read(3000)).length, 2);
    },
  );
}

function retained(t: Test, createFixture: FixtureFactory): void {
  t.test(
    "an active stream can be read after the retention time, and is removed when it ends",
    async (t) => {
      const fixture = await createFixture(t);
      fixture.retentionS = 60;
      await fixture.reopen();
      const { start, end } = producer(fixture);
      await start();
      const inH = { channel: { id: "h", type: 2 } } as const;
      await start("", inH);
      const stateAndOffset = async (key = KEY) => [
        (await fixture.store.stream(key, "s"))?.state,
        await fixture.store.streamTextOffset(key, "s", 0),
      ];
      await end();
      fixture.nowMs += 59_999;
      t.same(await stateAndOffset(), ["closed", 0]);
      fixture.nowMs += 1;
      t.same(await stateAndOffset(), [undefined, undefined]);
      t.same(await stateAndOffset("2:h"), ["active", 0]);
      await end("", inH);
      t.same(await stateAndOffset("2:h"), [undefined, undefined]);
    },
  );
}

function expiring(t: Test, createFixture: FixtureFactory): void {
  t.test(
    "the message of a stream expires, but an active stream is removed only after it ends",
    async (t) => {
      const fixture = await createFixture(t);
      const { start, content, end } = producer(fixture);
      const long = { clientMsgNo: "long" };
      await fixture.store.append(draftOf());
      await start("", { expireS: 60 });
      await content("text");
      await end();
      await start("", { ...long, expireS: 60 });
      await content("text", long);
      const { store } = fixture;
      const page = await store.readMessages(KEY, ALL);
      t.match(page.messages[1], { expireS: 60, stream: { text: "text" } });
      const shown = async () => [
        (await fixture.store.readMessages(KEY, ALL)).messages.length,
        (await fixture.store.stream(KEY, "s"))?.state,
        await fixture.store.streamTextOffset(KEY, "s", 0),
        (await fixture.store.stream(KEY, "long"))?.state,
      ];
      fixture.nowMs += 59_999;
      t.same(await shown(), [3, "closed", 0, "active"]);
      fixture.nowMs += 1;
      t.same(await shown(), [1, undefined, undefined, "active"]);
      t.same(await content(" more", long), ACTIVE);
      t.equal(await store.sweep(), 1, "the message of the active stream remains");
      t.equal((await content("late")).verdict, "missing", "the ended stream was removed");
      await fixture.reopen();
      t.equal((await snapshotOf(fixture, "long")).text, "text more");
      await end("", long);
      t.same(await shown(), [1, undefined, undefined, undefined]);
      fixture.nowMs += 60_001;
      t.equal(await fixture.store.sweep(), 1);
      t.equal((await content("late", long)).verdict, "missing");
    },
  );

  t.test("a start with an `expire` out of range is rejected", async (t) => {
    const fixture = await createFixture(t);
    for (const expireS of [-1, 0.5, 2 ** 32])
      await t.rejects(producer(fixture).start("", { expireS }), { code: "bad_request" });
  });
}

export async function streamRetries(t: Test, createFixture: FixtureFactory): Promise<void> {
  const id = (eventId: string) => ({ eventId });

  t.test("an event with the id of another stream's event is not a retry", async (t) => {
    const fixture = await createFixture(t);
    const { start, content, end } = producer(fixture);
    await start();
    await content("one", id("e"));
    await end();
    const second = { clientMsgNo: "s2" };
    await start("", second);
    await content("two", { ...second, ...id("e") });
    t.equal((await snapshotOf(fixture, "s2")).text, "two");
  });

  t.test(
    "retries are recognised by their event ids, even after a restart and after the end of the stream",
    async (t) => {
      const fixture = await createFixture(t);
      const { start, content, tool, end } = producer(fixture);
      const timed = (eventId: string, timestampMs: number) => ({ eventId, timestampMs });
      await start("", id("all"));
      await content("a", id("once"));
      await content("b", timed("timed", 5));
      await content("c", id("all"));
      await tool("{}", id("call"));
      await tool("{", id("call"));
      await content("d", id("s"));
      const retries = async () => {
        await content("a", id("once"));
        await content("a", timed("once", 9));
        await content("b", timed("timed", 5));
        await content("b", id("timed"));
      };
      await retries();
      const text = async () => (await snapshotOf(fixture)).text;
      t.equal(await text(), "abcd");
      await fixture.reopen();
      await retries();
      t.equal(await text(), "abcd");
      await content("c", id("all"));
      await content("d", id("s"));
      await content("b", timed("timed", 6));
      await content("b", timed("timed", 6));
      await tool("{", id("call"));
      t.equal(await text(), "abcdcdbb");
      t.equal((await snapshotOf(fixture)).notes.length, 3);
      t.same(await end("", id("all")), streamResult("done", "closed"));
      const flags = channelEventsOf(fixture).map(({ hasGivenId }) => hasGivenId);
      t.notOk(flags.includes(false), "every event of this stream has the id of its producer");
      for (const restarts of [false, true]) {
        if (restarts) await fixture.reopen();
        t.match(await snapshotOf(fixture), { startId: "all", endId: "all" });
        t.same(await content("a", id("once")), streamResult("done", "closed"));
        const others = [
          content("c", id("all")),
          content("d", id("s")),
          content("A", id("once")),
          content("b", timed("timed", 6)),
        ];
        for (const other of others) t.same(await other, streamResult("closed", "closed"));
        t.same(await tool("{", id("call")), streamResult("missing", "closed"));
      }
    },
  );

  t.test("events without an id are never retries and are assigned increasing ids", async (t) => {
    const fixture = await createFixture(t);
    const { start, content } = producer(fixture);
    await start();
    for (let i = 0; i < 12; i++) await content("x");
    const ids = channelEventsOf(fixture).map((event) => Number(event.eventId));
    t.same(
      ids,
      [...new Set(ids)].sort((a, b) => a - b),
    );
    t.equal(ids.length, 13);
  });

  t.test(
    "concurrent calls on a stream are each applied once, in the order in which they were made",
    async (t) => {
      const fixture = await createFixture(t);
      const { start, content, end } = producer(fixture);
      const second = { clientMsgNo: "s2" };
      t.same(
        await Promise.all([
          content("early"),
          start("", id("a")),
          start("", id("a")),
          content("x", id("b")),
          content("x", id("b")),
          start("", second),
          end("", id("c")),
          end("", id("c")),
          content("late"),
          start("", second),
          start("", { clientMsgNo: "s3", force: true }),
          content("gone", second),
          fixture.store.cancelStream(KEY, "s3"),
          content("stop", { clientMsgNo: "s3" }),
        ]),
        [
          streamResult("missing", undefined),
          ACTIVE,
          ACTIVE,
          ACTIVE,
          ACTIVE,
          streamResult("running", undefined),
          streamResult("done", "closed"),
          streamResult("done", "closed"),
          streamResult("closed", "closed"),
          ACTIVE,
          ACTIVE,
          streamResult("closed", "cancelled"),
          streamResult("done", "cancelled"),
          streamResult("stopped", "cancelled"),
        ],
      );
      t.equal((await snapshotOf(fixture)).text, "x");
      t.equal(await fixture.store.headSeq(KEY), 3);
      await fixture.reopen();
      t.equal((await snapshotOf(fixture)).text, "x");
      t.equal((await snapshotOf(fixture, "s3")).state, "cancelled");
    },
  );
}
