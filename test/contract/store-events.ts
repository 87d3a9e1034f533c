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
import {
  draftOf,
  type FixtureFactory,
  group,
  PERMANENT,
  person,
  TEMPORARY,
} from "./store-fixture.ts";
import { producer } from "./store-stream-fixture.ts";

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
  t.test(
    "a store writes no events to the feed before the feed is turned on for the first time",
    async (t) => {
      const { store } = await createFixture(t);
      t.equal(await store.feedSwitch(), undefined);
      await store.append(draftOf());
      t.strictSame(await store.newestEvents(), new Array(EVENT_PARTITIONS).fill(EVENTS_START));
      t.strictSame(await eventsOf(store), []);
    },
  );

  t.test("each stored message is in the event feed once, in the order of the seqs", async (t) => {
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
    t.strictSame(await eventsOf(fixture.store, 2), rows, "the events are the same after a sweep");
    await fixture.reopen();
    t.equal(await fixture.store.feedSwitch(), true);
    t.strictSame(await eventsOf(fixture.store), rows, "the events are the same after a restart");
    await fixture.store.append(draftOf());
    const newest = (await fixture.store.newestEvents())[PARTITION];
    t.match(await fixture.store.readEvents(PARTITION, rows[2] ?? EVENTS_START, 10), {
      ...{ rows: [newest ?? {}], lost: 0, loss: undefined },
    });
  });

  t.test("events are written only while the feed is on", async (t) => {
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

  t.test("old events are removed, except events that a reader still needs", async (t) => {
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
    t.equal((await eventsOf(store))[0]?.number, 4, "event numbers continue");
    await store.sweep();
    t.ok((await store.eventBytes()) > 0);
    t.equal(await store.trimEvents({ beforeMs: 0, maxBytes: 0, held: undefined }), 1);
  });

  t.test(
    "a reader whose events the store has lost continues after the last event that the reader and the store have in common",
    async (t) => {
      const { store } = await createFixture(t);
      await store.switchFeed(true);
      for (let i = 0; i < 3; i++) await store.append(draftOf());
      const rows = await eventsOf(store);
      const [first, second] = rows;
      t.strictSame(
        await store.readEvents(PARTITION, { number: 9, id: second?.id ?? 0 }, 9),
        { rows: rows.slice(2), lost: 7, loss: "forked" },
        "the feed is shorter than the reader's position",
      );
      t.strictSame(
        await store.readEvents(PARTITION, { number: 3, id: (first?.id ?? 0) + 0.5 }, 9),
        { rows: rows.slice(1), lost: 2, loss: "forked" },
        "the event at the position has a different id",
      );
    },
  );

  t.test("a reader that has no event in common with the store receives all events", async (t) => {
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

  t.test(
    "`eventsSince` returns the position before the first event at or after the given time",
    async (t) => {
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
    },
  );

  t.test("a listener is called after an event was written", async (t) => {
    const { store } = await createFixture(t);
    await store.switchFeed(true);
    const called = new Promise<void>((resolve) => {
      const end = store.onEvents((partitions) => {
        if (!partitions.includes(PARTITION)) return;
        end();
        resolve();
      });
    });
    await store.append(draftOf());
    await called;
  });

  t.test(
    "changes to a channel and its members are in the event feed, after earlier and before later messages of the channel",
    async (t) => {
      const fixture = await createFixture(t);
      const { store } = fixture;
      await store.createChannel(group("g"), ["early"]);
      await store.switchFeed(true);
      t.equal(await store.createChannel(group("g"), ["a"]), false);
      await store.addSubscribers(group("g"), ["a", "a", "b"], PERMANENT);
      await store.append(draftOf());
      await store.addSubscribers(group("g"), ["a", "b"], PERMANENT);
      await store.addSubscribers(group("g"), ["b", "c"], TEMPORARY);
      await store.removeSubscribers(group("g"), ["b"], "permanent");
      t.equal((await store.removeSubscribers(group("g"), ["b"], "permanent")).kind, "not_members");
      await store.addSubscribers(group("g"), ["a", "d"], { ...PERMANENT, reset: true });
      await store.updateChannel(group("g"), { ban: true, large: false });
      await store.updateChannel(group("g"), { ban: true });
      await store.updateChannel(group("g"), { disband: true, clientEvents: false });
      t.equal(await store.addSubscribers(group("g"), ["e"], PERMANENT), false);
      const rows = await eventsOf(store, 3);
      const members = (uids: string[], isTemporary = 0) => ({ uids, temp_subscriber: isTemporary });
      t.strictSame(
        rows.map(({ type, messageSeq, fields }) => [type, messageSeq, fields]),
        [
          ["channel.members_added", 0, members(["a", "b"])],
          ["message.stored", 1, undefined],
          ["channel.members_added", 0, members(["b", "c"], 1)],
          ["channel.members_removed", 0, members(["b"])],
          ["channel.members_removed", 0, members(["early"])],
          ["channel.members_added", 0, members(["d"])],
          ["channel.updated", 0, { ban: 1 }],
          ["channel.deleted", 0, { disband: 1, client_events: 0 }],
        ],
      );
      t.ok(rows.every(({ key }) => key === KEY));
      await fixture.store.sweep();
      await fixture.reopen();
      t.strictSame(await eventsOf(fixture.store), rows, "the events are the same after a restart");
    },
  );

  t.test(
    "a change to many subscribers is written as events of at most 500 subscribers each",
    async (t) => {
      const { store } = await createFixture(t);
      await store.switchFeed(true);
      const uids = Array.from({ length: 1001 }, (_, at) => `u${at}`);
      const info = { ...group("g"), sendBan: true };
      await store.createChannel(info, uids);
      await store.createChannel(person("p"), []);
      const [created, ...added] = await eventsOf(store);
      t.match(created, {
        type: "channel.created",
        fields: {
          ...{ ban: 0, disband: 0, send_ban: 1, allow_stranger: 0, large: 0, client_events: 1 },
        },
      });
      const pages = added.map(({ fields }) => fields?.uids as string[]);
      t.same(pages.map(({ length }) => length).sort(), [1, 500, 500]);
      t.same(new Set(pages.flat()), new Set(uids));
      const [personal] = (await store.readEvents(bucketOf("1:p"), EVENTS_START, 9)).rows;
      t.match(personal, { type: "channel.created", key: "1:p" });
      await store.addSubscribers(group("g"), [], { ...PERMANENT, reset: true });
      const removed = (await eventsOf(store)).slice(4);
      t.equal(removed.length, 3);
      t.ok(removed.every(({ type }) => type === "channel.members_removed"));
    },
  );

  t.test(
    "the end of a stream is in the event feed, after earlier and before later messages of the channel",
    async (t) => {
      const fixture = await createFixture(t);
      await fixture.store.switchFeed(true);
      const { start, content, end } = producer(fixture);
      await start();
      await content("hello");
      await end();
      await end();
      const second = { clientMsgNo: 's"2' };
      await start("", second);
      await start("", { clientMsgNo: "s3", force: true });
      await fixture.store.cancelStream(KEY, "s3");
      await fixture.store.append(draftOf());
      const rows = await eventsOf(fixture.store);
      const ended = (clientMsgNo: string, state: string) => ({ client_msg_no: clientMsgNo, state });
      t.strictSame(
        rows.map(({ type, messageSeq, fields }) => [type, messageSeq, fields]),
        [
          ["message.stored", 1, undefined],
          ["stream.ended", 1, ended("s", "closed")],
          ["message.stored", 2, undefined],
          ["stream.ended", 2, ended(second.clientMsgNo, "cancelled")],
          ["message.stored", 3, undefined],
          ["stream.ended", 3, ended("s3", "cancelled")],
          ["message.stored", 4, undefined],
        ],
      );
      await fixture.store.sweep();
      await fixture.reopen();
      t.strictSame(await eventsOf(fixture.store), rows, "the events are the same after a restart");
    },
  );
}
