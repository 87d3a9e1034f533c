// The embedded store passes the session contract with a cluster of one node. Further tests cover
// the order of logins, a clock that is set back, a full disk, and a publisher that throws.

import { join } from "node:path";
import type { SessionRecord } from "../../../src/broker/model.ts";
import { sessionOf, sessionsOf } from "../../contract/cluster-fixture.ts";
import { sessionContract } from "../../contract/sessions.ts";
import { codeOf, draftOf, group } from "../../contract/store-fixture.ts";
import { mountSmallDisk } from "../../support/small-disk.ts";
import { t } from "../../support/suite.ts";
import { brittleDatabase } from "./brittle-database.ts";
import { openStore, testFolder } from "./folder.ts";
import { startSingleNode } from "./single-node.ts";

t.test("the embedded store passes the session contract", async (t) => {
  const node = await startSingleNode(t);
  sessionContract(t, { name: "embedded", open: async () => node });
});

t.test("a node counts the sessions that it serves", async (t) => {
  const { cluster, directory } = await startSingleNode(t);
  const kind = { level: 0 } as const;
  const first = sessionOf(cluster, "u", kind);
  const [second, third] = [1, 2].map(() => sessionOf(cluster, "u", { ...kind, deviceId: "d" })) as [
    SessionRecord,
    SessionRecord,
  ];
  for (const session of [first, first, second]) await directory.login(session);
  t.equal(directory.size, 2);
  await directory.remove(first);
  await directory.remove(first);
  await directory.remove(third);
  t.equal(directory.size, 1);
});

t.test("logins in the same millisecond get increasing order numbers", async (t) => {
  const { store } = await startSingleNode(t, { clock: () => 1000 });
  const orders: number[] = [];
  for (const sessionId of ["s1", "s2", "s3"]) {
    const session: SessionRecord = {
      ...{ sessionId, nodeId: "n1", uid: "u", flag: 0, level: 0 },
      ...{ deviceId: "", tokenTag: "" },
    };
    const login = await store.login(session, "n1:1");
    if (login.kind !== "entered") throw new Error(login.kind);
    orders.push(login.order, login.since);
    await store.removeSession(session);
  }
  const [first, , second, , third] = orders as [number, number, number, number, number];
  t.ok(first < second && second < third, `the orders of the logins increase: ${orders}`);
});

t.test("a clock that is set back restarts the offline delay of users who left", async (t) => {
  const time = { nowMs: 10_000_000 };
  const { store } = await startSingleNode(t, { clock: () => time.nowMs });
  await store.switchFeed(true);
  for (const uid of ["ann", "bob"]) {
    const session: SessionRecord = {
      ...{ sessionId: uid, nodeId: "n1", uid, flag: 0, level: 0 },
      ...{ deviceId: "", tokenTag: "" },
    };
    await store.login(session, "n1:1");
    await store.removeSession(session);
  }
  time.nowMs -= 3_600_000;
  const takeLeft = () =>
    store.takeOnline({ limit: 9, turnMs: 1, leftMs: time.nowMs - 5000, checkedMs: 0 });
  t.strictSame(await takeLeft(), [], "the delay begins when the store sees the new time");
  time.nowMs += 5000;
  t.strictSame(await takeLeft(), ["ann", "bob"]);
});

t.test("a failed database write does not prevent a main device from reconnecting", async (t) => {
  const { fail, databaseWrites } = brittleDatabase();
  const { directory, store } = await startSingleNode(t, { databaseWrites });
  const session = (sessionId: string): SessionRecord => ({
    ...{ sessionId, nodeId: "n1", uid: "u", flag: 0, level: 1 },
    ...{ deviceId: "phone", tokenTag: "" },
  });
  const login = await directory.login(session("s1"), {
    claim: { label: "name" },
  });
  if (login.kind !== "entered") throw new Error("the login was not entered");
  const reconnect = { claim: { order: login.order } };
  fail.commit = 1;
  t.match(await directory.login(session("s2"), reconnect), {
    ...{ kind: "entered", order: login.order },
  });
  t.equal(fail.commit, 0, "the write was attempted and failed");
  fail.commit = 1;
  await t.rejects(
    directory.login({ ...session("s3"), deviceId: "other" }),
    { code: "unavailable" },
    "a login waits for the disk",
  );
  t.match(await sessionsOf(store, "u"), [{ sessionId: "s2" }]);
});

t.test("a main device's session can be ended while the disk is full", async (t) => {
  const disk = await mountSmallDisk(t, 32);
  const path = join(disk.hostPath, "store");
  const { directory, store, events } = await startSingleNode(t, { onError() {} }, path);
  const session: SessionRecord = {
    ...{ sessionId: "s1", nodeId: "n1", uid: "u", flag: 0, level: 1 },
    ...{ deviceId: "phone", tokenTag: "" },
  };
  await directory.login(session);
  const payload = new Uint8Array(1_000_000);
  while ((await codeOf(store.append(draftOf({ payload })))) !== "disk_full");
  t.equal(await codeOf(store.createChannel(group("g"), [])), "disk_full");
  await store.endSession(session, "kicked");
  t.same(await sessionsOf(store, "u"), []);
  t.match(events.at(-1), { kind: "end_session", sessionId: "s1", reason: "kicked" });
  t.equal(await codeOf(store.createChannel(group("g"), [])), "disk_full", "it is still full");
});

t.test(
  "`endSession` ends a session even if the disk cannot be flushed, and reports the failure",
  async (t) => {
    const { fail, databaseWrites } = brittleDatabase();
    const { directory, store, events } = await startSingleNode(t, {
      ...{ databaseWrites, durability: "disk", onError() {} },
    });
    for (const level of [0, 1] as const) {
      const session: SessionRecord = {
        ...{ sessionId: `s${level}`, nodeId: "n1", uid: "u", flag: 0, level },
        ...{ deviceId: "phone", tokenTag: "" },
      };
      await directory.login(session);
      fail.flush = true;
      t.equal(await codeOf(store.endSession(session, "kicked")), "unavailable");
      t.same(await sessionsOf(store, "u"), []);
      const { sessionId } = session;
      t.match(events.at(-1), { kind: "end_session", sessionId, reason: "kicked" });
      fail.flush = false;
      await store.endSession(session, "kicked"); // the caller tries again
    }
  },
);

t.test("an event publisher that throws does not affect logins", async (t) => {
  const problems: string[] = [];
  const published: string[] = [];
  const store = await openStore(t, testFolder(t), {
    onError: (_, what) => void problems.push(what),
    publisher: {
      publish({ kind }) {
        published.push(kind);
        throw new Error("a bug");
      },
    },
  });
  const login = (sessionId: string) =>
    store.login(
      {
        ...{ sessionId, nodeId: "n1", uid: "u", flag: 0, level: 1 },
        ...{ deviceId: sessionId, tokenTag: "" },
      },
      "n1:1",
    );
  t.equal((await login("s1")).kind, "entered");
  t.equal((await login("s2")).kind, "entered", "the second login ends the first one");
  t.match(await store.sessionsOf(["u"]), [[{ session: { sessionId: "s2" } }]]);
  t.same(published, ["presence", "end_session", "presence"], "each event is published once");
  t.equal(problems.length, 3, "each failure is reported");
});
