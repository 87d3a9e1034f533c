// The Store contract: the state machine of streams, by the table of `stream-cases.ts`, and what the
// table does not say: retries and calls of one turn, how long is silent.

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
import { draftOf, type FixtureFactory, type StoreFixture } from "./store-fixture.ts";
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

/** Every call in every state, as the table says. */
export async function streamStates(t: Test, createFixture: FixtureFactory): Promise<void> {
  const places = [
    ["in a group", 2, false],
    ["in a group, behind a restart", 2, true],
    ["between two users", 1, false],
  ] as const;
  for (const [where, type, restarts] of places)
    t.test(`${where}: every call in every state`, async (t) => {
      const fixture = await createFixture(t);
      const cells = allCells(fixture, type);
      const [silent, others] = [true, false].map((is) =>
        cells.filter((one) => one.isSilent === is),
      ) as [Cell[], Cell[]];
      const agree = async (some: readonly Cell[]) => {
        const found = await Promise.all(some.map((one) => one.outcome()));
        const entries = some.map((one, at) => [one.name, found[at]]);
        const expected = some.map((one) => [one.name, one.expected]);
        t.same(Object.fromEntries(entries), Object.fromEntries(expected));
      };
      await fixture.listen(cells.map((one) => one.topic));
      await Promise.all(silent.map((one) => one.begin()));
      fixture.nowMs += 1000;
      t.equal(await fixture.store.interruptStreams(fixture.nowMs), silent.length);
      await Promise.all(others.map((one) => one.begin()));
      await Promise.all(cells.map((one) => one.awaitEvents()));
      if (restarts) await fixture.reopen();

      await Promise.all(cells.map((one) => one.ask()));
      await agree(cells.filter((one) => one.call !== "silence"));

      const active = await Promise.all(cells.map((one) => one.active()));
      const running = active.filter((one) => one !== undefined);
      fixture.nowMs += 1000;
      const ended = await fixture.store.interruptStreams(fixture.nowMs);
      t.equal(ended, running.length, "each that is active is silent");
      await agree(cells.filter((one) => one.call === "silence"));
      await Promise.all(cells.map((one) => one.isAsPublished(t)));
    });
}

/** One call in one state, in a channel of its own. */
class Cell {
  readonly name: string;
  readonly call: StreamCall;
  readonly expected: Outcome;
  readonly topic: string;
  readonly #fixture: StoreFixture;
  readonly #createFixture: readonly string[];
  readonly #channel: ChannelRef;
  readonly #key: string;
  #answer = "-";
  #seen = 0;

  constructor(
    fixture: StoreFixture,
    type: ChannelRef["type"],
    [before, call, expected]: readonly [Precondition, StreamCall, Outcome],
  ) {
    this.name = `${before}: ${call}`;
    this.call = call;
    this.expected = expected;
    this.#fixture = fixture;
    this.#createFixture = PRECEDING_CALLS[before];
    this.#channel = { id: this.name, type };
    this.#key = channelKey(this.#channel, "alice");
    this.topic = type === 1 ? userTopic(this.name) : groupTopic(this.name);
  }

  get isSilent(): boolean {
    return this.#createFixture.includes("silence");
  }

  /** Brings the state about. */
  async begin(): Promise<void> {
    for (const line of this.#createFixture) {
      const [clientMsgNo = "", kind = "", eventId] = line.split(" ");
      const force = kind === "forced-start";
      if (clientMsgNo === "message") await this.#message();
      else if (clientMsgNo === "cancel") await this.#cancel();
      else if (clientMsgNo !== "silence") await this.#post(kind, { clientMsgNo, eventId, force });
    }
  }

  /** What was published counts no more. */
  async awaitEvents(): Promise<void> {
    await this.#fixture.untilPublished(this.#channel, "alice");
    this.#seen = this.#events().length;
  }

  async ask(): Promise<void> {
    this.#answer = await this.#ask();
  }

  async outcome(): Promise<readonly string[]> {
    await this.#fixture.untilPublished(this.#channel, "alice");
    const events = this.#events();
    return [this.#answer, ...events.slice(this.#seen).map(worded)];
  }

  async active(): Promise<StreamSnapshot | undefined> {
    return this.#fixture.store.activeStream(this.#key);
  }

  /** Each stream is the sum of its published events, and the channel of its published messages. */
  async isAsPublished(t: Test): Promise<void> {
    const { store } = this.#fixture;
    const events = this.#events();
    const seqs = events.filter((one) => typeof one === "number");
    const expected: unknown[] = [seqs.at(-1) ?? 0];
    const found: unknown[] = [await store.headSeq(this.#key)];
    for (const clientMsgNo of ["s", "o"]) {
      const own = events.filter(
        (one) => typeof one === "object" && one.clientMsgNo === clientMsgNo,
      ) as ChannelEvent[];
      expected.push(own.length > 0 ? sumOf(own) : undefined, offsetsOf(own));
      found.push(await store.stream(this.#key, clientMsgNo));
      found.push(own.map((one) => one.stream?.textOffset));
    }
    t.match(found, expected, this.name);
  }

  #ask(): Promise<string> {
    switch (this.call) {
      case "start":
        return this.#post("start");
      case "forced start":
        return this.#post("start", { force: true });
      case "start by bob":
        return this.#post("start", this.#byBob());
      case "content":
        return this.#post("content");
      case "known content":
        return this.#post("content", { eventId: "e1" });
      case "tool":
        return this.#post("tool");
      case "known tool":
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

  /** The other user of a personal channel, and of a group any other. */
  #byBob(): Partial<StreamDraft> {
    const { id, type } = this.#channel;
    if (type === 2) return { fromUid: "bob" };
    return { fromUid: id, channel: { id: "alice", type } };
  }

  async #post(kind: string, over: Partial<StreamDraft> = {}): Promise<string> {
    const { store } = this.#fixture;
    const about = { channel: this.#channel, ...over };
    return said(await store.streamEvent(eventOf(TYPES[kind] ?? "", kind, about)));
  }

  async #cancel(): Promise<string> {
    return said(await this.#fixture.store.cancelStream(this.#key, "s"));
  }

  async #message(): Promise<string> {
    const draft = draftOf({ channel: this.#channel, clientMsgNo: "s" });
    const { duplicate } = await this.#fixture.store.append(draft);
    return duplicate ? "retry" : "new";
  }

  /** Events and seqs of messages of the channel, in order. */
  #events(): readonly (ChannelEvent | number)[] {
    return this.#fixture.events.flatMap((one): (ChannelEvent | number)[] => {
      if (one.kind === "event" && one.event.key === this.#key) return [one.event];
      if (one.kind !== "message" || one.message.key !== this.#key) return [];
      return one.message.messageSeq > 0 ? [one.message.messageSeq] : [];
    });
  }
}

function allCells(fixture: StoreFixture, type: ChannelRef["type"]): readonly Cell[] {
  return Object.entries(STREAM_CASES).flatMap(([before, calls]) =>
    Object.entries(calls).map(
      ([call, expected]) =>
        new Cell(fixture, type, [before as Precondition, call as StreamCall, expected]),
    ),
  );
}

const said = ({ verdict, state }: StreamResult) => `${verdict} ${state ?? "-"}`;

function worded(event: ChannelEvent | number): string {
  if (typeof event === "number") return "message";
  const { clientMsgNo, type, stream } = event;
  const kind = Object.keys(TYPES).find((one) => TYPES[one] === type);
  return `${clientMsgNo} ${stream?.index} ${kind} ${stream?.state}`;
}

/** Units of text before each. */
function offsetsOf(events: readonly ChannelEvent[]): readonly number[] {
  let units = 0;
  return events.map(({ type, data }) => {
    const before = units;
    if (type === STREAM_CONTENT) units += data.length;
    return before;
  });
}

/** What the stream of these events is. */
function sumOf(events: readonly ChannelEvent[]) {
  const of = (type: string) => events.filter((one) => one.type === type);
  const [first, last] = [events[0], events.at(-1)];
  return {
    ...{ clientMsgNo: first?.clientMsgNo, fromUid: first?.fromUid },
    ...{ key: first?.key, channel: first?.channel, startData: first?.data },
    messageSeq: first?.stream?.messageSeq,
    state: last?.stream?.state,
    nextIndex: events.length,
    text: of(STREAM_CONTENT)
      .map((one) => one.data)
      .join(""),
    endData: of(STREAM_END)[0]?.data,
    notes: of(TOOL).map(({ eventId, data, type, timestampMs, stream }) => ({
      ...{ eventId, data, type, timestampMs },
      ...{ index: stream?.index, textOffset: stream?.textOffset },
    })),
  };
}

export async function streamEnds(t: Test, createFixture: FixtureFactory): Promise<void> {
  retained(t, createFixture);
  t.test("streams without an event for too long end as interrupted", async (t) => {
    const fixture = await createFixture(t);
    const { start, content } = producer(fixture);
    const inH = { channel: { id: "h", type: 2 } } as const;
    await start();
    await start("", inH);
    await content("kept");
    fixture.nowMs += 1000;
    await content("more", inH);
    const startedMs = fixture.nowMs - 1000;
    t.equal(await fixture.store.interruptStreams(startedMs), 0);
    t.equal(await fixture.store.interruptStreams(startedMs + 1), 1);
    t.equal(await fixture.store.interruptStreams(startedMs + 1), 0);
    t.match(await snapshotOf(fixture), { state: "interrupted", text: "kept" });
    t.match(channelEventsOf(fixture).at(-1), {
      ...{ type: STREAM_END, data: "" },
      stream: { state: "interrupted", index: 2 },
    });
    t.same(await content("late"), streamResult("closed", "interrupted"));
    t.match(await snapshotOf(fixture, "s", "2:h"), { state: "active" });
    t.same(await start("", { clientMsgNo: "s2" }), ACTIVE);
  });

  t.test("after a restart an active stream goes on and has its time anew", async (t) => {
    const fixture = await createFixture(t);
    const { start, content, end } = producer(fixture);
    await start();
    await content("before ");
    fixture.nowMs += 60_000;
    await fixture.reopen();
    t.equal(await fixture.store.interruptStreams(fixture.nowMs - 1), 0);
    t.equal((await fixture.store.activeStream(KEY))?.text, "before ");
    t.same(await start("", { clientMsgNo: "s2" }), streamResult("running", undefined));
    t.same(await start(), ACTIVE, "its start again is a retry");
    await content("after");
    t.match(channelEventsOf(fixture).at(-1), { stream: { index: 2, textOffset: 7 } });
    await fixture.reopen();
    t.same(await end(), streamResult("done", "closed"));
    t.match(await snapshotOf(fixture), { text: "before after", nextIndex: 4 });
  });
}

function retained(t: Test, createFixture: FixtureFactory): void {
  t.test("past retention a stream is shown until it ends", async (t) => {
    const fixture = await createFixture(t);
    fixture.retentionS = 60;
    await fixture.reopen();
    const { start, end } = producer(fixture);
    await start();
    const inH = { channel: { id: "h", type: 2 } } as const;
    await start("", inH);
    const shown = async (key = KEY) => [
      (await fixture.store.stream(key, "s"))?.state,
      await fixture.store.streamTextOffset(key, "s", 0),
    ];
    await end();
    fixture.nowMs += 59_999;
    t.same(await shown(), ["closed", 0]);
    fixture.nowMs += 1;
    t.same(await shown(), [undefined, undefined]);
    t.same(await shown("2:h"), ["active", 0]);
    await end("", inH);
    t.same(await shown("2:h"), [undefined, undefined]);
  });
}

export async function streamRetries(t: Test, createFixture: FixtureFactory): Promise<void> {
  const id = (eventId: string) => ({ eventId });

  t.test("the same id in another stream is another event", async (t) => {
    const fixture = await createFixture(t);
    const { start, content, end } = producer(fixture);
    await start();
    await content("one", id("e"));
    await end();
    const other = { clientMsgNo: "s2" };
    await start("", other);
    await content("two", { ...other, ...id("e") });
    t.equal((await snapshotOf(fixture, "s2")).text, "two");
  });

  t.test("events without an id are never retries and get ids in order", async (t) => {
    const fixture = await createFixture(t);
    const { start, content } = producer(fixture);
    await start();
    for (let i = 0; i < 12; i++) await content("x");
    const ids = channelEventsOf(fixture).map((e) => Number(e.eventId));
    t.same(
      ids,
      [...new Set(ids)].sort((a, b) => a - b),
    );
    t.equal(ids.length, 13);
  });

  t.test("calls of one turn are decided in their order, each once", async (t) => {
    const fixture = await createFixture(t);
    const { start, content, end } = producer(fixture);
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
  });
}
