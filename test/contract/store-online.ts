// Contract of `OnlineStore` and `EventDemandStore` in `broker/`, which every driver runs: the
// events of users, of sessions and of commands. Each test has an empty store of its own.

import type { Test } from "tap";
import { ON_DEMAND_TYPES } from "../../src/broker/event-demand-ports.ts";
import { EVENTS_START, type EventPosition, type EventRow } from "../../src/broker/event-ports.ts";
import { bucketOf } from "../../src/broker/log-frame.ts";
import { type DeviceFlag, type SessionRecord, userTopic } from "../../src/broker/model.ts";
import type { Store } from "../../src/broker/ports.ts";
import type { FixtureFactory } from "./store-fixture.ts";
import { commandOf, SHARE } from "./store-inbox.ts";

const NODE = "n1:alive";
const EVERY_TIME = Number.MAX_SAFE_INTEGER;
const ALL_USERS = { limit: 64_000, turnMs: 1, leftMs: EVERY_TIME, checkedMs: EVERY_TIME };

const sessionOf = (sessionId: string, flag: DeviceFlag = 0): SessionRecord => ({
  ...{ sessionId, nodeId: "n1", uid: "ann", flag },
  ...{ level: 0, deviceId: `device ${sessionId}`, tokenTag: "" },
});

/** Returns the events of a key. */
async function eventsOf(store: Store, key: string): Promise<EventRow[]> {
  const events: EventRow[] = [];
  for (let after: EventPosition = EVENTS_START; ; ) {
    const { rows } = await store.readEvents(bucketOf(key), after, 2);
    events.push(...rows.filter((row) => row.key === key));
    const last = rows.at(-1);
    if (last === undefined) return events;
    after = last;
  }
}

const typesOf = async (store: Store) =>
  (await eventsOf(store, userTopic("ann"))).map(({ type }) => type);

export async function online(t: Test, createFixture: FixtureFactory): Promise<void> {
  t.test("a user goes offline when the delay after the last session's end is over", async (t) => {
    const { store } = await createFixture(t);
    await store.login(sessionOf("s0"), NODE);
    await store.switchFeed(true);
    await store.login(sessionOf("s1"), NODE);
    await store.login(sessionOf("s2", 1), NODE);
    t.strictSame(await typesOf(store), ["user.online"], "only the first login has an event");
    t.equal(await store.endOnline("ann", [], EVERY_TIME), false, "the user has sessions");
    for (const id of ["s0", "s1", "s2"]) await store.removeSession(sessionOf(id));
    t.equal(await store.endOnline("ann", [], 0), false, "the sessions have left too recently");
    t.equal(await store.endOnline("ann", [], EVERY_TIME), true);
    t.equal(await store.endOnline("ann", [], EVERY_TIME), false, "a repeated call has no effect");
    const [, offline] = await eventsOf(store, userTopic("ann"));
    t.match(offline, { type: "user.offline", fields: { device_flag: 1 }, messageSeq: 0 });
    await store.login(sessionOf("s3"), NODE);
    t.strictSame(await typesOf(store), ["user.online", "user.offline", "user.online"]);
  });

  t.test("the feed reports each changed token and each kicked or logged-out session", async (t) => {
    const { store } = await createFixture(t);
    await store.switchFeed(true);
    const device = { uid: "ann", flag: 0, level: 1, tokenHash: new Uint8Array([1]) } as const;
    await store.putDevice(device);
    await store.putDevice(device);
    await store.putDevice({ ...device, level: 0 });
    const main = (id: string) => ({ ...sessionOf(id), level: 1 }) as const;
    await store.login(main("s1"), NODE);
    await store.login(main("s2"), NODE);
    await store.login({ ...main("s3"), deviceId: "device s2" }, NODE);
    await store.endSession(main("s3"), "logged_out");
    await store.login(main("s4"), NODE);
    await store.removeSession(main("s4"), "slow_reader");
    await store.putDevice({ ...device, tokenHash: new Uint8Array() });
    const rows = await eventsOf(store, userTopic("ann"));
    const kicked = (id: string, reason: string) => [
      "session.kicked",
      { device_flag: 0, device_id: `device ${id}`, reason },
    ];
    const changed = (level: number) => [
      "user.token_changed",
      { device_flag: 0, device_level: level },
    ];
    t.strictSame(
      rows
        .filter(({ type }) => !type.startsWith("user.o"))
        .map(({ type, fields }) => [type, fields]),
      [...[changed(1), changed(0), kicked("s1", "kicked"), kicked("s2", "logged_out")], changed(1)],
      "no `session.kicked` for a session that the same device replaces or whose client reads slowly",
    );
  });

  t.test("endOnline keeps a session that its node confirmed under a new incarnation", async (t) => {
    const { store } = await createFixture(t);
    await store.switchFeed(true);
    const login = await store.login(sessionOf("s1"), "n1:frozen");
    if (login.kind !== "entered") throw new Error(login.kind);
    await store.confirmSessions([login], NODE);
    const judged = [{ sessionId: "s1", incarnation: "n1:frozen" }];
    t.equal(await store.endOnline("ann", judged, EVERY_TIME), false);
    const [sessions] = await store.sessionsOf(["ann"]);
    t.match(sessions, [{ session: { sessionId: "s1" } }]);
    t.equal(await store.endOnline("ann", [], EVERY_TIME), false, "the user is still online");
    t.strictSame(await typesOf(store), ["user.online"]);
  });

  t.test("takeOnline returns users without sessions, even if their check is not due", async (t) => {
    const { store } = await createFixture(t);
    await store.switchFeed(true);
    await store.login(sessionOf("s1"), NODE);
    t.strictSame(await store.takeOnline({ ...ALL_USERS, checkedMs: 0 }), []);
    await store.removeSession(sessionOf("s1"));
    await new Promise((resolve) => setTimeout(resolve, 5)); // longer than `turnMs`
    t.strictSame(await store.takeOnline({ ...ALL_USERS, checkedMs: 0, leftMs: 0 }), []);
    await new Promise((resolve) => setTimeout(resolve, 5));
    t.strictSame(await store.takeOnline({ ...ALL_USERS, checkedMs: 0 }), ["ann"]);
  });

  t.test("takeOnline returns a user at most once after the user is back online", async (t) => {
    const { store } = await createFixture(t);
    await store.switchFeed(true);
    await store.login(sessionOf("s1"), NODE);
    await store.removeSession(sessionOf("s1"));
    await store.login(sessionOf("s2"), NODE);
    const takeLeft = () => store.takeOnline({ ...ALL_USERS, checkedMs: 0 });
    for (const uid of await takeLeft())
      t.equal(await store.endOnline(uid, [], EVERY_TIME), false, "the user has a session");
    await new Promise((resolve) => setTimeout(resolve, 5)); // longer than `turnMs`
    t.strictSame(await takeLeft(), [], "the user is not returned again");
  });

  t.test("no user.offline event is written while the feed is off", async (t) => {
    const { store } = await createFixture(t);
    await store.switchFeed(true);
    await store.login(sessionOf("s1"), NODE);
    await store.switchFeed(false);
    await store.removeSession(sessionOf("s1"));
    t.equal(await store.endOnline("ann", [], EVERY_TIME), false);
    await store.switchFeed(true);
    t.equal(
      await store.endOnline("ann", [], EVERY_TIME),
      false,
      "the first call only records that the user has left",
    );
    t.equal(await store.endOnline("ann", [], EVERY_TIME), true);
    t.strictSame(await typesOf(store), ["user.online", "user.offline"]);
  });

  t.test(
    "events of sessions and commands are written only while readers request these events",
    async (t) => {
      const { store } = await createFixture(t);
      await store.switchFeed(true);
      await store.login(sessionOf("s1"), NODE);
      await store.setDemand({ feed: true, session: true, command: false });
      await store.login(sessionOf("s2", 1), NODE);
      await store.login({ ...sessionOf("s3", 1), deviceId: "device s2" }, NODE);
      await store.removeSession(sessionOf("s1"));
      await store.endSession({ ...sessionOf("s3", 1), deviceId: "device s2" }, "logged_out");
      const [, ...rows] = await eventsOf(store, userTopic("ann"));
      const events = rows.filter(({ type }) => type !== "session.kicked");
      t.strictSame(
        events.map(({ type, fields }) => [
          ...[type, fields?.session_id, fields?.device_online_count, fields?.total_online_count],
          fields?.reason,
        ]),
        [
          ["session.opened", "s2", 1, 2, undefined],
          ["session.opened", "s3", 1, 2, undefined],
          ["session.closed", "s2", 1, 2, "replaced"],
          ["session.closed", "s1", 0, 1, undefined],
          ["session.closed", "s3", 0, 0, "logged_out"],
        ],
      );
      await store.appendCommand(commandOf());
      await store.setDemand({ feed: true, session: false, command: true });
      const command = commandOf({ clientMsgNo: "" });
      const { messageId } = await store.appendCommand(command);
      const payload = Buffer.from(command.payload).toString("base64");
      const [sent, ...others] = await eventsOf(store, command.key);
      t.strictSame(others, []);
      t.match(sent, {
        type: "command.sent",
        fields: { message_id: messageId, client_msg_no: `server-${messageId}`, payload },
      });
      t.match(sent?.fields?.header, { sync_once: 1 });
    },
  );

  t.test("commands that expire without an acknowledgement are reported in the feed", async (t) => {
    const fixture = await createFixture(t);
    const { store } = fixture;
    await store.switchFeed(true);
    const send = async (recipients: readonly string[], expireS = 0) =>
      (await store.appendCommand(commandOf({ recipients, expireS }))).messageId;
    const expired = async (uid: string) =>
      (await eventsOf(store, userTopic(uid))).map(({ type, fields }) => [type, fields]);
    const expiry = (...ids: readonly number[]) => ["command.expired", { command_ids: ids }];
    await send(["bob"]);
    const first = await send(["bob", "carol"], 10);
    const acknowledged = await send(["bob"], 10);
    t.equal(await store.acknowledgeCommands("bob", [3]), 1);
    fixture.nowMs += 9999;
    await store.sweep();
    t.strictSame(await expired("bob"), [], "nothing has expired");
    const later = await send(["bob"], 10);
    fixture.nowMs += 1;
    await store.sweep();
    await store.sweep();
    t.strictSame(
      await expired("bob"),
      [expiry(first)],
      "only commands without an acknowledgement have events",
    );
    t.strictSame(await expired("carol"), [expiry(first)], "each user has an event");
    t.not(acknowledged, later);
    fixture.nowMs += 10_000;
    t.equal(await store.acknowledgeCommands("bob", [4]), 0, "too late");
    await store.sweep();
    t.strictSame(await expired("bob"), [expiry(first), expiry(later)]);
    await fixture.reopen();
    await fixture.store.sweep();
    const rows = await eventsOf(fixture.store, userTopic("bob"));
    t.equal(rows.length, 2, "no event is repeated");
  });

  t.test(
    "an expired command is reported in the feed when a new command takes its place",
    async (t) => {
      const fixture = await createFixture(t);
      const { store } = fixture;
      await store.switchFeed(true);
      const send = async (expireS = 0) => {
        const command = commandOf({ fromUid: "eve", origin: "s1", expireS });
        return (await store.appendCommand(command)).messageId;
      };
      const ids = [await send(10), await send(10)];
      for (let i = ids.length; i < SHARE; i++) await send();
      fixture.nowMs += 10_000;
      await send();
      const expired = { type: "command.expired", fields: { command_ids: ids } };
      t.match(await eventsOf(store, userTopic("bob")), [expired]);
      await store.sweep();
      t.equal((await eventsOf(store, userTopic("bob"))).length, 1, "no event is repeated");
    },
  );

  t.test(
    "more than 500 commands that expire together are reported in several events",
    async (t) => {
      const fixture = await createFixture(t);
      const { store } = fixture;
      await store.switchFeed(true);
      const sends = Array.from({ length: 501 }, () =>
        store.appendCommand(commandOf({ expireS: 1 })),
      );
      const ids = (await Promise.all(sends)).map(({ messageId }) => messageId);
      fixture.nowMs += 1000;
      await store.sweep();
      const rows = await eventsOf(store, userTopic("bob"));
      const pages = rows.map(({ fields }) => fields?.command_ids as readonly number[]);
      t.ok(pages.length >= 2);
      t.ok(pages.every((page) => page.length <= 500));
      t.strictSame(pages.flat().toSorted(), ids.toSorted(), "each command is in one event");
    },
  );

  t.test("commands that expire while the feed is off are not reported", async (t) => {
    const fixture = await createFixture(t);
    const { store } = fixture;
    await store.switchFeed(true);
    await store.switchFeed(false);
    await store.appendCommand(commandOf({ expireS: 1 }));
    fixture.nowMs += 1000;
    await store.sweep();
    await store.appendCommand(commandOf({ expireS: 1 }));
    await store.acknowledgeCommands("bob", [1, 2]);
    t.strictSame(await eventsOf(store, userTopic("bob")), []);
  });

  t.test("takeOnline checks all users again after the clock was set back", async (t) => {
    const fixture = await createFixture(t);
    await fixture.store.switchFeed(true);
    await fixture.store.login(sessionOf("s1"), NODE);
    await fixture.reopen();
    const { store } = fixture;
    await store.setDemand({ feed: true, session: false, command: false });
    const takeAll = async () => {
      await new Promise((resolve) => setTimeout(resolve, 5)); // longer than `turnMs`
      return store.takeOnline({ ...ALL_USERS, leftMs: 0, checkedMs: fixture.nowMs + 1 });
    };
    t.strictSame(await takeAll(), ["ann"]);
    fixture.nowMs -= 3_600_000;
    t.strictSame(await takeAll(), ["ann"]);
  });

  t.test("takeOnline returns at most `limit` users per call", async (t) => {
    const { store } = await createFixture(t);
    await store.switchFeed(true);
    const users = Array.from({ length: 150 }, (_, at) => ({ ...sessionOf("s"), uid: `u${at}` }));
    await Promise.all(users.map((session) => store.login(session, NODE)));
    await Promise.all(users.map((session) => store.removeSession(session)));
    const leavers = new Set<string>();
    for (let turn = 0; turn < 20 && leavers.size < users.length; turn++) {
      await new Promise((resolve) => setTimeout(resolve, 2)); // longer than `turnMs`
      const uids = await store.takeOnline({ ...ALL_USERS, limit: 70, checkedMs: 0 });
      t.ok(uids.length <= 70);
      for (const uid of uids) {
        leavers.add(uid);
        await store.endOnline(uid, [], EVERY_TIME);
      }
    }
    t.equal(leavers.size, users.length, "every user is returned");
  });

  t.test(
    "a reader whose position is ahead of a restored store continues after the last common event, even if that event is written only on request",
    async (t) => {
      const { store } = await createFixture(t);
      await store.switchFeed(true);
      await store.setDemand({ feed: true, session: true, command: false });
      await store.login(sessionOf("s1"), NODE);
      const rows = await eventsOf(store, userTopic("ann"));
      t.strictSame(
        rows.map(({ type }) => type),
        ["user.online", "session.opened"],
      );
      const [, last = EVENTS_START] = rows;
      const ahead = { number: last.number + 3, id: last.id + 100_000 };
      t.match(
        await store.readEvents(bucketOf(userTopic("ann")), ahead, 9),
        { rows: [], lost: 3, loss: "forked" },
        "the last common event is `session.opened`",
      );
    },
  );

  t.test(
    "readerDemand returns, for each event type, the latest time until which any reader requests events of that type",
    async (t) => {
      const { store } = await createFixture(t);
      t.strictSame(await store.readerDemand(), { session: 0, command: 0 });
      await store.noteReader(["session"], 1000);
      await store.noteReader(["session", "command"], 2000);
      t.strictSame(await store.readerDemand(), { session: 2000, command: 2000 });
      await Promise.all([store.noteReader(["session"], 3000), store.noteReader(["command"], 4000)]);
      t.strictSame(
        await store.readerDemand(),
        { session: 3000, command: 4000 },
        "two calls at the same time are both stored",
      );
    },
  );

  t.test(
    "events that are written only on request are removed first if they exceed a quarter of the feed",
    async (t) => {
      const fixture = await createFixture(t);
      const { store } = fixture;
      await store.switchFeed(true);
      await store.setDemand({ feed: true, session: true, command: false });
      const key = userTopic("ann");
      for (let at = 0; at < 3; at++) {
        await store.login(sessionOf(`s${at}`), NODE);
        await store.sweep();
      }
      const before = await eventsOf(store, key);
      t.equal(before.length, 4, "one event is user.online, and three are session.opened");
      const bytes = await store.eventBytes();
      await store.trimEvents({ beforeMs: 0, maxBytes: bytes, held: undefined });
      const after = await eventsOf(store, key);
      t.ok(after.length < 4, "some events were removed");
      t.equal(after[0]?.type, "user.online", "events of other types are kept");
      const left = new Set(after.map(({ number }) => number));
      const removed = before.filter(({ number }) => !left.has(number));
      const names: readonly string[] = ON_DEMAND_TYPES;
      t.ok(removed.every(({ type }) => names.includes(type)));
      t.ok(
        after.slice(1).every(({ number }) => number > (removed.at(-1)?.number ?? 0)),
        "the oldest events are removed first",
      );
      await fixture.reopen();
      t.strictSame(
        await eventsOf(fixture.store, key),
        after,
        "the events are the same after a restart",
      );
      const last = before.at(-1) ?? EVENTS_START;
      t.match(
        await fixture.store.readEvents(bucketOf(key), last, 9),
        { rows: [], lost: 0, loss: undefined },
        "a reader whose last event was removed has lost nothing",
      );
    },
  );
}
