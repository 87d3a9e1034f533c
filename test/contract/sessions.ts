// The contract of `SessionStore` in broker/ports.ts with that of `Cluster`: who is logged in and online, as a suite every store runs beside its
// cluster. Session ids and uids are made unique per case, so that a driver with shared storage may run it against one server.

import type { Test } from "tap";
import type { DeviceFlag, SessionRecord } from "../../src/broker/model.ts";
import {
  presenceTopic,
  SECONDARY_DEVICE,
  userTopic,
} from "../../src/broker/model.ts";
import {
  endedFor,
  endedWhile,
  freshUid,
  type Kind,
  type NodeDriver,
  sessionOf,
  sessionsOf,
} from "./cluster-bench.ts";
import { confirming } from "./sessions-confirming.ts";
import { continuing } from "./sessions-continuing.ts";
import { credentials } from "./sessions-credentials.ts";

/** Runs the whole contract against the driver. */
export function sessionContract(t: Test, driver: NodeDriver): void {
  t.test(`${driver.name}: logging in`, (t) => loggingIn(t, driver));
  t.test(`${driver.name}: credentials`, (t) => credentials(t, driver));
  t.test(`${driver.name}: continuing`, (t) => continuing(t, driver));
  t.test(`${driver.name}: confirming`, (t) => confirming(t, driver));
  t.test(`${driver.name}: leaving`, (t) => leaving(t, driver));
  t.test(`${driver.name}: presence`, (t) => presence(t, driver));
}

const APP: DeviceFlag = 0;
const WEB: DeviceFlag = 1;
const DESKTOP: DeviceFlag = 2;

const sorted = (sessions: readonly SessionRecord[]): readonly SessionRecord[] =>
  [...sessions].sort((a, b) => (a.sessionId < b.sessionId ? -1 : 1));

interface KickRule {
  readonly rule: string;
  readonly old: Kind;
  readonly next: Kind;
  readonly ends: boolean;
}

const secondary = { level: SECONDARY_DEVICE } as const;

const KICK_RULES: readonly KickRule[] = [
  { rule: "a main ends a main of its flag", old: {}, next: {}, ends: true },
  {
    rule: "a main leaves a main of another flag",
    old: { flag: WEB },
    next: { flag: DESKTOP },
    ends: false,
  },
  {
    rule: "a main leaves a secondary of its flag",
    old: secondary,
    next: {},
    ends: false,
  },
  {
    rule: "a secondary leaves a main of its flag",
    old: {},
    next: secondary,
    ends: false,
  },
  {
    rule: "secondaries coexist",
    old: secondary,
    next: secondary,
    ends: false,
  },
  {
    rule: "secondaries of other devices coexist",
    old: { ...secondary, deviceId: "d1" },
    next: { ...secondary, deviceId: "d2" },
    ends: false,
  },
  {
    rule: "a secondary replaces its own device",
    old: { ...secondary, deviceId: "d1" },
    next: { ...secondary, deviceId: "d1" },
    ends: true,
  },
  {
    rule: "a main replaces its own device that was secondary",
    old: { ...secondary, deviceId: "d1" },
    next: { deviceId: "d1" },
    ends: true,
  },
  {
    rule: "a secondary replaces its own device that was main",
    old: { deviceId: "d1" },
    next: { ...secondary, deviceId: "d1" },
    ends: true,
  },
  {
    rule: "the same device id under another flag is another device",
    old: { ...secondary, deviceId: "d1", flag: APP },
    next: { ...secondary, deviceId: "d1", flag: WEB },
    ends: false,
  },
];

async function loggingIn(t: Test, driver: NodeDriver): Promise<void> {
  const node = await driver.open(t);
  const { cluster, directory, store } = node;

  for (const { rule, old, next, ends } of KICK_RULES)
    t.test(rule, async (t) => {
      const uid = freshUid();
      const before = sessionOf(cluster, uid, old);
      const after = sessionOf(cluster, uid, next);
      t.same(await endedFor(node, before), []);
      t.same(await endedFor(node, after), ends ? [before.sessionId] : []);
      t.same(
        sorted(await sessionsOf(store, uid)),
        sorted(ends ? [after] : [before, after]),
      );
    });

  t.test("users do not touch each other", async (t) => {
    const [one, other] = [freshUid(), freshUid()];
    await directory.login(sessionOf(cluster, one, { deviceId: "d" }));
    const next = sessionOf(cluster, other, { deviceId: "d" });
    t.same(await endedFor(node, next), []);
    t.equal((await sessionsOf(store, one)).length, 1);
  });

  t.test("a main may end several: the main and its own device", async (t) => {
    const uid = freshUid();
    const main = sessionOf(cluster, uid, { deviceId: "d1" });
    const own = sessionOf(cluster, uid, { ...secondary, deviceId: "d2" });
    const bystander = sessionOf(cluster, uid, { ...secondary });
    for (const one of [main, own, bystander]) await directory.login(one);
    const next = sessionOf(cluster, uid, { deviceId: "d2" });
    t.same(
      new Set(await endedFor(node, next)),
      new Set([main.sessionId, own.sessionId]),
    );
    t.same(sorted(await sessionsOf(store, uid)), sorted([bystander, next]));
  });

  t.test("registering a session again ends nobody, not itself", async (t) => {
    const uid = freshUid();
    const session = sessionOf(cluster, uid, { deviceId: "d1" });
    await directory.login(session);
    t.same(await endedFor(node, session), []);
    t.same(await sessionsOf(store, uid), [session]);
  });

  t.test("of mains that log in at once exactly one survives", async (t) => {
    const other = await driver.open(t);
    const uid = freshUid();
    const mains = Array.from({ length: 20 }, (_, at) =>
      sessionOf(at % 2 ? cluster : other.cluster, uid, {}),
    );
    const ended = await endedWhile(node, uid, () =>
      Promise.all(
        mains.map((one, at) =>
          (at % 2 ? directory : other.directory).login(one),
        ),
      ),
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
  const uid = freshUid();
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
    await directory.remove(sessionOf(cluster, freshUid(), {}));
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
    const user = freshUid();
    const [gone, left] = [{}, secondary].map((kind) =>
      sessionOf(cluster, user, kind),
    ) as [SessionRecord, SessionRecord];
    await cluster.listen(userTopic(user));
    for (const one of [gone, left]) await directory.login(one);
    const told = {
      ...{ kind: "end_session", uid: user, sessionId: gone.sessionId },
      reason: "logged_out",
    };
    for (const expected of [[told], [told, told]]) {
      await store.endSession(gone, "logged_out");
      await cluster.barrier();
      const found = events.filter(
        (one) => one.kind === "end_session" && one.uid === user,
      );
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
  const online = async (kinds: readonly Kind[]): Promise<string> => {
    const uid = freshUid();
    for (const kind of kinds)
      await directory.login(sessionOf(cluster, uid, kind));
    return uid;
  };

  const RULES: readonly (readonly [string, readonly Kind[], DeviceFlag])[] = [
    ["one session's flag", [{ flag: DESKTOP, ...secondary }], DESKTOP],
    [
      "the main session's flag before a lower one",
      [
        { flag: APP, ...secondary },
        { flag: DESKTOP },
        { flag: WEB, ...secondary },
      ],
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
    const off = freshUid();
    const is = { uid: on, online: true, flag: WEB };
    const isNot = { uid: off, online: false, flag: 0 };
    t.same(await directory.presence([off, on, off, on, on]), [
      isNot,
      is,
      isNot,
      is,
      is,
    ]);
  });

  t.test("is published by each step that changes it", async (t) => {
    const [here, there] = [await driver.open(t), await driver.open(t)];
    const uid = freshUid();
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
