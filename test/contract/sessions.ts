// The contract of `SessionStore` in broker/ports.ts with that of `Cluster`: who is logged in and
// online, as a suite every store runs beside its cluster. Session ids and uids are made unique per
// case, so that a driver with shared storage may run it against one server.

import type { Test } from "tap";
import type { DeviceFlag, SessionRecord } from "../../src/broker/model.ts";
import { presenceTopic, SECONDARY_DEVICE, userTopic } from "../../src/broker/model.ts";
import {
  type NodeDriver,
  type SessionKind,
  sessionOf,
  sessionsEndedBy,
  sessionsEndedDuring,
  sessionsOf,
  uniqueUid,
} from "./cluster-fixture.ts";
import { continuing } from "./sessions-continuing.ts";
import { credentials } from "./sessions-credentials.ts";
import { kicks } from "./sessions-kicks.ts";

/** Runs the whole contract against the driver. */
export function sessionContract(t: Test, driver: NodeDriver): void {
  t.test(`${driver.name}: logging in`, (t) => loggingIn(t, driver));
  t.test(`${driver.name}: kicks`, (t) => kicks(t, driver));
  t.test(`${driver.name}: credentials`, (t) => credentials(t, driver));
  t.test(`${driver.name}: continuing`, (t) => continuing(t, driver));
  t.test(`${driver.name}: leaving`, (t) => leaving(t, driver));
  t.test(`${driver.name}: presence`, (t) => presence(t, driver));
}

const APP: DeviceFlag = 0;
const WEB: DeviceFlag = 1;
const DESKTOP: DeviceFlag = 2;

const sorted = (sessions: readonly SessionRecord[]): readonly SessionRecord[] =>
  [...sessions].sort((a, b) => (a.sessionId < b.sessionId ? -1 : 1));

const secondary = { level: SECONDARY_DEVICE } as const;

async function loggingIn(t: Test, driver: NodeDriver): Promise<void> {
  const node = await driver.open(t);
  const { cluster, directory, store } = node;

  t.test("users do not touch each other", async (t) => {
    const [one, other] = [uniqueUid(), uniqueUid()];
    await directory.login(sessionOf(cluster, one, { deviceId: "d" }));
    const next = sessionOf(cluster, other, { deviceId: "d" });
    t.same(await sessionsEndedBy(node, next), []);
    t.equal((await sessionsOf(store, one)).length, 1);
  });

  t.test("of mains that log in at once exactly one survives", async (t) => {
    const other = await driver.open(t);
    const uid = uniqueUid();
    const mains = Array.from({ length: 20 }, (_, at) =>
      sessionOf(at % 2 ? cluster : other.cluster, uid, {}),
    );
    const ended = await sessionsEndedDuring(node, uid, () =>
      Promise.all(mains.map((one, at) => (at % 2 ? directory : other.directory).login(one))),
    );
    const left = await sessionsOf(store, uid);
    t.equal(left.length, 1);
    t.equal(ended.length, mains.length - 1, "each of the others once");
    t.same(
      new Set([...ended, ...left.map((one) => [one.sessionId, "kicked"])]),
      new Set(mains.map((one) => [one.sessionId, "kicked"])),
    );
  });
}

async function leaving(t: Test, driver: NodeDriver): Promise<void> {
  const { cluster, directory, store } = await driver.open(t);
  const uid = uniqueUid();
  const first = sessionOf(cluster, uid, {});
  const second = sessionOf(cluster, uid, secondary);

  t.test("takes out that session and no other", async (t) => {
    await directory.login(first);
    await directory.login(second);
    await directory.remove(first);
    t.same(await sessionsOf(store, uid), [second]);
  });

  t.test("is harmless for one that is not in", async (t) => {
    await directory.remove(first);
    await directory.remove(sessionOf(cluster, uniqueUid(), {}));
    t.same(await sessionsOf(store, uid), [second]);
  });

  t.test("of an ended session leaves the one that ended it", async (t) => {
    const next = sessionOf(cluster, uid, { deviceId: "d1" });
    const newer = sessionOf(cluster, uid, { deviceId: "d1" });
    await directory.login(next);
    await directory.login(newer);
    await directory.remove(next);
    t.same(sorted(await sessionsOf(store, uid)), sorted([second, newer]));
  });

  t.test("to end one takes it out and tells, each time", async (t) => {
    const { cluster, directory, store, events } = await driver.open(t);
    const user = uniqueUid();
    const [gone, left] = [{}, secondary].map((kind) => sessionOf(cluster, user, kind)) as [
      SessionRecord,
      SessionRecord,
    ];
    await cluster.listen(userTopic(user));
    for (const one of [gone, left]) await directory.login(one);
    const told = {
      ...{ kind: "end_session", uid: user, sessionId: gone.sessionId },
      reason: "logged_out",
    };
    for (const expected of [[told], [told, told]]) {
      await store.endSession(gone, "logged_out");
      await cluster.barrier();
      const found = events.filter((one) => one.kind === "end_session" && one.uid === user);
      t.same(found, expected);
      t.same(await sessionsOf(store, user), [left]);
    }
    await directory.remove(gone);
    await directory.remove(left);
  });

  t.test("of the last one leaves nothing", async (t) => {
    for (const one of await sessionsOf(store, uid)) await directory.remove(one);
    t.same(await sessionsOf(store, uid), []);
    t.same(await directory.presence([uid]), [{ uid, online: false, flag: 0 }]);
  });
}

async function presence(t: Test, driver: NodeDriver): Promise<void> {
  const { cluster, directory } = await driver.open(t);
  const online = async (kinds: readonly SessionKind[]): Promise<string> => {
    const uid = uniqueUid();
    for (const kind of kinds) await directory.login(sessionOf(cluster, uid, kind));
    return uid;
  };

  const RULES: readonly (readonly [string, readonly SessionKind[], DeviceFlag])[] = [
    ["one session's flag", [{ flag: DESKTOP, ...secondary }], DESKTOP],
    [
      "the main session's flag before a lower one",
      [{ flag: APP, ...secondary }, { flag: DESKTOP }, { flag: WEB, ...secondary }],
      DESKTOP,
    ],
    [
      "without a main the lowest flag",
      [
        { flag: DESKTOP, ...secondary },
        { flag: WEB, ...secondary },
      ],
      WEB,
    ],
    ["of several mains the lowest", [{ flag: DESKTOP }, { flag: WEB }], WEB],
  ];
  for (const [rule, kinds, flag] of RULES)
    t.test(`an online user has ${rule}`, async (t) => {
      const uid = await online(kinds);
      t.same(await directory.presence([uid]), [{ uid, online: true, flag }]);
    });

  t.test("answers in order, duplicates included", async (t) => {
    const on = await online([{ flag: WEB }]);
    const off = uniqueUid();
    const is = { uid: on, online: true, flag: WEB };
    const isNot = { uid: off, online: false, flag: 0 };
    t.same(await directory.presence([off, on, off, on, on]), [isNot, is, isNot, is, is]);
  });

  t.test("is published by each step that changes it", async (t) => {
    const [here, there] = [await driver.open(t), await driver.open(t)];
    const uid = uniqueUid();
    await there.cluster.listen(presenceTopic(uid));
    const session = sessionOf(here.cluster, uid);
    const another = sessionOf(here.cluster, uid, secondary);
    const wrong = { tokenHash: new Uint8Array(32) };
    const steps = [
      [1, () => here.directory.login(session)],
      [0, () => here.directory.login(another, wrong)],
      [1, () => here.directory.login(another)],
      [1, () => here.directory.remove(another)],
      [0, () => here.directory.remove(another)],
      [1, () => there.store.endSession(session, "logged_out")],
      [0, () => there.store.endSession(session, "logged_out")],
      [0, () => here.directory.remove(session)],
    ] as const;
    for (const [at, [count, step]] of steps.entries()) {
      const from = there.events.length;
      await step();
      await there.cluster.barrier();
      const heard = there.events
        .slice(from)
        .filter((one) => one.kind === "presence" && one.uid === uid);
      t.equal(heard.length, count, `step ${at + 1}`);
    }
  });

  t.test("of nobody is an empty list", async (t) => {
    t.same(await directory.presence([]), []);
  });
}
