// Contract of `EventStore` in `broker/event-ports.ts`, which every driver runs. Each test has an
// empty store of its own.

import type { Test } from "tap";
import {
  EVENT_PARTITIONS,
  EVENTS_START,
  type EventPosition,
  type EventRow,
  type EventStore,
} from "../../src/broker/event-ports.ts";
import { bucketOf } from "../../src/broker/log-frame.ts";
import { draftOf, type FixtureFactory } from "./store-fixture.ts";

const KEY = "2:g";
const PARTITION = bucketOf(KEY);

/** Returns all events of the partition of the group `g`, read in pages of `limit`. */
async function eventsOf(store: EventStore, limit = 1000): Promise<EventRow[]> {
  const events: EventRow[] = [];
  for (let after: EventPosition = EVENTS_START; ; ) {
    const { rows } = await store.readEvents(PARTITION, after, limit);
    events.push(...rows);
    const last = rows.at(-1);
    if (last === undefined) return events;
    after = last;
  }
}

export async function events(t: Test, createFixture: FixtureFactory): Promise<void> {
  t.test("a new store writes no events", async (t) => {
    const { store } = await createFixture(t);
    t.equal(await store.feedSwitch(), undefined);
    await store.append(draftOf());
    t.strictSame(await store.newestEvents(), new Array(EVENT_PARTITIONS).fill(EVENTS_START));
    t.strictSame(await eventsOf(store), []);
  });

  t.test("each stored message has one event, in the order of the channel's seqs", async (t) => {
    const fixture = await createFixture(t);
    await fixture.store.switchFeed(true);
    const sent = await Promise.all(
      ["a", "b", "c", "a"].map((clientMsgNo) => fixture.store.append(draftOf({ clientMsgNo }))),
    );
    const header = { noPersist: true, redDot: false };
    await fixture.store.append(draftOf({ header, clientMsgNo: "unstored" }));
    const other = draftOf({ channel: { id: "bob", type: 1 } });
    await fixture.store.append(other);
    const expected = sent.slice(0, 3).map(({ messageId, messageSeq }, at) => ({
      ...{ number: at + 1, id: messageId, type: "message.stored" },
      ...{ key: KEY, messageSeq },
    }));
    const rows = await eventsOf(fixture.store, 2);
    t.match(rows, expected);
    t.equal(rows.length, 3);
    const [personal] = (await fixture.store.readEvents(bucketOf(other.key), EVENTS_START, 1)).rows;
    t.match(personal, { key: "1:alice@bob", messageSeq: 1 });
    await fixture.store.sweep();
    t.strictSame(await eventsOf(fixture.store, 2), rows, "the same after a sweep");
    await fixture.reopen();
    t.equal(await fixture.store.feedSwitch(), true);
    t.strictSame(await eventsOf(fixture.store), rows, "the same after a restart");
    await fixture.store.append(draftOf());
    const newest = (await fixture.store.newestEvents())[PARTITION];
    t.match(await fixture.store.readEvents(PARTITION, rows[2] ?? EVENTS_START, 10), {
      ...{ rows: [newest ?? {}], lost: 0, loss: undefined },
    });
  });

  t.test("events are written while the feed is on", async (t) => {
    const { store } = await createFixture(t);
    await store.append(draftOf());
    await store.switchFeed(true);
    await store.append(draftOf());
    await store.switchFeed(false);
    await store.append(draftOf());
    t.equal(await store.feedSwitch(), false);
    await store.switchFeed(true);
    await store.append(draftOf());
    const rows = await eventsOf(store);
    t.strictSame(
      rows.map(({ number, messageSeq }) => [number, messageSeq]),
      [
        [1, 2],
        [2, 4],
      ],
    );
  });

  t.test("old events are removed, except those that are held", async (t) => {
    const fixture = await createFixture(t);
    const { store } = fixture;
    await store.switchFeed(true);
    for (let i = 0; i < 3; i++) {
      await store.append(draftOf());
      await store.sweep();
    }
    const rows = await eventsOf(store);
    const beforeMs = Number.MAX_SAFE_INTEGER;
    const held = new Array(EVENT_PARTITIONS).fill(EVENTS_START);
    t.equal(await store.trimEvents({ beforeMs, maxBytes: 1e9, held }), 0);
    held[PARTITION] = rows[1];
    t.equal(await store.trimEvents({ beforeMs, maxBytes: 1e9, held }), 2);
    t.strictSame(await eventsOf(store), rows.slice(2));
    t.match(await store.readEvents(PARTITION, EVENTS_START, 9), { lost: 2, loss: "expired" });
    t.match(await store.readEvents(PARTITION, rows[1] ?? EVENTS_START, 9), { lost: 0 });
    t.match((await store.oldestEvents())[PARTITION], { number: 2 });
    t.equal(await store.trimEvents({ beforeMs, maxBytes: 1e9, held: undefined }), 1);
    t.strictSame((await store.oldestEvents())[PARTITION], (await store.newestEvents())[PARTITION]);
    await store.append(draftOf());
    t.equal((await eventsOf(store))[0]?.number, 4, "numbers continue");
    await store.sweep();
    t.ok((await store.eventBytes()) > 0);
    t.equal(await store.trimEvents({ beforeMs: 0, maxBytes: 0, held: undefined }), 1);
  });

  t.test(
    "a reader whose events the store has lost continues after the last common one",
    async (t) => {
      const { store } = await createFixture(t);
      await store.switchFeed(true);
      for (let i = 0; i < 3; i++) await store.append(draftOf());
      const rows = await eventsOf(store);
      const [first, second] = rows;
      t.strictSame(
        await store.readEvents(PARTITION, { number: 9, id: second?.id ?? 0 }, 9),
        { rows: rows.slice(2), lost: 7, loss: "forked" },
        "the feed is shorter",
      );
      t.strictSame(
        await store.readEvents(PARTITION, { number: 3, id: (first?.id ?? 0) + 0.5 }, 9),
        { rows: rows.slice(1), lost: 2, loss: "forked" },
        "the event at the position has another id",
      );
    },
  );

  t.test("a reader that has no event in common with the store gets all events", async (t) => {
    const { store } = await createFixture(t);
    await store.switchFeed(true);
    await Promise.all([1, 2, 3, 4].map(() => store.append(draftOf())));
    const rows = await eventsOf(store);
    const id = (rows[0]?.id ?? 0) - 1;
    for (const number of [2, 3])
      t.strictSame(
        await store.readEvents(PARTITION, { number, id }, 9),
        { rows, lost: number, loss: "forked" },
        `position ${number}`,
      );
  });

  t.test("the position of a time precedes the first event of that time", async (t) => {
    const { store } = await createFixture(t);
    await store.switchFeed(true);
    for (let i = 0; i < 3; i++) {
      await store.append(draftOf());
      await new Promise((resolve) => setTimeout(resolve, 2));
    }
    const rows = await eventsOf(store);
    const times = rows.map(({ timestampMs }) => timestampMs);
    for (const [at, time] of times.entries()) {
      const position = (await store.eventsSince(time))[PARTITION];
      t.equal(position?.number, times.indexOf(time), `event ${at}`);
    }
    t.equal((await store.eventsSince(Number.MAX_SAFE_INTEGER))[PARTITION]?.number, 3);
  });

  t.test("a listener is called after an event was written", async (t) => {
    const { store } = await createFixture(t);
    await store.switchFeed(true);
    const heard = new Promise<void>((resolve) => {
      const end = store.onEvents((partitions) => {
        if (!partitions.includes(PARTITION)) return;
        end();
        resolve();
      });
    });
    await store.append(draftOf());
    await heard;
  });
}
