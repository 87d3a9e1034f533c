// Sessions on Redis, in addition to the contract: the number of calls for a node's sessions, and
// the events of a refused login. A session that cannot be confirmed must not affect other sessions.

import { randomUUID } from "node:crypto";
import { setTimeout as pause } from "node:timers/promises";
import type { Redis } from "ioredis";
import t, { type Test } from "tap";
import type { CloseReason } from "../../../src/broker/errors.ts";
import { EVENTS_START } from "../../../src/broker/event-ports.ts";
import { bucketOf } from "../../../src/broker/log-frame.ts";
import {
  type DeviceLevel,
  MAIN_DEVICE,
  SECONDARY_DEVICE,
  type SessionRecord,
  userTopic,
} from "../../../src/broker/model.ts";
import type { LoggedInSession } from "../../../src/broker/ports.ts";
import { codeOf } from "../../contract/store-fixture.ts";
import { commandCalls, isPrimary, startRedis, startRedisCluster } from "../../support/redis.ts";
import { openStore, type StoreNode } from "./one-store.ts";

const NODE = "n1:1";
/** Index of the expiry time in a session entry, see `lua/session_rules.lua`. */
const EXPIRES_AT = 8;

const sessionOf = (uid: string, level: DeviceLevel = MAIN_DEVICE): SessionRecord => ({
  ...{ sessionId: randomUUID(), nodeId: "n1", uid, flag: 0, level },
  ...{ deviceId: "", tokenTag: "tag-" },
});

async function enter({ store }: StoreNode, session: SessionRecord): Promise<LoggedInSession> {
  const result = await store.login(session, NODE);
  if (result.kind !== "entered") throw new Error(result.kind);
  return result;
}

/** Returns the device and the reason of each `session.kicked` of ann. */
async function kicksOf({ store }: StoreNode): Promise<readonly string[]> {
  const { rows } = await store.readEvents(bucketOf(userTopic("ann")), EVENTS_START, 20);
  const kicks = rows.filter(({ type }) => type === "session.kicked");
  return kicks.map(({ fields }) => `${fields?.device_id} ${fields?.reason}`);
}

const succeeds = (call: Promise<unknown>) =>
  call.then(
    () => true,
    () => false,
  );

/** Sets the time in Unix milliseconds at which the entry of a session expires. */
async function setExpiry({ link }: StoreNode, session: SessionRecord, ms: number): Promise<void> {
  const key = link.keys.user("sessions", session.uid);
  const entry = JSON.parse(String(await link.call("hget", key, session.sessionId)));
  entry[EXPIRES_AT] = `${ms}`;
  await link.write("hset", key, session.sessionId, JSON.stringify(entry));
}

const usersOf = (count: number) => Array.from({ length: count }, (_, at) => `u${at}`);

const enterAll = (node: StoreNode, count: number) =>
  Promise.all(usersOf(count).map((uid) => enter(node, sessionOf(uid))));

const redis = await startRedis(t);
const raw = redis.client();

t.test("the sessions of 500 users are confirmed in ten calls to Redis", async (t) => {
  const node = await openStore(t, redis.url);
  const all = await enterAll(node, 500);
  await raw.call("CONFIG", "RESETSTAT");
  const results = await node.store.confirmSessions(all, NODE);
  t.equal(await commandCalls(raw, "evalsha"), 10, "one call confirms fifty sessions");
  t.same(new Set(results.map(({ kind }) => kind)), new Set(["confirmed"]));
});

t.test("the sessions of 500 users are read in ten calls to Redis", async (t) => {
  const node = await openStore(t, redis.url);
  const all = await enterAll(node, 490);
  await raw.call("CONFIG", "RESETSTAT");
  const entries = await node.store.sessionsOf(usersOf(500));
  t.equal(await commandCalls(raw, "evalsha"), 10, "one call reads the sessions of fifty users");
  t.same(
    entries.map(([entry]) => entry?.session.sessionId),
    usersOf(500).map((_, at) => all[at]?.session.sessionId),
    "the results are in the order of the users, even if some users have no session",
  );
});

/** Sets the memory that every server may use, in bytes. 0 means no limit. */
async function limitMemory(clients: readonly Redis[], bytes: number): Promise<void> {
  for (const client of clients) await client.config("SET", "maxmemory", bytes);
}

async function testFullRedis(t: Test, node: StoreNode, servers: readonly Redis[]): Promise<void> {
  const { store } = node;
  for (const level of [MAIN_DEVICE, SECONDARY_DEVICE] as const) {
    const login = (uid: string) => enter(node, sessionOf(`${uid}${level}`, level));
    const stays = await login("stays");
    const kicked = await login("kicked");
    const quits = await login("quits");
    const device = { uid: quits.session.uid, flag: 0, level, tokenHash: Buffer.from("x") } as const;
    await store.putDevice(device);
    await setExpiry(node, stays.session, Date.now() + 60_000); // a confirmation extends the entry
    await limitMemory(servers, 1_000_000);
    try {
      t.equal(await succeeds(store.putDevice({ ...device, uid: "new" })), false, "Redis is full");
      await store.endSession(kicked.session, "kicked");
      await store.putDevice({ ...device, tokenHash: new Uint8Array(0) });
      await store.putDevice({ ...device, uid: "unknown", tokenHash: new Uint8Array(0) });
      t.match(await store.confirmSessions([stays, kicked, quits], NODE), [
        { kind: "confirmed" },
        { kind: "refused", reason: "kicked" },
        { kind: "refused", reason: "logged_out" },
      ]);
    } finally {
      await limitMemory(servers, 0);
    }
  }
}

t.test("a full Redis accepts logouts and kicks, and confirms sessions", async (t) => {
  for (const hasFeed of [false, true]) {
    const node = await openStore(t, redis.url);
    if (hasFeed) await node.store.switchFeed(true);
    await testFullRedis(t, node, [raw]);
  }
});

t.test("a full Redis Cluster accepts logouts and kicks, and confirms sessions", async (t) => {
  const { url, primaries } = await startRedisCluster(t);
  const node = await openStore(t, url);
  await node.store.switchFeed(true);
  await testFullRedis(
    t,
    node,
    primaries.map((primary) => primary.client()),
  );
});

t.test("other sessions are confirmed if the events of one session cannot be written", async (t) => {
  const node = await openStore(t, redis.url);
  const { store, link } = node;
  await store.switchFeed(true);
  const all = await enterAll(node, 2);
  for (const uid of usersOf(2))
    for (const part of ["sessions", "announced"])
      await link.write("del", link.keys.user(part, uid));
  const feed = link.keys.bucket("feed", bucketOf(userTopic("u0")));
  await link.write("set", feed, "a wrong type");
  const results = await store.confirmSessions(all, NODE);
  t.strictSame(
    results.map(({ kind }) => kind),
    ["failed", "confirmed"],
  );
});

t.test(
  "a refused login writes the events of the expired sessions that it has removed",
  async (t) => {
    const node = await openStore(t, redis.url);
    const { store } = node;
    await store.switchFeed(true);
    await store.setDemand({ feed: true, session: true, command: false });
    const kicked = await enter(node, { ...sessionOf("ann"), deviceId: "a" });
    await enter(node, { ...sessionOf("ann"), deviceId: "b" });
    const { session } = await enter(node, { ...sessionOf("ann", SECONDARY_DEVICE), flag: 1 });
    await setExpiry(node, session, 1);
    const again = { ...sessionOf("ann"), deviceId: "a" };
    const login = await store.login(again, NODE, { claim: { order: kicked.order } });
    t.match(login, { kind: "refused", reason: "kicked" });
    const { rows } = await store.readEvents(bucketOf(userTopic("ann")), EVENTS_START, 20);
    const closed = rows.filter(({ type }) => type === "session.closed");
    t.strictSame(
      closed.map(({ fields }) => fields?.session_id),
      [kicked.session.sessionId, session.sessionId],
    );
  },
);

const lostKicks: Readonly<Record<string, (node: StoreNode) => Promise<unknown>>> = {
  kicked: (node) => enter(node, { ...sessionOf("ann"), deviceId: "b" }),
  logged_out: ({ store }) =>
    store.putDevice({ uid: "ann", flag: 0, level: 1, tokenHash: new Uint8Array() }),
  token_changed: ({ store }) =>
    store.putDevice({ uid: "ann", flag: 0, level: 1, tokenHash: new Uint8Array(32) }),
  banned: ({ store }) => store.putBan("ann", true),
};

for (const [reason, end] of Object.entries(lostKicks))
  t.test(
    `exactly one end event is written for a session that Redis lost before the session ended with the reason ${reason}`,
    async (t) => {
      const node = await openStore(t, redis.url);
      const { store, link } = node;
      await store.switchFeed(true);
      const first = await enter(node, { ...sessionOf("ann"), deviceId: "a" });
      for (const part of ["sessions", "logins"])
        await link.write("del", link.keys.user(part, "ann"));
      await end(node);
      for (let at = 0; at < 2; at++)
        t.strictSame(await store.confirmSessions([first], NODE), [{ kind: "refused", reason }]);
      await store.removeSession(first.session, reason as CloseReason);
      t.strictSame(await kicksOf(node), [`a ${reason}`]);
      t.equal(
        await link.call("exists", link.keys.user("ended", "ann")),
        reason === "logged_out" ? 1 : 0,
      );
    },
  );

t.test(
  "only one end event is written for a kicked session that is confirmed and removed repeatedly",
  async (t) => {
    const node = await openStore(t, redis.url);
    const { store, link } = node;
    await store.switchFeed(true);
    const first = await enter(node, { ...sessionOf("ann"), deviceId: "a" });
    await enter(node, { ...sessionOf("ann"), deviceId: "b" });
    for (let at = 0; at < 2; at++)
      t.match(await store.confirmSessions([first], NODE), [{ kind: "refused", reason: "kicked" }]);
    await store.removeSession(first.session, "kicked");
    await store.removeSession(first.session, "kicked");
    t.strictSame(await kicksOf(node), ["a kicked"]);
    t.equal(await link.call("exists", link.keys.user("ended", "ann")), 0, "no record is left");
  },
);

t.test("other sessions are confirmed if one session cannot be decoded", async (t) => {
  const node = await openStore(t, redis.url);
  const { keys } = node.link;
  const all = await enterAll(node, 3);
  const [, broken, odd] = all as [LoggedInSession, LoggedInSession, LoggedInSession];
  const { uid, sessionId } = broken.session;
  await raw.hset(keys.user("sessions", uid), sessionId, "no entry");
  const device = Buffer.from([3, 0, 1]);
  await raw.hset(keys.user("devices", odd.session.uid), "0", device);
  const results = await node.store.confirmSessions(all, NODE);
  t.match(results, [
    { kind: "confirmed" },
    { kind: "failed", error: { code: "internal" } },
    { kind: "failed", error: { cause: { message: /format 3/ } } },
  ]);
  const terms = { tokenHash: new Uint8Array(32) };
  const login = async () => node.store.login(sessionOf(odd.session.uid), NODE, terms);
  t.equal(await codeOf(login()), "internal", "a login of that user is rejected as well");
});

t.test("sessions that Redis lost are restored when they are confirmed", async (t) => {
  const node = await openStore(t, redis.url);
  const all = await enterAll(node, 3);
  for (const uid of usersOf(3)) {
    const { keys } = node.link;
    await raw.del(keys.user("sessions", uid), keys.user("logins", uid));
  }
  const [first, ...others] = all as [LoggedInSession, ...LoggedInSession[]];
  const hidden = { ...first, session: { ...first.session, isBackground: true as const } };
  const confirmed = [hidden, ...others];
  await node.store.confirmSessions(confirmed, "n1:2");
  const entries = await node.store.sessionsOf(usersOf(3));
  t.same(
    entries,
    confirmed.map(({ session, order, since }) => [{ session, order, since, incarnation: "n1:2" }]),
    "the sessions have the state of their clients",
  );
});

t.test(
  "the logout of a device stays recorded even after 150 other sessions have ended",
  async (t) => {
    const node = await openStore(t, redis.url);
    const { store } = node;
    const device = (tokenHash: Uint8Array) =>
      ({ uid: "d", flag: 0, level: SECONDARY_DEVICE, tokenHash }) as const;
    const lost = await enter(node, sessionOf("d", SECONDARY_DEVICE));
    await raw.del(node.link.keys.user("sessions", "d"));
    await store.putDevice(device(new Uint8Array()));
    await store.putDevice(device(new Uint8Array(32)));
    for (let count = 0; count < 150; count++) {
      const other = { ...sessionOf("d", SECONDARY_DEVICE), flag: 1 } as const;
      await store.endSession(other, "kicked");
    }
    const refused = { kind: "refused", reason: "logged_out" };
    t.same(await store.confirmSessions([lost], NODE), [refused]);
    const kept = await raw.hlen(node.link.keys.user("ended", "d"));
    t.ok(kept <= 101, `${kept} ends are remembered`);
  },
);

t.test("a confirmed session does not take over another login's label", async (t) => {
  const node = await openStore(t, redis.url);
  const { store } = node;
  const key = node.link.keys.user("logins", "u");
  const [first, second, third] = ["a", "b", "a"].map((deviceId) => ({
    ...sessionOf("u"),
    deviceId,
  })) as [SessionRecord, SessionRecord, SessionRecord];
  const claim = { label: "the name that a gave its login" };
  await store.login(first, NODE, { claim });
  const before = await raw.hgetall(key);
  const later = await store.login(second, NODE);
  if (later.kind !== "entered") throw new Error(later.kind);
  await raw.hset(key, before); // as if Redis had lost its last second
  await raw.del(node.link.keys.user("sessions", "u"));
  t.same(await store.confirmSessions([later], NODE), [{ kind: "confirmed" }]);
  const again = await store.login(third, NODE, { claim });
  t.same(again, { kind: "refused", reason: "kicked" });
});

t.test(
  "sessions on other servers are confirmed while one server of a Redis Cluster hangs",
  async (t) => {
    const servers = await startRedisCluster(t);
    const node = await openStore(t, servers.url, { settings: { timeoutMs: 60_000 } });
    const all = await enterAll(node, 60);
    const { link } = node;
    link.setTimeoutMs(1500);
    const addressOf = (uid: string) => {
      const { options } = link.primaryOf(link.keys.user("sessions", uid));
      return options.port;
    };
    const away = servers.primaries[0];
    if (away === undefined) throw new Error("a Cluster has servers");
    const expected = all.map(({ session }) =>
      addressOf(session.uid) === away.port ? "unavailable" : "confirmed",
    );
    t.equal(new Set(expected).size, 2, "the server stores some of the sessions");
    away.signal("SIGSTOP");
    const results = await node.store.confirmSessions(all, NODE);
    away.signal("SIGCONT");
    t.same(
      results.map((result) => (result.kind === "failed" ? result.error.code : result.kind)),
      expected,
    );
  },
);

t.test("exactly one `session.kicked` is written for a kick that a fail-over undoes", async (t) => {
  const servers = await startRedisCluster(t, { replicas: true });
  const node = await openStore(t, servers.url, { settings: { minReplicas: 1, timeoutMs: 2000 } });
  const { store, link } = node;
  await store.switchFeed(true);
  const { session } = await enter(node, { ...sessionOf("ann"), deviceId: "a" });
  const { options } = link.primaryOf(link.keys.user("sessions", "ann"));
  const primary = servers.primaries.find(({ port }) => port === options.port);
  if (primary === undefined) throw new Error("a server has the user");
  for (const replica of servers.replicas) replica.signal("SIGSTOP");
  const admin = primary.client();
  await admin.call("CLIENT", "KILL", "TYPE", "replica");
  admin.disconnect();
  const login = enter(node, { ...sessionOf("ann"), deviceId: "b" }).catch(() => {});
  const devices = async () =>
    (await store.sessionsOf(["ann"]))[0]?.map(({ session }) => session.deviceId);
  while ((await devices())?.includes("a")) await pause(5);
  const remove = () => succeeds(store.removeSession(session, "kicked"));
  const removal = remove();
  await devices(); // returns after the script of the removal
  await primary.stop("SIGKILL");
  for (const replica of servers.replicas) replica.signal("SIGCONT");
  const followers = servers.replicas.map((replica) => replica.client());
  const isReplaced = async () => (await Promise.all(followers.map(isPrimary))).includes(true);
  while (!(await isReplaced())) await pause(50);
  await login;
  // A node repeats a removal that failed.
  for (let isDone = await removal; !isDone; isDone = await remove()) await pause(100);
  await primary.restart();
  while (!(await succeeds(store.endOnline("ann", [], 0)))) await pause(100); // moves the outbox
  t.strictSame(await kicksOf(node), ["a kicked"]);
});
