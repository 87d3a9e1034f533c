// Who may open a session, and whom it ends.

import {
  type DeviceLevel,
  MAIN_DEVICE,
  SECONDARY_DEVICE,
  type SessionRecord,
  SYSTEM_UID,
} from "../../src/broker/model.ts";
import { createSessions, type Login, type Sessions } from "../../src/broker/sessions.ts";
import { sessionsOf } from "../contract/cluster-fixture.ts";
import { t } from "../support/suite.ts";
import { startNode, type TestNode } from "./node.ts";

let opened = 0;

function login(kind: Partial<Login> = {}): Login {
  opened += 1;
  return {
    sessionId: `s${opened}`,
    nodeId: "n1",
    uid: "alice",
    token: "right",
    flag: 0,
    deviceId: "",
    level: undefined,
    continues: "",
    ...kind,
  };
}

/** The session of a login that is not refused. */
async function open(sessions: Sessions, kind: Partial<Login> = {}): Promise<SessionRecord> {
  const opened = await sessions.open(login(kind));
  if (opened.kind === "ended") throw new Error(opened.reason);
  return opened.record;
}

/** The sessions that were told to end, in order. */
const endings = ({ events }: TestNode) => events.filter(({ kind }) => kind === "end_session");

/** A node on which alice has the token `right` on her app. */
async function nodeOfAlice(
  t: Parameters<typeof startNode>[0],
  level: DeviceLevel = MAIN_DEVICE,
): Promise<TestNode> {
  const node = await startNode(t);
  await node.users.setToken({ uid: "alice", token: "right", flag: 0, level });
  return node;
}

t.test("uid, flag and token must match what was registered", async (t) => {
  const { sessions, store } = await nodeOfAlice(t);
  for (const wrong of [{ token: "wrong" }, { token: "" }, { flag: 1 }, { uid: "bob" }] as const)
    await t.rejects(sessions.open(login(wrong)), { code: "unauthorized" });
  t.same(await sessionsOf(store, "alice"), []);
  const record = await open(sessions);
  t.match(record, { sessionId: `s${opened}`, uid: "alice", flag: 0 });
  t.same(await sessionsOf(store, "alice"), [record]);
});

t.test("the registered level counts, not the claimed one", async (t) => {
  const { sessions } = await nodeOfAlice(t, SECONDARY_DEVICE);
  const record = await open(sessions, { level: MAIN_DEVICE });
  t.equal(record.level, SECONDARY_DEVICE);
});

t.test("without authentication the claimed level counts", async (t) => {
  const { openSessions } = await startNode(t);
  const levelOf = async (level: DeviceLevel | undefined) =>
    (await open(openSessions, { token: "", level })).level;
  t.equal(await levelOf(MAIN_DEVICE), MAIN_DEVICE);
  t.equal(await levelOf(undefined), SECONDARY_DEVICE);
});

t.test("a logged out device's token opens nothing", async (t) => {
  const { sessions, users } = await nodeOfAlice(t);
  await users.quitDevice("alice", [0]);
  for (const token of ["right", ""])
    await t.rejects(sessions.open(login({ token })), { code: "unauthorized" });
});

t.test("nobody connects as the system, or under no id", async (t) => {
  const { sessions, openSessions } = await startNode(t);
  for (const one of [sessions, openSessions]) {
    await t.rejects(one.open(login({ uid: SYSTEM_UID })), {
      code: "reserved_uid",
    });
    for (const uid of ["", "a@b", "x".repeat(129)])
      await t.rejects(one.open(login({ uid })), { code: "bad_id" });
    await t.rejects(one.open(login({ deviceId: "d\n" })), { code: "bad_id" });
  }
});

t.test("a main kicks the main before it, on a named device or not", async (t) => {
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
});

t.test("the same device is replaced, not kicked", async (t) => {
  for (const level of [MAIN_DEVICE, SECONDARY_DEVICE] as const) {
    const node = await nodeOfAlice(t, level);
    const { sessions } = node;
    const first = await open(sessions, { deviceId: "d1" });
    await sessions.open(login({ deviceId: "d1" }));
    const ended = { sessionId: first.sessionId, reason: "replaced" };
    t.match(endings(node), [ended]);
    t.equal(endings(node).length, 1);
  }
});

t.test("secondary sessions stay", async (t) => {
  const node = await nodeOfAlice(t, SECONDARY_DEVICE);
  const { sessions, store } = node;
  await sessions.open(login());
  await sessions.open(login());
  t.same(endings(node), []);
  t.equal((await sessionsOf(store, "alice")).length, 2);
});

t.test("of mains that log in at once exactly one survives", async (t) => {
  const node = await nodeOfAlice(t);
  const { sessions, store } = node;
  const logins = Array.from({ length: 20 }, () => sessions.open(login()));
  await Promise.all(logins);
  t.equal((await sessionsOf(store, "alice")).length, 1);
  t.equal(endings(node).length, 19);
});

t.test("a token that changes while its session opens opens nothing", async (t) => {
  const node = await nodeOfAlice(t);
  const { users, store, directory } = node;
  const sessions = createSessions(
    {
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
    "token",
  );
  await t.rejects(sessions.open(login()), { code: "unauthorized" });
  t.same(await sessionsOf(store, "alice"), []);
});

t.test("any race of logins and a token change leaves no session of the old token", async (t) => {
  const node = await nodeOfAlice(t);
  const { sessions, users, store } = node;
  for (let round = 0; round < 20; round++) {
    const token = `t${round}`;
    const device = { uid: "alice", flag: 0, level: MAIN_DEVICE } as const;
    await users.setToken({ ...device, token });
    const opening = Array.from({ length: 5 }, async (_, at) => {
      for (let turn = 0; turn < at; turn++) await Promise.resolve();
      return sessions.open(login({ token }));
    });
    await Promise.allSettled([...opening, users.setToken({ ...device, token: "changed" })]);
    t.same(await sessionsOf(store, "alice"), [], `round ${round}`);
  }
});

t.test("closing takes the session out, twice is harmless", async (t) => {
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
  "who watches a user hears of each opening and closing, when the store shows it",
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
    await sessionsOf(store, "alice"); // all that was asked for is answered
    t.same(seen, [
      ["alice", 1],
      ["alice", 2],
      ["alice", 1],
      ["alice", 0],
    ]);
    await t.rejects(sessions.open(login({ token: "wrong" })));
    await sessionsOf(store, "alice");
    t.equal(seen.length, 4, "a refused login changes nothing");
  },
);
