// Runs the Store contract for the Redis driver on a Cluster of three primaries, and checks the
// outbox of users, which only a Cluster needs.

import t from "tap";
import { EVENTS_START, type EventPosition } from "../../../src/broker/event-ports.ts";
import { bucketOf } from "../../../src/broker/log-frame.ts";
import { type SessionRecord, userTopic } from "../../../src/broker/model.ts";
import { packr } from "../../../src/redis/wire.ts";
import { storeContract } from "../../contract/store.ts";
import { commandOf } from "../../contract/store-inbox-fixture.ts";
import { logContract } from "../../contract/store-logs.ts";
import { startRedisCluster } from "../../support/redis.ts";
import { redisDriver } from "./contract-driver.ts";
import { redisLogDriver } from "./log-driver.ts";
import { openStore } from "./one-store.ts";

const { url } = await startRedisCluster(t);
storeContract(t, redisDriver("Redis Cluster", url));
logContract(t, redisLogDriver("Redis Cluster", url));

t.test(
  "an event left in a user's outbox is moved to the feed when a node checks whether the user is online",
  async (t) => {
    const { store, link } = await openStore(t, url);
    await store.switchFeed(true);
    const bucket = bucketOf(userTopic("ann"));
    const events = link.keys.bucket("events", bucket);
    await link.write("set", events, "a wrong type stops the node between its two scripts");
    const device = { uid: "ann", flag: 0, level: 1, tokenHash: new Uint8Array([1]) } as const;
    await t.rejects(store.putDevice(device));
    await link.write("del", events);
    const anyTime = { leftMs: 0, checkedMs: Number.MAX_SAFE_INTEGER };
    const users = await store.takeOnline({ limit: 64, turnMs: 1, ...anyTime });
    t.strictSame(users, ["ann"], "another node checks the user");
    await store.endOnline("ann", [], 0);
    const { rows } = await store.readEvents(bucket, EVENTS_START, 9);
    t.match(rows, [{ type: "user.token_changed" }]);
  },
);

const ann = (sessionId: string): SessionRecord => ({
  ...{ sessionId, nodeId: "n1", uid: "ann", flag: 0, level: 0 },
  ...{ deviceId: sessionId, tokenTag: "" },
});
const BUCKET = bucketOf(userTopic("ann"));

t.test(
  "no event of a user is lost while the user's events cannot be moved to the feed",
  async (t) => {
    const { store, link } = await openStore(t, url);
    await store.switchFeed(true);
    const device = { uid: "ann", flag: 0, tokenHash: new Uint8Array([1]) } as const;
    const events = link.keys.bucket("events", BUCKET);
    await link.write("set", events, "a wrong type stops the node between its two scripts");
    for (let at = 0; at < 100; at++)
      await t.rejects(store.putDevice({ ...device, level: at % 2 === 0 ? 1 : 0 }));
    await link.write("del", events);
    await store.putDevice({ ...device, level: 1 });
    const levels: unknown[] = [];
    for (let after: EventPosition = EVENTS_START; ; ) {
      const { rows } = await store.readEvents(BUCKET, after, 50);
      levels.push(...rows.map(({ fields }) => fields?.device_level));
      const last = rows.at(-1);
      if (last === undefined) break;
      after = last;
    }
    t.strictSame(
      levels,
      Array.from({ length: 101 }, (_, at) => (at % 2 === 0 ? 1 : 0)),
    );
  },
);

t.test(
  "a call that would write an event is rejected while the outbox of its user is full",
  async (t) => {
    const { store, link } = await openStore(t, url);
    await store.switchFeed(true);
    const device = { uid: "ann", flag: 0, level: 1, tokenHash: new Uint8Array([1]) } as const;
    const outbox = link.keys.user("outbox", "ann");
    const entry = (number: number) => packr.pack([`${number}`, 7, "events", "{}"]);
    const entries = Array.from({ length: 1000 }, (_, at) => entry(at + 1));
    await link.write("rpush", outbox, ...entries);
    const events = link.keys.bucket("events", BUCKET);
    await link.write("set", events, "a wrong type stops the node between its two scripts");
    await t.rejects(store.putDevice(device));
    t.equal(await link.call("llen", outbox), 1000, "nothing was added");
    await link.write("del", events);
    await store.putDevice(device);
    t.equal(await link.call("llen", outbox), 0);
    t.equal((await store.newestEvents())[BUCKET]?.number, 1001);
  },
);

t.test(
  "the events that `confirmSessions` writes are in the feed when the call returns",
  async (t) => {
    const { store, link } = await openStore(t, url);
    const login = await store.login(ann("s1"), "n1:alive");
    await store.switchFeed(true);
    await link.write("del", link.keys.user("sessions", "ann"));
    t.equal(login.kind, "entered");
    if (login.kind !== "entered") return;
    t.strictSame(await store.confirmSessions([login], "n1:alive"), [{ kind: "confirmed" }]);
    const { rows } = await store.readEvents(BUCKET, EVENTS_START, 9);
    t.match(rows, [{ type: "user.online" }]);
    const anyTime = { leftMs: 0, checkedMs: Number.MAX_SAFE_INTEGER };
    t.strictSame(await store.takeOnline({ limit: 64, turnMs: 1, ...anyTime }), ["ann"]);
  },
);

t.test(
  "a login with a wrong token does not add the user to the list of online users to check",
  async (t) => {
    const { store, link } = await openStore(t, url);
    await store.switchFeed(true);
    const proof = { tokenHash: new Uint8Array([1]) };
    t.strictSame(await store.login(ann("s1"), "n1:alive", proof), { kind: "unauthorized" });
    t.equal(await link.call("exists", link.keys.bucket("online", BUCKET)), 0);
  },
);

t.test("a user whom a node is logging in stays in the list of online users to check", async (t) => {
  const { store, link } = await openStore(t, url);
  await store.switchFeed(true);
  const online = link.keys.bucket("online", BUCKET);
  await link.write("zadd", online, 1, "ann");
  await link.write("set", link.keys.user("announcing", "ann"), "1");
  await store.endOnline("ann", [], 0);
  t.equal(await link.call("zcard", online), 1, "another node has announced the user");
  await link.write("del", link.keys.user("announcing", "ann"));
  await store.endOnline("ann", [], 0);
  t.equal(await link.call("zcard", online), 0, "no other node has announced the user");
});

t.test(
  "the expiry event of a retried command is in the feed, even if the first attempt could not add the inbox to the list of inboxes to check",
  async (t) => {
    const { store, link, time } = await openStore(t, url);
    await store.switchFeed(true);
    const due = link.keys.bucket("inboxDue", BUCKET);
    const draft = commandOf({ recipients: ["ann"], clientMsgNo: "c1", expireS: 100 });
    await link.write("set", due, "a wrong type stops the node after the copy was put");
    await t.rejects(store.appendCommand(draft));
    t.equal((await store.readInbox("ann", 0, { limit: 9, maxBytes: 9999 })).length, 1);
    await link.write("del", due);
    const { messageId, duplicate } = await store.appendCommand(draft);
    t.equal(duplicate, true);
    time.nowMs += 100_000;
    await store.sweep();
    const { rows } = await store.readEvents(BUCKET, EVENTS_START, 9);
    t.match(rows, [{ type: "command.expired", fields: { command_ids: [messageId] } }]);
    t.equal(await link.call("exists", due), 0, "an empty inbox is not listed");
  },
);

t.test("the list of inboxes stores the earliest expiry of each inbox's commands", async (t) => {
  const { store, link } = await openStore(t, url);
  await store.switchFeed(true);
  const due = link.keys.bucket("inboxDue", BUCKET);
  await store.appendCommand(commandOf({ recipients: ["ann"] }));
  const score = await link.call("zscore", due, "ann");
  await store.appendCommand(commandOf({ recipients: ["ann"] }));
  t.same(await link.call("zscore", due, "ann"), score);
  await store.appendCommand(commandOf({ recipients: ["ann"], expireS: 10 }));
  const earlier = Number(await link.call("zscore", due, "ann"));
  t.equal(
    Number(score) - earlier,
    3_590_000,
    "a command that expires earlier gives the inbox an earlier time",
  );
});

t.test(
  "a login adds a user to the list of online users again if a fail-over lost the entry",
  async (t) => {
    const { store, link } = await openStore(t, url);
    await store.switchFeed(true);
    await store.login(ann("s1"), "n1:alive");
    await link.write("del", link.keys.bucket("online", BUCKET));
    await store.login(ann("s2"), "n1:alive");
    const anyTime = { leftMs: 0, checkedMs: Number.MAX_SAFE_INTEGER };
    t.strictSame(await store.takeOnline({ limit: 64, turnMs: 1, ...anyTime }), ["ann"]);
  },
);

t.test("each call that removes expired commands moves their events to the feed", async (t) => {
  const { store, time } = await openStore(t, url);
  /** Sends commands while the feed is off, so that no sweep looks for them. */
  const send = async (count: number, over: Parameters<typeof commandOf>[0] = {}) => {
    await store.switchFeed(false);
    const ids: number[] = [];
    for (let at = 0; at < count; at++) {
      const draft = commandOf({ recipients: ["ann"], expireS: 10, ...over });
      ids.push((await store.appendCommand(draft)).messageId);
    }
    await store.switchFeed(true);
    return ids;
  };
  const expired = async () => {
    const { rows } = await store.readEvents(BUCKET, EVENTS_START, 99);
    return rows.flatMap(({ fields }) => fields?.command_ids as readonly number[]).toSorted();
  };
  const first = await send(1);
  time.nowMs += 10_000;
  await store.acknowledgeCommands("ann", [99]);
  t.strictSame(await expired(), first, "an acknowledgement");
  const second = await send(10, { origin: "device" });
  time.nowMs += 10_000;
  const another = commandOf({ recipients: ["ann"], origin: "device" });
  await store.appendCommand(another);
  t.strictSame(await expired(), [...first, ...second], "a command of a user who has a full share");
  const third = await send(19);
  time.nowMs += 10_000;
  await store.appendCommand(commandOf({ recipients: ["ann"] }));
  t.strictSame(await expired(), [...first, ...second, ...third], "every 32nd command");
});

t.test(
  "a command sent while the feed was off gets an expiry event if its inbox received another command while the feed was on",
  async (t) => {
    const { store, time } = await openStore(t, url);
    const early = await store.appendCommand(commandOf({ recipients: ["ann"], expireS: 10 }));
    await store.switchFeed(true);
    await store.appendCommand(commandOf({ recipients: ["ann"] }));
    time.nowMs += 10_000;
    await store.sweep();
    const { rows } = await store.readEvents(BUCKET, EVENTS_START, 9);
    t.match(rows, [{ fields: { command_ids: [early.messageId] } }]);
  },
);
