// The session directory of several nodes: simultaneous main logins, sessions of dead nodes, and how
// the store and the nodes agree again after either has missed a change.

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
  disconnect,
  HEARTBEAT_MS,
  isOnline,
  liveNodes,
  putToken,
  sessionOn,
  startNode,
  type TestNode,
  until,
} from "./nodes.ts";

const redis = await startRedis(t);
const raw = redis.client();

/** Starts the nodes of a new cluster and waits until each lists all of them. */
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

/** Deletes the user's sessions and logins in Redis, as if Redis had lost them. */
async function loseSessions({ link }: TestNode, uid: string): Promise<void> {
  await raw.del(link.keys.user("sessions", uid), link.keys.user("logins", uid));
}

const sessionsKey = ({ link }: TestNode, uid: string) => link.keys.user("sessions", uid);

/** Returns the sessions that the node was requested to end, each with the reason. */
const endedSessions = ({ events }: TestNode) =>
  events.flatMap((event) =>
    event.kind === "end_session" ? [`${event.sessionId} ${event.reason}`] : [],
  );

const ROUNDS = 500;

t.test("exactly one of three main devices that log in concurrently stays online", async (t) => {
  const nodes = await startNodes(t, 3);
  const failedUids: string[] = [];
  await Promise.all(
    Array.from({ length: ROUNDS }, async (_, round) => {
      const uid = `u${round}`;
      const mains = nodes.map((node) => sessionOn(node, uid));
      const [listener] = nodes as [TestNode];
      const ended = await sessionsEndedDuring(listener, uid, () =>
        Promise.all(nodes.map(({ directory }, at) => directory.login(mains[at] as never))),
      );
      const endedIds = new Set(ended.map(([sessionId]) => sessionId));
      const survivors = mains.filter(({ sessionId }) => !endedIds.has(sessionId));
      const sessionLists = await Promise.all(nodes.map((node) => sessionsOf(node.store, uid)));
      const online = await Promise.all(nodes.map((node) => isOnline(node, uid)));
      const isCorrect =
        ended.length === 2 &&
        survivors.length === 1 &&
        sessionLists.every((list) => JSON.stringify(list) === JSON.stringify(survivors)) &&
        online.every(Boolean);
      if (!isCorrect) failedUids.push(uid);
    }),
  );
  t.same(failedUids, []);
});

t.test("a node receives the reason when a login ends one of its sessions", async (t) => {
  const [a, b] = (await startNodes(t, 2)) as [TestNode, TestNode];
  await a.cluster.listen("u:tom");
  const main = sessionOn(a, "tom");
  const phone = sessionOn(a, "tom", { deviceId: "d", level: SECONDARY_DEVICE });
  await a.directory.login(main);
  await a.directory.login(phone);
  await b.directory.login(sessionOn(b, "tom", { deviceId: "d" }));
  await until(() => endedSessions(a).length === 2);
  t.same(
    [...endedSessions(a)].sort(),
    [`${main.sessionId} kicked`, `${phone.sessionId} replaced`].sort(),
  );
});

t.test("a session's ids may contain slashes, quotes and non-ASCII characters", async (t) => {
  const [a] = (await startNodes(t, 1)) as [TestNode];
  const uid = "ünï/\\\"'😀";
  const session = sessionOn(a, uid, { deviceId: uid, tokenTag: "a-_/\\" });
  await a.directory.login(session);
  t.same(await sessionsOf(a.store, uid), [session]);
});

t.test(
  "users of a dead node are offline, and other nodes are notified only about the users they watch",
  async (t) => {
    const [a, b, c] = (await startNodes(t, 3)) as [TestNode, TestNode, TestNode];
    const uids = Array.from({ length: 300 }, (_, at) => `u${at}`);
    await Promise.all(uids.map((uid) => b.directory.login(sessionOn(b, uid, { flag: 1 }))));
    const elsewhere = sessionOn(a, "u0");
    await a.directory.login(elsewhere);
    for (const uid of ["u1", "u2", "u3"]) await c.cluster.listen(`p:${uid}`);
    c.cluster.unlisten("p:u3");
    await disconnect(b);
    for (const node of [a, c])
      await until(async () => {
        const presence = await node.directory.presence(uids);
        return presence.filter(({ online }) => online).length === 1;
      });
    await until(() => c.events.length >= 2);
    t.same(
      c.events,
      ["u1", "u2"].map((uid) => ({ kind: "missed", topic: `p:${uid}` })),
      "a node checks the users it watches",
    );
    t.same(a.events, [], "a node that watches nobody checks nobody");
  },
);

const entryOf = async (node: TestNode, { uid, sessionId }: SessionRecord) =>
  JSON.parse((await raw.hget(sessionsKey(node, uid), sessionId)) ?? "[]") as unknown[];

/** Changes one field of an entry in Redis. */
async function rewrite(
  node: TestNode,
  session: SessionRecord,
  field: { readonly at: number; readonly value: unknown },
): Promise<void> {
  const entry = await entryOf(node, session);
  entry[field.at] = field.value;
  const { uid, sessionId } = session;
  await raw.hset(sessionsKey(node, uid), sessionId, JSON.stringify(entry));
}

/** Index of the expiry time in a session's entry. */
const EXPIRES = 8;
/** Time for which an entry is kept without being confirmed. */
const KEPT_MS = 600_000;

// The test reads keys because no port shows which entries remain in Redis.
t.test("an expired session entry is dropped by the user's next login", async (t) => {
  const [a] = (await startNodes(t, 1)) as [TestNode];
  const [old, next] = [0, 1].map(() => sessionOn(a, "u", { level: SECONDARY_DEVICE })) as [
    SessionRecord,
    SessionRecord,
  ];
  await a.directory.login(old);
  await a.directory.login(next);
  t.equal(await raw.hlen(sessionsKey(a, "u")), 2, "entries that have not expired stay");
  await rewrite(a, old, { at: EXPIRES, value: `${Date.now() - 10_000}` });
  const third = sessionOn(a, "u", { level: SECONDARY_DEVICE });
  t.same(await sessionsEndedBy(a, third), [], "the login ends no session");
  t.same((await raw.hkeys(sessionsKey(a, "u"))).sort(), [next.sessionId, third.sessionId].sort());
});

t.test("a login ends a connected session even if the session's entry has expired", async (t) => {
  const [a, b] = (await startNodes(t, 2)) as [TestNode, TestNode];
  const old = sessionOn(a, "u");
  await a.directory.login(old);
  await a.cluster.listen(userTopic("u"));
  await rewrite(a, old, { at: EXPIRES, value: `${Date.now() - 10_000}` });
  await b.directory.login(sessionOn(b, "u"));
  await until(() => endedSessions(a).length > 0);
  t.same(endedSessions(a), [`${old.sessionId} kicked`]);
});

t.test("a session that Redis lost is ended if its token was replaced", async (t) => {
  const [a] = (await startNodes(t, 1, { recheckMs: 200 })) as [TestNode];
  const session = sessionOn(a, "u");
  await a.directory.login(session);
  await loseSessions(a, "u");
  await putToken(a, "u", "another"); // without an entry, this change cannot end the session
  await until(() => endedSessions(a).length > 0);
  t.same(endedSessions(a), [`${session.sessionId} token_changed`]);
  t.notOk(await isOnline(a, "u"));
});

t.test(
  "a session entry is kept for ten minutes and renewed while the session is connected",
  async (t) => {
    const [a] = (await startNodes(t, 1, { recheckMs: 200 })) as [TestNode];
    const session = sessionOn(a, "u");
    await a.directory.login(session);
    const key = sessionsKey(a, "u");
    const keptMs = async () => {
      const entry = await entryOf(a, session);
      return [await raw.pttl(key), Number(entry[EXPIRES]) - Date.now()];
    };
    const isKept = async () => (await keptMs()).every((ms) => ms > KEPT_MS / 2 && ms <= KEPT_MS);
    t.ok(await isKept(), "a login sets the time to ten minutes");
    await rewrite(a, session, { at: EXPIRES, value: `${Date.now() + 60_000}` });
    await raw.pexpire(key, 60_000);
    t.notOk(await isKept(), "the test has shortened the time");
    await until(isKept);
    t.same(await sessionsOf(a.store, "u"), [session]);
  },
);

t.test("sessions of a node that has just joined count as online", async (t) => {
  const prefix = `t${randomUUID().slice(0, 8)}`;
  const slow = {
    heartbeatMs: 60_000,
    deadAfterMs: 180_000,
    settings: { prefix },
  };
  const a = await startNode(t, redis, slow);
  const b = await startNode(t, redis, slow);
  await b.directory.login(sessionOn(b, "u"));
  t.equal((await a.cluster.nodes()).length, 1, "node a has not read the new node yet");
  t.ok(await isOnline(a, "u"));
  t.equal(await liveNodes(a), await liveNodes(b));
});

t.test(
  "the entry of a session that Redis lost is restored, and watchers are notified",
  async (t) => {
    const [a, b] = (await startNodes(t, 2)) as [TestNode, TestNode];
    const session = sessionOn(a, "u");
    await a.directory.login(session);
    await b.cluster.listen("p:u");
    await loseSessions(a, "u");
    a.topics.resubscribed(["u"]);
    await until(() => isOnline(b, "u"));
    t.same(await sessionsOf(b.store, "u"), [session]);
    await until(() => b.events.length > 0);
    t.same(b.events, [{ kind: "presence", uid: "u" }]);
    t.same(endedSessions(a), []);
  },
);

t.test(
  "a node that missed the kick or replacement of a session ends the session after resubscribing",
  async (t) => {
    const [a, b] = (await startNodes(t, 2)) as [TestNode, TestNode];
    const main = sessionOn(a, "u1");
    const phone = sessionOn(a, "u2", { deviceId: "d" });
    for (const session of [main, phone]) await a.directory.login(session);
    const later = sessionOn(b, "u1");
    await b.directory.login(later); // node a has not subscribed, so it gets no event
    await b.directory.login(sessionOn(b, "u2", { deviceId: "d" }));
    a.topics.resubscribed(["u1", "u2"]);
    await until(() => endedSessions(a).length === 2);
    t.same(
      new Set(endedSessions(a)),
      new Set([`${main.sessionId} kicked`, `${phone.sessionId} replaced`]),
    );
    t.same(await sessionsOf(a.store, "u1"), [later]);
    a.topics.resubscribed(["u1", "u2"]);
    await a.directory.login(sessionOn(a, "u3"));
    t.equal(endedSessions(a).length, 2, "the sessions are ended only once");
  },
);

t.test("a node that missed the end of a session can read the reason", async (t) => {
  const [a, b] = (await startNodes(t, 2)) as [TestNode, TestNode];
  const device = { deviceId: "d" };
  const ends = [
    ["kicked", (uid: string) => b.directory.login(sessionOn(b, uid))],
    ["replaced", (uid: string) => b.directory.login(sessionOn(b, uid, device))],
    [
      "logged_out",
      (_: string, session: SessionRecord) => b.store.endSession(session, "logged_out"),
    ],
  ] as const;
  for (const [reason, end] of ends) {
    const session = sessionOn(a, reason, device); // node a has not subscribed
    await a.directory.login(session);
    t.equal(await a.directory.endedBy(session), undefined);
    await end(reason, session);
    t.equal(await a.directory.endedBy(session), reason);
  }
  a.topics.resubscribed(ends.map(([reason]) => reason));
  await until(() => endedSessions(a).length === ends.length);
  t.same(
    new Set(endedSessions(a).map((text) => text.split(" ")[1])),
    new Set(ends.map(([reason]) => reason)),
  );
});

t.test("a kicked session stays ended after the session that kicked it has left", async (t) => {
  const [a, b] = (await startNodes(t, 2)) as [TestNode, TestNode];
  const old = sessionOn(a, "u");
  await a.directory.login(old);
  const later = sessionOn(b, "u");
  await b.directory.login(later);
  await b.directory.remove(later);
  a.topics.resubscribed(["u"]);
  await until(() => endedSessions(a).length === 1);
  t.same(endedSessions(a), [`${old.sessionId} kicked`]);
  t.notOk(await isOnline(b, "u"));
});

t.test("the logins of a user's main devices are stored for thirty days", async (t) => {
  const [a] = (await startNodes(t, 1)) as [TestNode];
  await a.directory.login(sessionOn(a, "u"));
  await a.directory.login(sessionOn(a, "v", { level: SECONDARY_DEVICE }));
  const key = (uid: string) => a.link.keys.user("logins", uid);
  const days = (await raw.pttl(key("u"))) / 86_400_000;
  t.ok(days > 29.9 && days <= 30, `they expire in ${days} days`);
  t.equal(await raw.exists(key("v")), 0, "secondary logins are not remembered");
});

t.test(
  "if Redis lost the entries of a user's two main sessions, only the later session is restored",
  async (t) => {
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
      await loseSessions(a, "u");
      first.topics.resubscribed(["u"]);
      await until(async () => (await raw.exists(sessionsKey(a, "u"))) === 1);
      second.topics.resubscribed(["u"]);
      await until(async () => (await raw.hkeys(sessionsKey(a, "u"))).join() === late.sessionId);
      t.same(await sessionsOf(a.store, "u"), [late]);
    }
    t.ok(endedSessions(a).every((text) => text === `${old.sessionId} kicked`));
    t.notOk(endedSessions(b).some((text) => text.startsWith(late.sessionId)));
  },
);

t.test("a session that Redis lost is ended if its device is logged out", async (t) => {
  const [a] = (await startNodes(t, 1)) as [TestNode];
  const session = sessionOn(a, "u");
  await a.directory.login(session);
  await putToken(a, "u", "");
  await loseSessions(a, "u");
  a.topics.resubscribed(["u"]);
  await until(() => endedSessions(a).length === 1);
  t.same(endedSessions(a), [`${session.sessionId} logged_out`]);
  t.notOk(await isOnline(a, "u"));
});

t.test("ending a session in the store notifies the session's node", async (t) => {
  const [a, b] = (await startNodes(t, 2)) as [TestNode, TestNode];
  await a.cluster.listen("u:u");
  const session = sessionOn(a, "u");
  await a.directory.login(session);
  await b.store.endSession(session, "logged_out");
  t.same(await sessionsOf(a.store, "u"), []);
  t.same(b.topics.published, [], "the calling node publishes nothing itself");
  await until(() => endedSessions(a).length === 1);
  await b.store.endSession(session, "logged_out");
  await until(() => endedSessions(a).length === 2);
  t.same(
    endedSessions(a)[1],
    `${session.sessionId} logged_out`,
    "a repeated call notifies the node again",
  );
});

t.test(
  "a node that missed the end of a session ends the session at the node's next check",
  async (t) => {
    const [a, b] = (await startNodes(t, 2, { recheckMs: 200 })) as [TestNode, TestNode];
    const [kept, loggedOut] = [sessionOn(a, "u"), sessionOn(a, "u", { flag: 1 })];
    for (const session of [kept, loggedOut]) await a.directory.login(session);
    await b.store.endSession(loggedOut, "logged_out"); // node a has not subscribed
    await until(() => endedSessions(a).length === 1);
    t.same(endedSessions(a), [`${loggedOut.sessionId} logged_out`]);
    t.same(await sessionsOf(b.store, "u"), [kept]);
  },
);

t.test("the notification of a new token ends the user's sessions with the old token", async (t) => {
  const [a, b] = (await startNodes(t, 2)) as [TestNode, TestNode];
  for (const uid of ["u", "v"]) await a.cluster.listen(`u:${uid}`);
  const [first, second] = [sessionOn(a, "u"), sessionOn(a, "u", { flag: 1 })];
  const sessionOfOther = sessionOn(a, "v");
  for (const session of [first, second, sessionOfOther]) await a.directory.login(session);
  await b.cluster.announce([{ kind: "credential", uid: "u" }]);
  await until(() => a.events.some(({ kind }) => kind === "credential"));
  t.same(endedSessions(a), []);
  await putToken(b, "u", "another");
  await b.cluster.announce([{ kind: "credential", uid: "u" }]);
  await until(() => endedSessions(a).length === 2);
  t.same(
    new Set(endedSessions(a)),
    new Set([first, second].map((s) => `${s.sessionId} token_changed`)),
  );
  await until(async () => !(await isOnline(b, "u")));
  t.ok(await isOnline(b, "v"));
});

t.test(
  "a node that cannot check its sessions after a token change checks them later",
  async (t) => {
    const [a, b] = (await startNodes(t, 2)) as [TestNode, TestNode];
    const session = sessionOn(a, "u");
    await a.directory.login(session);
    await a.cluster.listen("u:u");
    await putToken(b, "u", "another");
    await raw.call("ACL", "SETUSER", "default", "-evalsha"); // like a Redis without free memory, which rejects heartbeats too
    await b.cluster.announce([{ kind: "credential", uid: "u" }]);
    await until(() => a.events.some(({ kind }) => kind === "credential"));
    t.same(endedSessions(a), []);
    await raw.call("ACL", "SETUSER", "default", "+evalsha");
    await until(() => endedSessions(a).length === 1);
    t.same(a.errors, []);
  },
);

t.test(
  "a session whose device logged out is ended at the next check, even if its entry names a dead incarnation",
  async (t) => {
    const [a] = (await startNodes(t, 1)) as [TestNode];
    const session = sessionOn(a, "u");
    await a.directory.login(session);
    const value = `${a.cluster.nodeId}:earlier`;
    await rewrite(a, session, { at: 1, value }); // a logout ignores entries of dead incarnations
    await putToken(a, "u", "");
    a.topics.resubscribed(["u"]);
    await until(() => endedSessions(a).length === 1);
    t.same(endedSessions(a), [`${session.sessionId} logged_out`]);
    t.equal(await raw.exists(sessionsKey(a, "u")), 0);
  },
);

t.test("a login that receives no reply from Redis leaves no session entry", async (t) => {
  const [a] = (await startNodes(t, 1, { timeoutMs: 500 })) as [TestNode];
  const session = sessionOn(a, "u");
  await a.directory.login(session); // so that an entry exists even if the second call never runs
  redis.signal("SIGSTOP");
  await t.rejects(a.directory.login(session), { code: "unavailable" });
  redis.signal("SIGCONT");
  await until(async () => (await raw.exists(sessionsKey(a, "u"))) === 0);
});

t.test("the removal of a session is repeated if Redis does not reply", async (t) => {
  const [a] = (await startNodes(t, 1, { timeoutMs: 500 })) as [TestNode];
  const [kept, removed] = [sessionOn(a, "u1"), sessionOn(a, "u2")];
  for (const session of [kept, removed]) await a.directory.login(session);
  await a.cluster.listen("p:u2");
  redis.signal("SIGSTOP");
  await t.rejects(a.directory.remove(removed), { code: "unavailable" });
  redis.signal("SIGCONT");
  await until(async () => (await raw.exists(sessionsKey(a, "u2"))) === 0);
  await until(() => a.events.length > 0);
  t.same(a.events, [{ kind: "presence", uid: "u2" }], "watchers are notified");
  t.same(await sessionsOf(a.store, "u1"), [kept]);
});

t.test(
  "nodes that watch a user receive a reason only for the end of the user's last session",
  async (t) => {
    const [a] = (await startNodes(t, 1)) as [TestNode];
    const [first, last] = [1, 2].map((flag) =>
      sessionOn(a, "u", { flag: flag as 1 | 2, level: SECONDARY_DEVICE }),
    ) as [SessionRecord, SessionRecord];
    for (const session of [first, last]) await a.directory.login(session);
    await a.cluster.listen("p:u");
    await a.directory.remove(first, "goodbye");
    await until(() => a.events.length === 1);
    t.same(a.events, [{ kind: "presence", uid: "u" }], "another session is left");
    await a.directory.remove(last, "goodbye");
    await until(() => a.events.length === 2);
    t.same(a.events[1], { kind: "presence", uid: "u", cause: "goodbye" });
  },
);

t.test("presence of 1,000 users is returned in the order of the query", async (t) => {
  const [a, b] = (await startNodes(t, 2)) as [TestNode, TestNode];
  const uids = Array.from({ length: 1000 }, (_, at) => `u${at}`);
  await Promise.all(
    uids
      .filter((_, at) => at % 3 === 0)
      .map((uid) => a.directory.login(sessionOn(a, uid, { flag: 2 }))),
  );
  const presence = await b.directory.presence([...uids, "u3", "u3"]);
  t.same(
    presence.map(({ uid, online, flag }) => `${uid} ${online} ${flag}`),
    [...uids, "u3", "u3"].map((uid) =>
      Number(uid.slice(1)) % 3 === 0 ? `${uid} true 2` : `${uid} false 0`,
    ),
  );
});

t.test("while a session cannot be confirmed, other sessions are read at most twice", async (t) => {
  const [a] = (await startNodes(t, 1, { recheckMs: 1e9 })) as [TestNode];
  const uids = Array.from({ length: 119 }, (_, at) => `a${at}`).concat("b0");
  await Promise.all(uids.map((uid) => a.directory.login(sessionOn(a, uid))));
  const acl = (...rules: readonly string[]) => raw.call("ACL", "SETUSER", "default", ...rules);
  await acl("resetkeys", "~*:{u:a*", "~*:{all}*"); // every user except the last one
  t.teardown(() => acl("allkeys"));
  await raw.call("CONFIG", "RESETSTAT");
  /** Returns the number of HGET calls, except those of heartbeats (two calls per ZADD). */
  const reads = async () => {
    const stats = await raw.info("commandstats");
    return commandCallsIn(stats, "hget") - 2 * commandCallsIn(stats, "zadd");
  };
  a.topics.resubscribed(uids);
  await until(async () => (await reads()) > 0);
  await new Promise((resolve) => setTimeout(resolve, 5 * HEARTBEAT_MS)); // the confirmation is retried
  const before = await reads();
  t.ok(before < 2 * uids.length, `each session is read at most twice: ${before} reads`);
  await acl("allkeys");
  await until(async () => (await reads()) >= 2 * uids.length);
  await new Promise((resolve) => setTimeout(resolve, 5 * HEARTBEAT_MS));
  // A denied read makes the node check its rights. Afterwards the node confirms all sessions again.
  const after = await reads();
  t.ok(after <= 4 * uids.length, `each session is confirmed at most twice: ${after} reads`);
  t.same(endedSessions(a), []);
});

t.test(
  "sessions with a lost subscription to their user's topic do not delay the checks of other sessions",
  async (t) => {
    const [a] = (await startNodes(t, 1, { recheckMs: 1e9 })) as [TestNode];
    const [judged, waiting] = [sessionOn(a, "u"), sessionOn(a, "v")];
    for (const session of [judged, waiting]) await a.directory.login(session);
    await a.cluster.listen("u:u");
    const topicsBack: (() => void)[] = [];
    a.topics.onRecovery = () =>
      new Promise((resolve) => {
        topicsBack.push(resolve);
      });
    await raw.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes");
    await until(() => topicsBack.length > 0); // Redis was unreachable, so all sessions must be confirmed
    await loseSessions(a, "v");
    await putToken(a, "u", "another");
    await a.cluster.announce([{ kind: "credential", uid: "u" }]);
    await until(() => endedSessions(a).length > 0);
    t.same(endedSessions(a), [`${judged.sessionId} token_changed`]);
    t.same(await sessionsOf(a.store, "v"), [], "the other session still waits");
    for (const resume of topicsBack) resume();
    await until(async () => (await sessionsOf(a.store, "v")).length > 0);
    t.same(await sessionsOf(a.store, "v"), [waiting]);
  },
);

const SECONDARY = {
  uid: "u",
  flag: 0,
  level: SECONDARY_DEVICE,
  token: "a token",
} as const;

/** Logs the secondary device in on the node. */
async function loginSecondary(node: TestNode): Promise<SessionRecord> {
  const tokenHash = hashToken(SECONDARY.token);
  const session = sessionOn(node, SECONDARY.uid, {
    ...{ level: SECONDARY.level, tokenTag: tokenTag(tokenHash) },
  });
  await node.directory.login(session, { tokenHash });
  return session;
}

t.test(
  "a secondary session that was logged out while its node was disconnected is ended",
  async (t) => {
    const [a, b] = (await startNodes(t, 2)) as [TestNode, TestNode];
    const users = createUsers({ ...b, publisher: b.cluster });
    await users.setToken(SECONDARY);
    const session = await loginSecondary(a); // node a has not subscribed
    await users.quitDevice("u", [0]);
    await users.setToken(SECONDARY);
    a.topics.resubscribed(["u"]);
    await until(() => endedSessions(a).length === 1);
    t.same(endedSessions(a), [`${session.sessionId} logged_out`]);
    t.notOk(await isOnline(b, "u"));
  },
);

t.test("a secondary session is ended if it was logged out while its node was dead", async (t) => {
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
  await until(() => endedSessions(a).length === 1);
  t.same(endedSessions(a), [`${session.sessionId} logged_out`]);
  t.notOk(await isOnline(b, "u"));
});

// The test reads keys because no port shows how many ends Redis stores.
t.test("the last 100 ended secondary sessions of a user are stored for a day", async (t) => {
  const [a] = (await startNodes(t, 1)) as [TestNode];
  const key = a.link.keys.user("ended", "u");
  const kind = { level: SECONDARY_DEVICE } as const;
  const sessions = Array.from({ length: 103 }, () => sessionOn(a, "u", kind));
  for (const session of sessions) await a.directory.login(session);
  for (const session of sessions) await a.store.endSession(session, "logged_out");
  t.same(
    new Set(await raw.hkeys(key)),
    new Set(sessions.slice(3).map(({ sessionId }) => sessionId)),
    "the newest 100 are stored",
  );
  const days = (await raw.pttl(key)) / 86_400_000;
  t.ok(days > 0.9 && days <= 1, `they expire in ${days} days`);
  for (const session of sessions) await a.directory.remove(session);
  t.equal(await raw.exists(key), 0, "no ended session is stored after its node has removed it");
});
