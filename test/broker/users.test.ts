// Registering tokens, logging devices out, and the online status of users.

import { BrokerError } from "../../src/broker/errors.ts";
import {
  JWT_TAG,
  MAIN_DEVICE,
  SECONDARY_DEVICE,
  type SessionRecord,
  SYSTEM_UID,
} from "../../src/broker/model.ts";
import type { ClusterEvent } from "../../src/broker/ports.ts";
import { hashToken, tokenTag } from "../../src/broker/tokens.ts";
import { createUsers } from "../../src/broker/users.ts";
import { sessionsOf } from "../contract/cluster-fixture.ts";
import { brittleDatabase } from "../store/embedded/brittle-database.ts";
import { t } from "../support/suite.ts";
import { startNode as start } from "./node.ts";

/** Starts a node whose events do not include presence. */
async function startNode(t: Parameters<typeof start>[0]) {
  const node = await start(t);
  const events: ClusterEvent[] = [];
  node.cluster.onEvent((event) => {
    if (event.kind !== "presence") events.push(event);
  });
  return { ...node, events };
}

const MAIN = { flag: 0, level: MAIN_DEVICE } as const;
const SECONDARY = { flag: 0, level: SECONDARY_DEVICE } as const;

/** Returns the record of a main session of alice, with the given changes. */
function record(sessionId: string, changes: Partial<SessionRecord> = {}): SessionRecord {
  return {
    sessionId,
    nodeId: "n1",
    uid: "alice",
    deviceId: "",
    tokenTag: "",
    ...MAIN,
    ...changes,
  };
}

const ended = (sessionId: string, reason: string) => ({
  kind: "end_session",
  uid: "alice",
  sessionId,
  reason,
});

/** The event that asks the nodes with sessions of alice to confirm them. */
const CHANGED = { kind: "credential", uid: "alice" };

t.test("each device flag of a user has its own stored token hash", async (t) => {
  const { users, store } = await startNode(t);
  await users.setToken({ uid: "alice", token: "one", ...MAIN });
  await users.setToken({ uid: "alice", token: "two", ...SECONDARY, flag: 1 });
  t.match(await store.device("alice", 0), { level: MAIN_DEVICE });
  const device = await store.device("alice", 1);
  t.equal(device?.level, SECONDARY_DEVICE);
  t.same(Buffer.from(device?.tokenHash ?? []), hashToken("two"));
  t.equal(await store.device("alice", 2), undefined);
});

t.test("a changed token ends only the main sessions of its device flag", async (t) => {
  const { users, events, store, directory } = await startNode(t);
  await users.setToken({ uid: "alice", token: "one", ...MAIN });
  for (const session of [
    record("main"),
    record("secondary", SECONDARY),
    record("other-flag", { flag: 1 }),
    record("other-user", { uid: "bob" }),
  ])
    await directory.login(session);
  await users.setToken({ uid: "alice", token: "one", ...MAIN });
  t.same(events.splice(0), [CHANGED], "an unchanged token ends no session");
  await users.setToken({ uid: "alice", token: "two", ...MAIN });
  t.same(events, [CHANGED, ended("main", "token_changed")]);
  const remaining = await sessionsOf(store, "alice");
  t.same(
    remaining.map(({ sessionId }) => sessionId),
    ["secondary", "other-flag"],
  );
});

t.test(
  "registering a token again ends the sessions that an earlier failed call left open with an older token",
  async (t) => {
    const { users, events, directory } = await startNode(t);
    await users.setToken({ uid: "alice", token: "two", ...MAIN });
    const remaining = record("remaining", { tokenTag: tokenTag(hashToken("one")) });
    await directory.login(remaining);
    await users.setToken({ uid: "alice", token: "two", ...MAIN });
    t.same(events, [CHANGED, ended("remaining", "token_changed")]);
  },
);

t.test("a token change does not end a session that already has the new token", async (t) => {
  const { users, events, directory } = await startNode(t);
  await users.setToken({ uid: "alice", token: "one", ...MAIN });
  const early = record("early", { tokenTag: tokenTag(hashToken("two")) });
  await directory.login(early);
  await users.setToken({ uid: "alice", token: "two", ...MAIN });
  t.same(events, [CHANGED]);
});

t.test("the first token of a device ends no session", async (t) => {
  const { users, events, directory } = await startNode(t);
  await directory.login(record("main"));
  await users.setToken({ uid: "alice", token: "one", ...MAIN });
  t.same(events, []);
});

t.test("a changed token of a secondary device ends no session", async (t) => {
  const { users, events, directory } = await startNode(t);
  await users.setToken({ uid: "alice", token: "one", ...SECONDARY });
  await directory.login(record("secondary", SECONDARY));
  await users.setToken({ uid: "alice", token: "two", ...SECONDARY });
  t.same(events, [CHANGED]);
});

t.test(
  "the main sessions of a device that becomes secondary with a new token are ended",
  async (t) => {
    const { users, events, directory } = await startNode(t);
    await users.setToken({ uid: "alice", token: "one", ...MAIN });
    await directory.login(record("main"));
    await users.setToken({ uid: "alice", token: "two", ...SECONDARY });
    t.same(events, [CHANGED, ended("main", "token_changed")]);
  },
);

t.test("logging out a device invalidates its token and ends its sessions", async (t) => {
  const { users, events, store, directory } = await startNode(t);
  await users.setToken({ uid: "alice", token: "one", ...MAIN });
  for (const session of [
    record("app"),
    record("app-2", SECONDARY),
    record("web", { flag: 1 }),
    record("desktop", { flag: 2 }),
  ])
    await directory.login(session);
  await users.quitDevice("alice", [0, 2]);
  const endedIds = ["app", "app-2", "desktop"];
  t.same(events, [...endedIds.map((id) => ended(id, "logged_out")), CHANGED]);
  const device = await store.device("alice", 0);
  t.equal(device?.level, MAIN_DEVICE, "the device keeps its level");
  t.equal(device?.tokenHash.length, 0);
  t.equal((await store.device("alice", 2))?.tokenHash.length, 0);
  t.equal(await store.device("alice", 1), undefined, "devices of other flags are not changed");
});

t.test("no device can be registered or logged out for the uid of the system", async (t) => {
  const { users } = await startNode(t);
  const system = { uid: SYSTEM_UID, token: "one", ...MAIN };
  await t.rejects(users.setToken(system), { code: "reserved_uid" });
  await t.rejects(users.setToken({ ...system, uid: "a@b" }), {
    code: "bad_id",
  });
  await t.rejects(users.quitDevice(SYSTEM_UID, [0]), { code: "reserved_uid" });
  await t.rejects(users.quitDevice("", [0]), { code: "bad_id" });
});

t.test(
  "the online status has a record for each uid of the request, repeated uids included, in the same order",
  async (t) => {
    const { users, directory } = await startNode(t);
    await directory.login(record("web", { flag: 1 }));
    t.same(await users.onlineStatus(["bob", "alice", "bob"]), [
      { uid: "bob", online: false, flag: 0 },
      { uid: "alice", online: true, flag: 1 },
      { uid: "bob", online: false, flag: 0 },
    ]);
    t.same(await users.onlineStatus([]), []);
  },
);

t.test("a query for the online status of an invalid uid is refused", async (t) => {
  const { users } = await startNode(t);
  await t.rejects(users.onlineStatus(["alice", "a#b"]), { code: "bad_id" });
});

t.test(
  "a token change, logout or ban whose notification is delayed ends no session that logged in validly in the meantime",
  async (t) => {
    const { store, cluster, events, directory } = await startNode(t);
    let hold: Promise<void> | undefined;
    const users = createUsers({
      ...{ store, directory },
      publisher: {
        async announce(events) {
          const held = hold;
          hold = undefined;
          await held;
          await cluster.announce(events);
        },
      },
    });
    await users.setToken({ uid: "alice", token: "one", ...MAIN });
    const later = tokenTag(hashToken("later"));
    const registerToken = () => users.setToken({ uid: "alice", token: "later", ...MAIN });
    const cases = [
      [() => users.setToken({ uid: "alice", token: "two", ...MAIN }), registerToken, later],
      [() => users.quitDevice("alice", [0]), registerToken, later],
      [() => users.quitDevice("alice", [0]), async () => {}, JWT_TAG],
      [() => users.setBan("alice", true), () => users.setBan("alice", false), later],
    ] as const;
    for (const [startSlowCall, allow, tag] of cases) {
      let release = () => {};
      hold = new Promise((resolve) => {
        release = resolve;
      });
      const slowCall = startSlowCall();
      while (hold !== undefined) await new Promise(setImmediate);
      await allow();
      await directory.login(record("session", { tokenTag: tag }));
      events.length = 0;
      release();
      await slowCall;
      t.same(events, [CHANGED]);
    }
  },
);

t.test(
  "a token change or a logout fails if its notification cannot be sent, and repeating the logout completes the logout",
  async (t) => {
    const { store, cluster, events, directory } = await startNode(t);
    let isUnreachable = true;
    const users = createUsers({
      ...{ store, directory },
      publisher: {
        async announce(events) {
          if (isUnreachable) throw new BrokerError("unavailable");
          await cluster.announce(events);
        },
      },
    });
    await users.setToken({ uid: "alice", token: "one", ...MAIN });
    await directory.login(record("main"));
    const calls = [
      () => users.setToken({ uid: "alice", token: "two", ...MAIN }),
      () => users.quitDevice("alice", [0]),
    ];
    for (const call of calls) await t.rejects(call(), { code: "unavailable" });
    t.same(events, [ended("main", "logged_out")]);
    isUnreachable = false;
    await users.quitDevice("alice", [0]);
    t.same(events, [ended("main", "logged_out"), CHANGED]);
  },
);

t.test(
  "a logout, a new token or a ban that cannot be flushed to disk still ends the session, and the call is rejected",
  async (t) => {
    for (const reason of ["logged_out", "token_changed", "banned"]) {
      const { fail, databaseWrites } = brittleDatabase();
      const options = { databaseWrites, durability: "disk", onError() {} } as const;
      const { users, directory, events } = await start(t, options);
      await users.setToken({ uid: "alice", token: "one", ...MAIN });
      await directory.login(record("s", { tokenTag: tokenTag(hashToken("one")) }));
      fail.flush = true;
      const change = {
        logged_out: () => users.quitDevice("alice", [0]),
        token_changed: () => users.setToken({ uid: "alice", token: "two", ...MAIN }),
        banned: () => users.setBan("alice", true),
      }[reason];
      await t.rejects(change?.() ?? Promise.resolve(), { code: "unavailable" }, reason);
      while (!events.some(({ kind }) => kind === "end_session"))
        await new Promise((resolve) => setTimeout(resolve, 5));
      t.match(
        events.find(({ kind }) => kind === "end_session"),
        ended("s", reason),
      );
      fail.flush = false;
    }
  },
);

t.test(
  "a logout that fails halfway ends the sessions of the devices that it logged out",
  async (t) => {
    const { store, directory, events, cluster, users } = await start(t);
    await users.setToken({ uid: "alice", token: "one", ...MAIN });
    await directory.login(record("s", { tokenTag: tokenTag(hashToken("one")) }));
    const device: typeof store.device = async (uid, flag) => {
      if (flag !== 0) throw new BrokerError("unavailable");
      return store.device(uid, flag);
    };
    const failing = Object.assign(Object.create(store), { device });
    const { quitDevice } = createUsers({ store: failing, directory, publisher: cluster });
    await t.rejects(quitDevice("alice", [0, 1]), { code: "unavailable" });
    while (!events.some(({ kind }) => kind === "end_session"))
      await new Promise((resolve) => setTimeout(resolve, 5));
    t.match(
      events.find(({ kind }) => kind === "end_session"),
      ended("s", "logged_out"),
    );
  },
);
