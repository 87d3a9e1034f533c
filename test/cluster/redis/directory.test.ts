// The session directory across nodes: one survivor of simultaneous main logins, dead nodes'
// sessions, and what makes it agree again with the sessions a node serves.

import { randomUUID } from "node:crypto";
import t, { type Test } from "tap";
import { SECONDARY_DEVICE, type SessionRecord, userTopic } from "../../../src/broker/model.ts";
import { hashToken, tokenTag } from "../../../src/broker/tokens.ts";
import { createUsers } from "../../../src/broker/users.ts";
import {
  sessionsEndedBy,
  sessionsEndedDuring,
  sessionsOf,
} from "../../contract/cluster-fixture.ts";
import { commandCallsIn, startRedis } from "../../support/redis.ts";
import {
  HEARTBEAT_MS,
  isOnline,
  kill,
  living,
  putToken,
  sessionOn,
  startNode,
  type TestNode,
  until,
} from "./nodes.ts";

const redis = await startRedis(t);
const raw = redis.client();

/** Nodes of a cluster of their own. */
async function startNodes(
  t: Test,
  count: number,
  {
    recheckMs = 60_000,
    ...settings
  }: { readonly timeoutMs?: number; readonly recheckMs?: number } = {},
): Promise<TestNode[]> {
  const prefix = `t${randomUUID().slice(0, 8)}`;
  const nodes: TestNode[] = [];
  while (nodes.length < count)
    nodes.push(
      await startNode(t, redis, {
        recheckMs,
        settings: { ...settings, prefix },
      }),
    );
  for (const node of nodes) await until(async () => (await node.cluster.nodes()).length === count);
  return nodes;
}

/** Redis loses what it has of the user's sessions. */
async function lose({ link }: TestNode, uid: string): Promise<void> {
  await raw.del(link.keys.user("sessions", uid), link.keys.user("logins", uid));
}

const hash = ({ link }: TestNode, uid: string) => link.keys.user("sessions", uid);

/** Who of the user's sessions the node was told to end, and why. */
const ended = ({ events }: TestNode) =>
  events.flatMap((one) => (one.kind === "end_session" ? [`${one.sessionId} ${one.reason}`] : []));

const ROUNDS = 500;

t.test("500 rounds of simultaneous main logins: one survivor", async (t) => {
  const nodes = await startNodes(t, 3);
  const wrong: string[] = [];
  await Promise.all(
    Array.from({ length: ROUNDS }, async (_, round) => {
      const uid = `u${round}`;
      const mains = nodes.map((node) => sessionOn(node, uid));
      const [hearing] = nodes as [TestNode];
      const told = await sessionsEndedDuring(hearing, uid, () =>
        Promise.all(nodes.map(({ directory }, at) => directory.login(mains[at] as never))),
      );
      const gone = new Set(told.map(([sessionId]) => sessionId));
      const left = mains.filter((one) => !gone.has(one.sessionId));
      const seen = await Promise.all(nodes.map((node) => sessionsOf(node.store, uid)));
      const online = await Promise.all(nodes.map((one) => isOnline(one, uid)));
      const isRight =
        told.length === 2 &&
        left.length === 1 &&
        seen.every((one) => JSON.stringify(one) === JSON.stringify(left)) &&
        online.every(Boolean);
      if (!isRight) wrong.push(uid);
    }),
  );
  t.same(wrong, []);
});

t.test("the step that ends a session tells its node why", async (t) => {
  const [a, b] = (await startNodes(t, 2)) as [TestNode, TestNode];
  await a.cluster.listen("u:tom");
  const main = sessionOn(a, "tom");
  const phone = sessionOn(a, "tom", { deviceId: "d", level: SECONDARY_DEVICE });
  await a.directory.login(main);
  await a.directory.login(phone);
  await b.directory.login(sessionOn(b, "tom", { deviceId: "d" }));
  await until(() => ended(a).length === 2);
  t.same([...ended(a)].sort(), [`${main.sessionId} kicked`, `${phone.sessionId} replaced`].sort());
});

t.test("sessions keep what they carry, whatever is in it", async (t) => {
  const [a] = (await startNodes(t, 1)) as [TestNode];
  const uid = "ünï/\\\"'😀";
  const session = sessionOn(a, uid, { deviceId: uid, tokenTag: "a-_/\\" });
  await a.directory.login(session);
  t.same(await sessionsOf(a.store, uid), [session]);
});

t.test("a dead node's sessions are offline, watchers look", async (t) => {
  const [a, b, c] = (await startNodes(t, 3)) as [TestNode, TestNode, TestNode];
  const uids = Array.from({ length: 300 }, (_, at) => `u${at}`);
  await Promise.all(uids.map((uid) => b.directory.login(sessionOn(b, uid, { flag: 1 }))));
  const elsewhere = sessionOn(a, "u0");
  await a.directory.login(elsewhere);
  for (const uid of ["u1", "u2", "u3"]) await c.cluster.listen(`p:${uid}`);
  c.cluster.unlisten("p:u3");
  await kill(b);
  for (const node of [a, c])
    await until(async () => {
      const presence = await node.directory.presence(uids);
      return presence.filter(({ online }) => online).length === 1;
    });
  await until(() => c.events.length >= 2);
  t.same(
    c.events,
    ["u1", "u2"].map((uid) => ({ kind: "presence", uid })),
    "of the users that are watched there",
  );
  t.same(a.events, [], "nobody is watched here");
});

const entryOf = async (node: TestNode, { uid, sessionId }: SessionRecord) =>
  JSON.parse((await raw.hget(hash(node, uid), sessionId)) ?? "[]") as unknown[];

/** Changes one field of an entry in Redis. */
async function rewrite(
  node: TestNode,
  session: SessionRecord,
  field: { readonly at: number; readonly value: unknown },
): Promise<void> {
  const entry = await entryOf(node, session);
  entry[field.at] = field.value;
  const { uid, sessionId } = session;
  await raw.hset(hash(node, uid), sessionId, JSON.stringify(entry));
}

const EXPIRES = 8;
const KEPT_MS = 600_000;

// Private, since no door shows what is left in Redis.
t.test("an entry that expired is dropped with the next login", async (t) => {
  const [a] = (await startNodes(t, 1)) as [TestNode];
  const [old, next] = [0, 1].map(() => sessionOn(a, "u", { level: SECONDARY_DEVICE })) as [
    SessionRecord,
    SessionRecord,
  ];
  await a.directory.login(old);
  await a.directory.login(next);
  t.equal(await raw.hlen(hash(a, "u")), 2, "one that did not stays");
  await rewrite(a, old, { at: EXPIRES, value: `${Date.now() - 10_000}` });
  const third = sessionOn(a, "u", { level: SECONDARY_DEVICE });
  t.same(await sessionsEndedBy(a, third), [], "it is not ended by it");
  t.same((await raw.hkeys(hash(a, "u"))).sort(), [next.sessionId, third.sessionId].sort());
});

t.test("an expired session that is still served is ended by a login", async (t) => {
  const [a, b] = (await startNodes(t, 2)) as [TestNode, TestNode];
  const old = sessionOn(a, "u");
  await a.directory.login(old);
  await a.cluster.listen(userTopic("u"));
  await rewrite(a, old, { at: EXPIRES, value: `${Date.now() - 10_000}` });
  await b.directory.login(sessionOn(b, "u"));
  await until(() => ended(a).length > 0);
  t.same(ended(a), [`${old.sessionId} kicked`]);
});

t.test("a lost session whose token was replaced is ended", async (t) => {
  const [a] = (await startNodes(t, 1, { recheckMs: 200 })) as [TestNode];
  const session = sessionOn(a, "u");
  await a.directory.login(session);
  await lose(a, "u");
  await putToken(a, "u", "another"); // while it was missing nobody could end it
  await until(() => ended(a).length > 0);
  t.same(ended(a), [`${session.sessionId} token_changed`]);
  t.notOk(await isOnline(a, "u"));
});

t.test("entries are buffered for ten minutes, longer while served", async (t) => {
  const [a] = (await startNodes(t, 1, { recheckMs: 200 })) as [TestNode];
  const session = sessionOn(a, "u");
  await a.directory.login(session);
  const key = hash(a, "u");
  const keptMs = async () => {
    const entry = await entryOf(a, session);
    return [await raw.pttl(key), Number(entry[EXPIRES]) - Date.now()];
  };
  const isKept = async () => (await keptMs()).every((ms) => ms > KEPT_MS / 2 && ms <= KEPT_MS);
  t.ok(await isKept(), "as a login leaves it");
  await rewrite(a, session, { at: EXPIRES, value: `${Date.now() + 60_000}` });
  await raw.pexpire(key, 60_000);
  t.notOk(await isKept(), "as time would have it");
  await until(isKept);
  t.same(await sessionsOf(a.store, "u"), [session]);
});

t.test("a node that just came is no stranger", async (t) => {
  const prefix = `t${randomUUID().slice(0, 8)}`;
  const slow = {
    heartbeatMs: 60_000,
    deadAfterMs: 180_000,
    settings: { prefix },
  };
  const a = await startNode(t, redis, slow);
  const b = await startNode(t, redis, slow);
  await b.directory.login(sessionOn(b, "u"));
  t.equal((await a.cluster.nodes()).length, 1, "a has not heard of it");
  t.ok(await isOnline(a, "u"));
  t.equal(await living(a), await living(b));
});

t.test("a lost session is entered again, its watchers are told", async (t) => {
  const [a, b] = (await startNodes(t, 2)) as [TestNode, TestNode];
  const session = sessionOn(a, "u");
  await a.directory.login(session);
  await b.cluster.listen("p:u");
  await lose(a, "u");
  a.topics.resubscribed(["u"]);
  await until(() => isOnline(b, "u"));
  t.same(await sessionsOf(b.store, "u"), [session]);
  await until(() => b.events.length > 0);
  t.same(b.events, [{ kind: "presence", uid: "u" }]);
  t.same(ended(a), []);
});

t.test("a lost session whose place is taken is ended", async (t) => {
  const [a, b] = (await startNodes(t, 2)) as [TestNode, TestNode];
  const main = sessionOn(a, "u1");
  const phone = sessionOn(a, "u2", { deviceId: "d" });
  for (const one of [main, phone]) await a.directory.login(one);
  const later = sessionOn(b, "u1");
  await b.directory.login(later); // a does not listen: it hears nothing
  await b.directory.login(sessionOn(b, "u2", { deviceId: "d" }));
  a.topics.resubscribed(["u1", "u2"]);
  await until(() => ended(a).length === 2);
  t.same(new Set(ended(a)), new Set([`${main.sessionId} kicked`, `${phone.sessionId} replaced`]));
  t.same(await sessionsOf(a.store, "u1"), [later]);
  a.topics.resubscribed(["u1", "u2"]);
  await a.directory.login(sessionOn(a, "u3"));
  t.equal(ended(a).length, 2, "it is ended once");
});

t.test("a node that missed it finds out why a session was ended", async (t) => {
  const [a, b] = (await startNodes(t, 2)) as [TestNode, TestNode];
  const device = { deviceId: "d" };
  const ends = [
    ["kicked", (uid: string) => b.directory.login(sessionOn(b, uid))],
    ["replaced", (uid: string) => b.directory.login(sessionOn(b, uid, device))],
    ["logged_out", (_: string, one: SessionRecord) => b.store.endSession(one, "logged_out")],
  ] as const;
  for (const [reason, end] of ends) {
    const session = sessionOn(a, reason, device); // a does not listen
    await a.directory.login(session);
    t.equal(await a.directory.endedBy(session), undefined);
    await end(reason, session);
    t.equal(await a.directory.endedBy(session), reason);
  }
  a.topics.resubscribed(ends.map(([reason]) => reason));
  await until(() => ended(a).length === ends.length);
  t.same(
    new Set(ended(a).map((one) => one.split(" ")[1])),
    new Set(ends.map(([reason]) => reason)),
  );
});

t.test("a lost session that was kicked by one that left stays out", async (t) => {
  const [a, b] = (await startNodes(t, 2)) as [TestNode, TestNode];
  const old = sessionOn(a, "u");
  await a.directory.login(old);
  const later = sessionOn(b, "u");
  await b.directory.login(later);
  await b.directory.remove(later);
  a.topics.resubscribed(["u"]);
  await until(() => ended(a).length === 1);
  t.same(ended(a), [`${old.sessionId} kicked`]);
  t.notOk(await isOnline(b, "u"));
});

t.test("what is known of a user's logins is buffered for thirty days", async (t) => {
  const [a] = (await startNodes(t, 1)) as [TestNode];
  await a.directory.login(sessionOn(a, "u"));
  await a.directory.login(sessionOn(a, "v", { level: SECONDARY_DEVICE }));
  const key = (uid: string) => a.link.keys.user("logins", uid);
  const days = (await raw.pttl(key("u"))) / 86_400_000;
  t.ok(days > 29.9 && days <= 30, `${days}`);
  t.equal(await raw.exists(key("v")), 0, "of a secondary session nothing");
});

t.test("of two lost mains the later one comes back", async (t) => {
  const [a, b] = (await startNodes(t, 2)) as [TestNode, TestNode];
  await b.cluster.listen("u:u");
  const old = sessionOn(a, "u");
  const late = sessionOn(b, "u");
  await a.directory.login(old);
  await b.directory.login(late);
  for (const [first, second] of [
    [a, b],
    [b, a],
  ] as const) {
    await lose(a, "u");
    first.topics.resubscribed(["u"]);
    await until(async () => (await raw.exists(hash(a, "u"))) === 1);
    second.topics.resubscribed(["u"]);
    await until(async () => (await raw.hkeys(hash(a, "u"))).join() === late.sessionId);
    t.same(await sessionsOf(a.store, "u"), [late]);
  }
  t.ok(ended(a).every((one) => one === `${old.sessionId} kicked`));
  t.notOk(ended(b).some((one) => one.startsWith(late.sessionId)));
});

t.test("a lost session with a worthless token stays out", async (t) => {
  const [a] = (await startNodes(t, 1)) as [TestNode];
  const session = sessionOn(a, "u");
  await a.directory.login(session);
  await putToken(a, "u", "");
  await lose(a, "u");
  a.topics.resubscribed(["u"]);
  await until(() => ended(a).length === 1);
  t.same(ended(a), [`${session.sessionId} logged_out`]);
  t.notOk(await isOnline(a, "u"));
});

t.test("one step markDelivered a session out and tells its node", async (t) => {
  const [a, b] = (await startNodes(t, 2)) as [TestNode, TestNode];
  await a.cluster.listen("u:u");
  const session = sessionOn(a, "u");
  await a.directory.login(session);
  await b.store.endSession(session, "logged_out");
  t.same(await sessionsOf(a.store, "u"), []);
  t.same(b.topics.published, [], "nothing is left to be said by the node");
  await until(() => ended(a).length === 1);
  await b.store.endSession(session, "logged_out");
  await until(() => ended(a).length === 2);
  t.same(ended(a)[1], `${session.sessionId} logged_out`, "told once more");
});

t.test("a session whose end was not heard is found missing", async (t) => {
  const [a, b] = (await startNodes(t, 2, { recheckMs: 200 })) as [TestNode, TestNode];
  const [buffered, gone] = [sessionOn(a, "u"), sessionOn(a, "u", { flag: 1 })];
  for (const one of [buffered, gone]) await a.directory.login(one);
  await b.store.endSession(gone, "logged_out"); // a does not listen
  await until(() => ended(a).length === 1);
  t.same(ended(a), [`${gone.sessionId} logged_out`]);
  t.same(await sessionsOf(b.store, "u"), [buffered]);
});

t.test("word of a credential has the node judge its sessions", async (t) => {
  const [a, b] = (await startNodes(t, 2)) as [TestNode, TestNode];
  for (const uid of ["u", "v"]) await a.cluster.listen(`u:${uid}`);
  const [one, two] = [sessionOn(a, "u"), sessionOn(a, "u", { flag: 1 })];
  const other = sessionOn(a, "v");
  for (const session of [one, two, other]) await a.directory.login(session);
  await b.cluster.announce([{ kind: "credential", uid: "u" }]);
  await until(() => a.events.some(({ kind }) => kind === "credential"));
  t.same(ended(a), []);
  await putToken(b, "u", "another");
  await b.cluster.announce([{ kind: "credential", uid: "u" }]);
  await until(() => ended(a).length === 2);
  t.same(new Set(ended(a)), new Set([one, two].map((s) => `${s.sessionId} token_changed`)));
  await until(async () => !(await isOnline(b, "u")));
  t.ok(await isOnline(b, "v"));
});

t.test("a node that cannot judge a credential does so later", async (t) => {
  const [a, b] = (await startNodes(t, 2)) as [TestNode, TestNode];
  const session = sessionOn(a, "u");
  await a.directory.login(session);
  await a.cluster.listen("u:u");
  await putToken(b, "u", "another");
  await raw.call("ACL", "SETUSER", "default", "-evalsha"); // as a full Redis: heartbeats fail with it
  await b.cluster.announce([{ kind: "credential", uid: "u" }]);
  await until(() => a.events.some(({ kind }) => kind === "credential"));
  t.same(ended(a), []);
  await raw.call("ACL", "SETUSER", "default", "+evalsha");
  await until(() => ended(a).length === 1);
  t.same(a.problems, []);
});

t.test("a session of a dead incarnation is judged", async (t) => {
  const [a] = (await startNodes(t, 1)) as [TestNode];
  const session = sessionOn(a, "u");
  await a.directory.login(session);
  const value = `${a.cluster.nodeId}:earlier`;
  await rewrite(a, session, { at: 1, value }); // a logout ignored it
  await putToken(a, "u", "");
  a.topics.resubscribed(["u"]);
  await until(() => ended(a).length === 1);
  t.same(ended(a), [`${session.sessionId} logged_out`]);
  t.equal(await raw.exists(hash(a, "u")), 0);
});

t.test("a registration without an answer leaves nothing", async (t) => {
  const [a] = (await startNodes(t, 1, { timeoutMs: 500 })) as [TestNode];
  const session = sessionOn(a, "u");
  await a.directory.login(session); // the entry is there, whichever answer is lost
  redis.signal("SIGSTOP");
  await t.rejects(a.directory.login(session), { code: "unavailable" });
  redis.signal("SIGCONT");
  await until(async () => (await raw.exists(hash(a, "u"))) === 0);
});

t.test("a removal without an answer is made good", async (t) => {
  const [a] = (await startNodes(t, 1, { timeoutMs: 500 })) as [TestNode];
  const [buffered, gone] = [sessionOn(a, "u1"), sessionOn(a, "u2")];
  for (const one of [buffered, gone]) await a.directory.login(one);
  await a.cluster.listen("p:u2");
  redis.signal("SIGSTOP");
  await t.rejects(a.directory.remove(gone), { code: "unavailable" });
  redis.signal("SIGCONT");
  await until(async () => (await raw.exists(hash(a, "u2"))) === 0);
  await until(() => a.events.length > 0);
  t.same(a.events, [{ kind: "presence", uid: "u2" }], "watchers are notified");
  t.same(await sessionsOf(a.store, "u1"), [buffered]);
});

t.test("presence of many, in their order", async (t) => {
  const [a, b] = (await startNodes(t, 2)) as [TestNode, TestNode];
  const uids = Array.from({ length: 1000 }, (_, at) => `u${at}`);
  await Promise.all(
    uids
      .filter((_, at) => at % 3 === 0)
      .map((uid) => a.directory.login(sessionOn(a, uid, { flag: 2 }))),
  );
  const found = await b.directory.presence([...uids, "u3", "u3"]);
  t.same(
    found.map(({ uid, online, flag }) => `${uid} ${online} ${flag}`),
    [...uids, "u3", "u3"].map((uid) =>
      Number(uid.slice(1)) % 3 === 0 ? `${uid} true 2` : `${uid} false 0`,
    ),
  );
});

t.test("after a loss only what could not be confirmed is repeated", async (t) => {
  const [a] = (await startNodes(t, 1, { recheckMs: 1e9 })) as [TestNode];
  const uids = Array.from({ length: 119 }, (_, at) => `a${at}`).concat("b0");
  await Promise.all(uids.map((uid) => a.directory.login(sessionOn(a, uid))));
  const acl = (...rules: readonly string[]) => raw.call("ACL", "SETUSER", "default", ...rules);
  await acl("resetkeys", "~*:{u:a*", "~*:{all}*"); // all but the last one's
  t.teardown(() => acl("allkeys"));
  await raw.call("CONFIG", "RESETSTAT");
  /** Without those of heartbeats, which write once and read twice. */
  const reads = async () => {
    const stats = await raw.info("commandstats");
    return commandCallsIn(stats, "hget") - 2 * commandCallsIn(stats, "zadd");
  };
  a.topics.resubscribed(uids);
  await until(async () => (await reads()) > 0);
  await new Promise((resolve) => setTimeout(resolve, 5 * HEARTBEAT_MS)); // it is tried again
  const before = await reads();
  t.ok(before < 2 * uids.length, `${before} reads, of an entry and a device`);
  await acl("allkeys");
  await until(async () => (await reads()) >= 2 * uids.length);
  await new Promise((resolve) => setTimeout(resolve, 5 * HEARTBEAT_MS));
  t.equal(await reads(), 2 * uids.length, "each session once");
  t.same(ended(a), []);
});

t.test("sessions that wait for their users' topics hold up no others", async (t) => {
  const [a] = (await startNodes(t, 1, { recheckMs: 1e9 })) as [TestNode];
  const [judged, waiting] = [sessionOn(a, "u"), sessionOn(a, "v")];
  for (const one of [judged, waiting]) await a.directory.login(one);
  await a.cluster.listen("u:u");
  const topicsBack: (() => void)[] = [];
  a.topics.recovers = () =>
    new Promise((resolve) => {
      topicsBack.push(resolve);
    });
  await raw.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes");
  await until(() => topicsBack.length > 0); // the store was away: all are to be confirmed
  await lose(a, "v");
  await putToken(a, "u", "another");
  await a.cluster.announce([{ kind: "credential", uid: "u" }]);
  await until(() => ended(a).length > 0);
  t.same(ended(a), [`${judged.sessionId} token_changed`]);
  t.same(await sessionsOf(a.store, "v"), [], "it waits");
  for (const back of topicsBack) back();
  await until(async () => (await sessionsOf(a.store, "v")).length > 0);
  t.same(await sessionsOf(a.store, "v"), [waiting]);
});

const SECONDARY = {
  uid: "u",
  flag: 0,
  level: SECONDARY_DEVICE,
  token: "a token",
} as const;

/** A session of the secondary device on the node. */
async function loginSecondary(node: TestNode): Promise<SessionRecord> {
  const tokenHash = hashToken(SECONDARY.token);
  const session = sessionOn(node, SECONDARY.uid, {
    ...{ level: SECONDARY.level, tokenTag: tokenTag(tokenHash) },
  });
  await node.directory.login(session, { tokenHash });
  return session;
}

t.test(
  "a secondary session that was logged out while its node was cut off stays out",
  async (t) => {
    const [a, b] = (await startNodes(t, 2)) as [TestNode, TestNode];
    const users = createUsers({ ...b, publisher: b.cluster });
    await users.setToken(SECONDARY);
    const session = await loginSecondary(a); // a does not listen
    await users.quitDevice("u", [0]);
    await users.setToken(SECONDARY);
    a.topics.resubscribed(["u"]);
    await until(() => ended(a).length === 1);
    t.same(ended(a), [`${session.sessionId} logged_out`]);
    t.notOk(await isOnline(b, "u"));
  },
);

t.test("nor does it come back with a node that counted as dead", async (t) => {
  const prefix = `t${randomUUID().slice(0, 8)}`;
  const frozen = { heartbeatMs: 60_000, deadAfterMs: 180_000 };
  const a = await startNode(t, redis, { ...frozen, settings: { prefix } });
  const b = await startNode(t, redis, { settings: { prefix } });
  const users = createUsers({ ...b, publisher: b.cluster });
  await users.setToken(SECONDARY);
  const session = await loginSecondary(a);
  await until(async () => !(await isOnline(b, "u")));
  await users.quitDevice("u", [0]);
  await users.setToken(SECONDARY);
  await a.cluster.heartbeat();
  await until(() => ended(a).length === 1);
  t.same(ended(a), [`${session.sessionId} logged_out`]);
  t.notOk(await isOnline(b, "u"));
});

// Private, since no door shows what is left in Redis.
t.test("ends are remembered for a day, a hundred of a user", async (t) => {
  const [a] = (await startNodes(t, 1)) as [TestNode];
  const key = a.link.keys.user("ended", "u");
  const kind = { level: SECONDARY_DEVICE } as const;
  const all = Array.from({ length: 103 }, () => sessionOn(a, "u", kind));
  for (const one of all) await a.directory.login(one);
  for (const one of all) await a.store.endSession(one, "logged_out");
  t.same(
    new Set(await raw.hkeys(key)),
    new Set(all.slice(3).map(({ sessionId }) => sessionId)),
    "the newest",
  );
  const days = (await raw.pttl(key)) / 86_400_000;
  t.ok(days > 0.9 && days <= 1, `${days}`);
  for (const one of all) await a.directory.remove(one);
  t.equal(await raw.exists(key), 0, "nothing, when their node has let them go");
});
