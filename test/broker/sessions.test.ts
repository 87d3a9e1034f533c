// Tests which sessions may be opened, and which other sessions they end.

import { createCredentials } from "../../src/broker/credentials.ts";
import { BrokerError } from "../../src/broker/errors.ts";
import {
  type DeviceLevel,
  MAIN_DEVICE,
  SECONDARY_DEVICE,
  type SessionRecord,
  SYSTEM_UID,
} from "../../src/broker/model.ts";
import { SessionDirectory } from "../../src/broker/session-directory.ts";
import { createSessions, type Login, type Sessions } from "../../src/broker/sessions.ts";
import { sessionsOf } from "../contract/cluster-fixture.ts";
import { t } from "../support/suite.ts";
import { startNode, type TestNode } from "./node.ts";

let loginCount = 0;

/** Returns a login of alice with a new session id, with the given changes. */
function login(changes: Partial<Login> = {}): Login {
  loginCount += 1;
  return {
    sessionId: `s${loginCount}`,
    nodeId: "n1",
    uid: "alice",
    token: "right",
    flag: 0,
    deviceId: "",
    level: undefined,
    sessionName: "",
    ...changes,
  };
}

/** Opens a session. Throws if the store refuses it. */
async function open(sessions: Sessions, changes: Partial<Login> = {}): Promise<SessionRecord> {
  const result = await sessions.logIn(login(changes));
  if (result.kind === "refused") throw new Error(result.reason);
  return result.record;
}

/** Returns the published `end_session` events, in order. */
const endings = ({ events }: TestNode) => events.filter(({ kind }) => kind === "end_session");

/** Starts a node on which the app of alice has the token `right`. */
async function nodeOfAlice(
  t: Parameters<typeof startNode>[0],
  level: DeviceLevel = MAIN_DEVICE,
): Promise<TestNode> {
  const node = await startNode(t);
  await node.users.setToken({ uid: "alice", token: "right", flag: 0, level });
  return node;
}

t.test("a session opens only with the registered uid, flag and token", async (t) => {
  const { sessions, store } = await nodeOfAlice(t);
  for (const changes of [{ token: "wrong" }, { token: "" }, { flag: 1 }, { uid: "bob" }] as const)
    await t.rejects(sessions.logIn(login(changes)), { code: "unauthorized" });
  t.same(await sessionsOf(store, "alice"), []);
  const record = await open(sessions);
  t.match(record, { sessionId: `s${loginCount}`, uid: "alice", flag: 0 });
  t.same(await sessionsOf(store, "alice"), [record]);
});

t.test(
  "a session has the registered device level, not the level that the client chose",
  async (t) => {
    const { sessions } = await nodeOfAlice(t, SECONDARY_DEVICE);
    const record = await open(sessions, { level: MAIN_DEVICE });
    t.equal(record.level, SECONDARY_DEVICE);
  },
);

t.test(
  "a session has the device level that the client chose if authentication is off",
  async (t) => {
    const { openSessions } = await startNode(t);
    const levelOf = async (level: DeviceLevel | undefined) =>
      (await open(openSessions, { token: "", level })).level;
    t.equal(await levelOf(MAIN_DEVICE), MAIN_DEVICE);
    t.equal(await levelOf(undefined), SECONDARY_DEVICE);
  },
);

t.test("the token of a logged-out device cannot open a session", async (t) => {
  const { sessions, users } = await nodeOfAlice(t);
  await users.quitDevice("alice", [0]);
  for (const token of ["right", ""])
    await t.rejects(sessions.logIn(login({ token })), { code: "unauthorized" });
});

t.test("a session cannot be opened with the system uid or an invalid id", async (t) => {
  const { sessions, openSessions } = await startNode(t);
  for (const target of [sessions, openSessions]) {
    await t.rejects(target.logIn(login({ uid: SYSTEM_UID })), {
      code: "reserved_uid",
    });
    for (const uid of ["", "a@b", "x".repeat(129)])
      await t.rejects(target.logIn(login({ uid })), { code: "bad_id" });
    await t.rejects(target.logIn(login({ deviceId: "d\n" })), { code: "bad_id" });
  }
});

t.test(
  "a new main session kicks the earlier main session of the device flag, with or without a device id",
  async (t) => {
    const node = await nodeOfAlice(t);
    const { sessions, store } = node;
    const first = await open(sessions, { deviceId: "d1" });
    const second = await open(sessions, { deviceId: "d2" });
    const third = await open(sessions);
    const kicked = ({ sessionId }: { sessionId: string }) => ({
      kind: "end_session",
      uid: "alice",
      sessionId,
      reason: "kicked",
    });
    t.same(endings(node), [kicked(first), kicked(second)]);
    t.same(await sessionsOf(store, "alice"), [third]);
  },
);

t.test("a session replaces an earlier session of the same device", async (t) => {
  for (const level of [MAIN_DEVICE, SECONDARY_DEVICE] as const) {
    const node = await nodeOfAlice(t, level);
    const { sessions } = node;
    const first = await open(sessions, { deviceId: "d1" });
    await sessions.logIn(login({ deviceId: "d1" }));
    const ended = { sessionId: first.sessionId, reason: "replaced" };
    t.match(endings(node), [ended]);
    t.equal(endings(node).length, 1);
  }
});

t.test("a secondary session without a device id ends no other secondary session", async (t) => {
  const node = await nodeOfAlice(t, SECONDARY_DEVICE);
  const { sessions, store } = node;
  await sessions.logIn(login());
  await sessions.logIn(login());
  t.same(endings(node), []);
  t.equal((await sessionsOf(store, "alice")).length, 2);
});

t.test("exactly one session remains after concurrent logins of a main device", async (t) => {
  const node = await nodeOfAlice(t);
  const { sessions, store } = node;
  const logins = Array.from({ length: 20 }, () => sessions.logIn(login()));
  await Promise.all(logins);
  t.equal((await sessionsOf(store, "alice")).length, 1);
  t.equal(endings(node).length, 19);
});

t.test("a session does not open if its token changes during the login", async (t) => {
  const node = await nodeOfAlice(t);
  const { users, store, directory } = node;
  const sessions = createSessions({
    directory: {
      async login(session, terms) {
        await users.setToken({
          uid: "alice",
          token: "new",
          flag: 0,
          level: MAIN_DEVICE,
        });
        return directory.login(session, terms);
      },
    },
    ...{ store, credentials: createCredentials("token") },
  });
  await t.rejects(sessions.logIn(login()), { code: "unauthorized" });
  t.same(await sessionsOf(store, "alice"), []);
});

t.test(
  "no session with the old token remains after logins that race with a token change",
  async (t) => {
    const node = await nodeOfAlice(t);
    const { sessions, users, store } = node;
    for (let round = 0; round < 20; round++) {
      const token = `t${round}`;
      const device = { uid: "alice", flag: 0, level: MAIN_DEVICE } as const;
      await users.setToken({ ...device, token });
      const logins = Array.from({ length: 5 }, async (_, at) => {
        for (let turn = 0; turn < at; turn++) await Promise.resolve();
        return sessions.logIn(login({ token }));
      });
      await Promise.allSettled([...logins, users.setToken({ ...device, token: "changed" })]);
      t.same(await sessionsOf(store, "alice"), [], `no session remains in round ${round}`);
    }
  },
);

t.test("a closed session is removed, and closing it again has no effect", async (t) => {
  const { sessions, store, directory } = await nodeOfAlice(t);
  const first = await open(sessions, { deviceId: "d1" });
  const second = await open(sessions, { deviceId: "d1" });
  await directory.remove(first);
  t.same(await sessionsOf(store, "alice"), [second]);
  await directory.remove(second);
  await directory.remove(second);
  t.same(await sessionsOf(store, "alice"), []);
});

t.test(
  "while the store fails, each pending session removal is retried at most once a second",
  async (t) => {
    const { store, cluster, sessions } = await nodeOfAlice(t, SECONDARY_DEVICE);
    let isFailing = true;
    let calls = 0;
    const removeSession: typeof store.removeSession = async (...request) => {
      calls += 1;
      if (isFailing) throw new BrokerError("unavailable");
      await store.removeSession(...request);
    };
    const directory = new SessionDirectory({
      store: Object.assign(Object.create(store), { removeSession }),
      ...{ cluster, onError() {} },
    });
    const records: SessionRecord[] = [];
    for (let at = 0; at < 20; at++) records.push(await open(sessions));
    for (const record of records)
      await t.rejects(directory.remove(record), { code: "unavailable" });
    const startMs = performance.now();
    await new Promise((resolve) => setTimeout(resolve, 2500));
    // Each session was removed once by its call, and then at most once a second.
    const attempts = 2 + Math.floor((performance.now() - startMs) / 1000);
    t.ok(calls <= 20 + 20 * attempts, `${calls} calls`);
    isFailing = false;
    while ((await sessionsOf(store, "alice")).length > 0)
      await new Promise((resolve) => setTimeout(resolve, 20));
  },
);

t.test(
  "watchers are notified of each opened and closed session after the store has changed",
  async (t) => {
    const { sessions, cluster, users, store, directory } = await nodeOfAlice(t);
    const seen: (readonly [string, number])[] = [];
    cluster.onEvent((event) => {
      if (event.kind !== "presence") return;
      void sessionsOf(store, event.uid).then((open) => seen.push([event.uid, open.length]));
    });
    const device = { uid: "alice", flag: 1, level: SECONDARY_DEVICE } as const;
    await users.setToken({ ...device, token: "web" });
    const phone = await open(sessions);
    const web = await open(sessions, { flag: 1, token: "web" });
    await directory.remove(phone);
    await directory.remove(phone);
    await directory.remove(web);
    await sessionsOf(store, "alice"); // the earlier reads are finished
    t.same(seen, [
      ["alice", 1],
      ["alice", 2],
      ["alice", 1],
      ["alice", 0],
    ]);
    await t.rejects(sessions.logIn(login({ token: "wrong" })));
    await sessionsOf(store, "alice");
    t.equal(seen.length, 4, "a refused login causes no notification");
  },
);
