// Contract of `PushStore` in `broker/push-ports.ts`, which every driver runs. Each test has an
// empty store of its own.

import type { Test } from "tap";
import { EVENTS_START, type EventDraft } from "../../src/broker/event-ports.ts";
import { bucketOf } from "../../src/broker/log-frame.ts";
import { markUnread, readUpTo, send, withGroup } from "./conversation-fixture.ts";
import { draftOf, type FixtureFactory, group, PERMANENT } from "./store-fixture.ts";

const KEY = "2:g";
const PARTITION = bucketOf(KEY);
const LEASE = { name: "push", token: 2 };

const unreached = (uid: string, messageSeq = 1): EventDraft => ({
  ...({ type: "message.unreached", key: KEY, messageSeq } as const),
  fields: { uids: [uid, 'odd "ü'], page: 1, pages: 1, event: [1, 4_398_046_511_105] },
});

export async function push(t: Test, createFixture: FixtureFactory): Promise<void> {
  t.test("readSeqs returns the same read positions as the members' conversations", async (t) => {
    const fixture = await withGroup(createFixture, t);
    const { store } = fixture;
    await send(fixture, 3);
    await store.addSubscribers(group("g"), ["late"], PERMANENT);
    await send(fixture, 2);
    await store.append(draftOf({ fromUid: "carol" }));
    await store.changeConversation("bob", group("g"), readUpTo(2));
    const uids = ["alice", "bob", "carol", "late"];
    const expected = async (key: string) =>
      Promise.all(
        uids.map(async (uid) => (await fixture.store.conversation(uid, group(key)))?.readSeq ?? 0),
      );
    t.strictSame(await store.readSeqs(KEY, uids), await expected("g"));
    await store.changeConversation("late", group("g"), markUnread(3));
    t.strictSame(
      await store.readSeqs(KEY, uids),
      await expected("g"),
      "the read position was moved back",
    );
    await store.sweep();
    await fixture.reopen();
    t.strictSame(await fixture.store.readSeqs(KEY, uids), await expected("g"), "after a restart");
    const direct = draftOf({ channel: { id: "bob", type: 1 } });
    await fixture.store.append(direct);
    t.strictSame(
      await fixture.store.readSeqs(direct.key, ["alice", "bob"]),
      [1, 0],
      "a personal channel",
    );
    t.strictSame(await fixture.store.readSeqs(KEY, []), [], "no users");
  });

  t.test("acknowledgements of a message are collected until their time to live ends", async (t) => {
    const { store } = await createFixture(t);
    await store.addAcknowledged(
      [
        { key: KEY, messageSeq: 1, uids: ["bob", "carol"] },
        { key: "1:alice@bob", messageSeq: 2, uids: ["bob"] },
      ],
      60_000,
    );
    await store.addAcknowledged([{ key: KEY, messageSeq: 1, uids: ["alice"] }], 60_000);
    const [first, second] = await store.acknowledgedBy(KEY, [1, 2]);
    t.strictSame([...(first ?? [])].sort(), ["alice", "bob", "carol"]);
    t.strictSame(
      [...(second ?? [])],
      [],
      "only a message of another channel with this number was acknowledged",
    );
    await store.addAcknowledged([{ key: KEY, messageSeq: 3, uids: ["bob"] }], 1);
    await new Promise((resolve) => setTimeout(resolve, 20));
    await store.addAcknowledged([{ key: KEY, messageSeq: 4, uids: ["bob"] }], 60_000);
    const [old] = await store.acknowledgedBy(KEY, [3]);
    t.strictSame([...(old ?? [])], [], "the time to live has ended");
  });

  t.test("the owner of a replaced lease cannot move the push cursor or write events", async (t) => {
    const { store } = await createFixture(t);
    await store.switchFeed(true);
    const from = (await store.claimPushCursor(PARTITION, LEASE)) ?? EVENTS_START;
    const newer = { ...LEASE, token: 3 };
    t.strictSame(await store.claimPushCursor(PARTITION, newer), from);
    t.equal(await store.claimPushCursor(PARTITION, LEASE), undefined);
    const move = { from, to: { number: 9, id: 9 }, events: [unreached("bob")] };
    t.notOk(await store.movePushCursor(PARTITION, { ...move, lease: LEASE }));
    t.strictSame(
      (await store.readEvents(PARTITION, EVENTS_START, 9)).rows,
      [],
      "the move has written no events",
    );
    t.ok(await store.movePushCursor(PARTITION, { ...move, lease: newer }));
  });

  t.test(
    "equal concurrent moves of a push cursor move the cursor and write their events once",
    async (t) => {
      const fixture = await createFixture(t);
      const { store } = fixture;
      await store.switchFeed(true);
      await store.append(draftOf());
      const start = await store.claimPushCursor(PARTITION, LEASE);
      const newest = (await store.newestEvents())[PARTITION];
      t.strictSame(start, newest, "a new cursor starts after the newest event");
      const { messageId } = await store.append(draftOf({ clientMsgNo: "second" }));
      const to = { number: 2, id: messageId };
      const from = start ?? EVENTS_START;
      const move = { lease: LEASE, from, to, events: [unreached("bob"), unreached("carol")] };
      const moved = await Promise.all([1, 2, 3].map(() => store.movePushCursor(PARTITION, move)));
      t.equal(moved.filter(Boolean).length, 1, "exactly one of several equal moves is made");
      const { rows } = await store.readEvents(PARTITION, to, 10);
      t.match(rows, [
        {
          number: 3,
          type: "message.unreached",
          key: KEY,
          messageSeq: 1,
          fields: unreached("bob").fields,
        },
        { number: 4, fields: unreached("carol").fields },
      ]);
      t.equal(rows.length, 2, "the events of the move are written once");
      t.ok((rows[0]?.id ?? 0) > messageId, "each event has an id of its own");
      await fixture.reopen();
      t.strictSame(await fixture.store.claimPushCursor(PARTITION, LEASE), to, "after a restart");
      t.strictSame((await fixture.store.readEvents(PARTITION, to, 10)).rows, rows);
      await fixture.store.switchFeed(false);
      const last = { number: 4, id: rows[1]?.id ?? 0 };
      t.ok(await fixture.store.movePushCursor(PARTITION, { ...move, from: to, to: last }));
      await fixture.store.switchFeed(true);
      t.strictSame(
        (await fixture.store.readEvents(PARTITION, to, 10)).rows,
        rows,
        "no events are written while the feed is off",
      );
    },
  );
}
