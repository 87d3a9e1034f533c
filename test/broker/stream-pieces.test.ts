// The events that are built from a snapshot, for readers at any position.

import { STREAM_CONTENT, STREAM_START } from "../../src/broker/model.ts";
import { cursorAfter, eventsFrom, restOf } from "../../src/broker/stream-pieces.ts";
import { matchObject } from "../support/match-object.ts";
import { Random } from "../support/random.ts";
import { t } from "../support/suite.ts";
import {
  ModelReader,
  ModelStream,
  type PlacedEvent,
  randomStream,
  STARTED_MS,
} from "./stream-model.ts";

const SEED = Number(process.env.SEED ?? 20_260_101);

/** Returns a reader that started at index `from` and got the events up to `count`. */
function read(stream: ModelStream, from: number, count: number): ModelReader {
  const snapshot = stream.snapshot(count);
  const textOffset = stream.offsetOf(from);
  const reader = new ModelReader(from, stream.text.slice(0, textOffset));
  const events = eventsFrom(snapshot, { index: from, textOffset });
  for (const event of events) reader.apply(event);
  return reader;
}

t.test(
  "readers at any position of random streams get the same text, tool calls, ends and indexes",
  async (t) => {
    const random = new Random(SEED);
    let cuts = 0;
    for (let round = 0; round < 150; round++) {
      const stream = randomStream(random, 30);
      const total = stream.events.length;
      for (let count = 0; count <= total; count++) {
        const from = random.below(count + 1);
        const snapshot = stream.snapshot(count);
        const reader = read(stream, from, count);
        const expectedNotes = snapshot.notes.filter(({ index }) => index >= from);
        const differences = [
          reader.text === snapshot.text || "text",
          reader.index === Math.max(from, snapshot.nextIndex) || "index",
          reader.state === (from < count ? snapshot.state : "active") || "state",
          from > 0 || count === 0 || reader.startData === snapshot.startData,
          from === count || reader.endData === snapshot.endData || "end data",
          JSON.stringify(reader.notes.map(noteOf)) === JSON.stringify(expectedNotes),
        ].filter((holds) => holds !== true);
        if (differences.length > 0)
          t.fail(`seed ${SEED} round ${round} ${from}..${count}`, { differences });
        cuts += 1;
      }
    }
    t.ok(cuts > 2000, `${cuts} positions were compared with seed ${SEED}`);
  },
);

function noteOf(event: ModelReader["notes"][number]) {
  const { eventId, type, data, timestampMs, stream } = event;
  const { index, textOffset } = stream ?? { index: -1, textOffset: -1 };
  return { eventId, type, data, timestampMs, index, textOffset };
}

t.test("consecutive content events are merged into one event", async (t) => {
  const random = new Random(SEED + 1);
  for (let round = 0; round < 100; round++) {
    const stream = randomStream(random, 40);
    const types = eventsFrom(stream.snapshot(), { index: 0, textOffset: 0 });
    const neighbours = types.filter(
      ({ type }, at) => type === STREAM_CONTENT && types[at + 1]?.type === type,
    );
    t.equal(neighbours.length, 0);
  }
});

t.test("a reader that has all events gets no further events", async (t) => {
  const stream = new ModelStream();
  t.same(eventsFrom(stream.snapshot(0), { index: 0, textOffset: 0 }), []);
  stream.add(STREAM_START, "meta");
  stream.add(STREAM_CONTENT, "text");
  t.same(eventsFrom(stream.snapshot(), { index: 2, textOffset: 4 }), []);
  const random = new Random(SEED);
  stream.end(random);
  t.same(eventsFrom(stream.snapshot(), { index: 3, textOffset: 4 }), []);
});

t.test("empty content events are merged into one event that covers their indexes", async (t) => {
  const stream = new ModelStream();
  stream.add(STREAM_START, "");
  stream.add(STREAM_CONTENT, "");
  stream.add(STREAM_CONTENT, "");
  const [event, ...more] = eventsFrom(stream.snapshot(), {
    index: 1,
    textOffset: 0,
  });
  t.same(more, []);
  matchObject(t, event, { data: "", stream: { index: 1, nextIndex: 3 } });
});

t.test(
  "events built from a snapshot have the stream's channel, sender, clientMsgNo and start time",
  async (t) => {
    const stream = new ModelStream(42);
    stream.add(STREAM_START, "meta");
    const note = stream.add("___ToolCallStart", "search");
    const [start, tool] = eventsFrom(stream.snapshot(), {
      index: 0,
      textOffset: 0,
    });
    matchObject(t, start, {
      ...{ key: "2:g", channel: { id: "g", type: 2 }, fromUid: "bot" },
      ...{ clientMsgNo: "answer", type: STREAM_START, data: "meta" },
      timestampMs: STARTED_MS,
      stream: { messageSeq: 42, index: 0, nextIndex: 1, textOffset: 0 },
    });
    t.same(tool, note, "a tool call is returned unchanged");
  },
);

t.test(
  "the last event built from the snapshot of a truncated stream is marked as truncated",
  (t) => {
    const stream = new ModelStream();
    stream.add(STREAM_START, "");
    stream.add(STREAM_CONTENT, "a");
    stream.add("___ToolCallStart", "{}");
    const events = eventsFrom(
      { ...stream.snapshot(3), nextIndex: 9, truncated: true },
      { index: 0, textOffset: 0 },
    );
    t.same(
      events.map(({ type, stream }) => [type, stream?.index, stream?.truncated]),
      [
        ...[
          [STREAM_START, 0, undefined],
          [STREAM_CONTENT, 1, undefined],
        ],
        ["___ToolCallStart", 2, true],
      ],
    );
    t.end();
  },
);

t.test("the cursor after a snapshot's last event is at the end of the snapshot", async (t) => {
  const random = new Random(SEED + 2);
  for (let round = 0; round < 50; round++) {
    const stream = randomStream(random, 30);
    const total = stream.events.length;
    let cursor = { index: 0, textOffset: 0 };
    while (cursor.index < total) {
      const upTo = cursor.index + 1 + random.below(total - cursor.index);
      for (const event of eventsFrom(stream.snapshot(upTo), cursor))
        cursor = cursorAfter(event, (event as PlacedEvent).stream);
      t.equal(cursor.index, upTo);
      t.equal(cursor.textOffset, stream.offsetOf(upTo));
    }
  }
});

t.test("a reader that has a part of merged content gets the remaining part", async (t) => {
  const random = new Random(SEED + 3);
  for (let round = 0; round < 50; round++) {
    const stream = randomStream(random, 30);
    const total = stream.events.length;
    const from = random.below(total);
    const cursor = { index: from, textOffset: stream.offsetOf(from) };
    const events = eventsFrom(stream.snapshot(total), cursor);
    const readerIndex = from + random.below(total - from + 1);
    const reader = { index: readerIndex, textOffset: stream.offsetOf(readerIndex) };
    const remaining = events.flatMap(
      (event) => restOf(event, (event as PlacedEvent).stream, reader) ?? [],
    );
    t.same(remaining, eventsFrom(stream.snapshot(total), reader));
  }
});
