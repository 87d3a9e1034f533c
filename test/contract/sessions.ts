// Contract of `SessionStore` together with `Cluster` in `broker/ports.ts`: the sessions that are
// logged in, and the presence of users. Every store runs this suite with its cluster. Each test
// uses session ids and uids of its own, so that drivers may share one server.

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
  t.test(`${driver.name}: a login affects only sessions of its user`, (t) => loggingIn(t, driver));
  t.test(`${driver.name}: a login ends other sessions as the kick rule specifies`, (t) =>
    kicks(t, driver),
  );
  t.test(`${driver.name}: a login is checked against its device`, (t) => credentials(t, driver));
  t.test(`${driver.name}: sessions can be continued and confirmed`, (t) => continuing(t, driver));
  t.test(`${driver.name}: a session can be removed, or ended with a published event`, (t) =>
    leaving(t, driver),
  );
  t.test(`${driver.name}: the presence of users is returned and published`, (t) =>
    presence(t, driver),
  );
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

  t.test("logins of one user do not affect the sessions of another user", async (t) => {
    const [first, second] = [uniqueUid(), uniqueUid()];
    await directory.login(sessionOf(cluster, first, { deviceId: "d" }));
    const next = sessionOf(cluster, second, { deviceId: "d" });
    t.same(await sessionsEndedBy(node, next), []);
    t.equal((await sessionsOf(store, first)).length, 1);
  });

  t.test(
    "exactly one of several main sessions that log in concurrently stays online",
    async (t) => {
      const secondNode = await driver.open(t);
      const uid = uniqueUid();
      const mains = Array.from({ length: 20 }, (_, at) =>
        sessionOf(at % 2 ? cluster : secondNode.cluster, uid, {}),
      );
      const ended = await sessionsEndedDuring(node, uid, () =>
        Promise.all(
          mains.map((session, at) => (at % 2 ? directory : secondNode.directory).login(session)),
        ),
      );
      const remaining = await sessionsOf(store, uid);
      t.equal(remaining.length, 1, "one session stays");
      t.equal(ended.length, mains.length - 1, "every other session is ended once");
      t.same(
        new Set([...ended, ...remaining.map((session) => [session.sessionId, "kicked"])]),
        new Set(mains.map((session) => [session.sessionId, "kicked"])),
      );
    },
  );
}

async function leaving(t: Test, driver: NodeDriver): Promise<void> {
  const { cluster, directory, store } = await driver.open(t);
  const uid = uniqueUid();
  const first = sessionOf(cluster, uid, {});
  const second = sessionOf(cluster, uid, secondary);

  t.test("removing a session leaves the user's other sessions unchanged", async (t) => {
    await directory.login(first);
    await directory.login(second);
    await directory.remove(first);
    t.same(await sessionsOf(store, uid), [second]);
  });

  t.test("removing a session that is not in the store has no effect", async (t) => {
    await directory.remove(first);
    await directory.remove(sessionOf(cluster, uniqueUid(), {}));
    t.same(await sessionsOf(store, uid), [second]);
  });

  t.test("removing a replaced session does not remove the session that replaced it", async (t) => {
    const older = sessionOf(cluster, uid, { deviceId: "d1" });
    const newer = sessionOf(cluster, uid, { deviceId: "d1" });
    await directory.login(older);
    await directory.login(newer);
    await directory.remove(older);
    t.same(sorted(await sessionsOf(store, uid)), sorted([second, newer]));
  });

  t.test(
    "each call that ends a session publishes the end, and the first call removes the session",
    async (t) => {
      const { cluster, directory, store, events } = await driver.open(t);
      const user = uniqueUid();
      const [ended, remaining] = [{}, secondary].map((kind) => sessionOf(cluster, user, kind)) as [
        SessionRecord,
        SessionRecord,
      ];
      await cluster.listen(userTopic(user));
      for (const session of [ended, remaining]) await directory.login(session);
      const endEvent = {
        ...{ kind: "end_session", uid: user, sessionId: ended.sessionId },
        reason: "logged_out",
      };
      for (const expected of [[endEvent], [endEvent, endEvent]]) {
        await store.endSession(ended, "logged_out");
        await cluster.barrier();
        const published = events.filter(
          (event) => event.kind === "end_session" && event.uid === user,
        );
        t.same(published, expected);
        t.same(await sessionsOf(store, user), [remaining]);
      }
      await directory.remove(ended);
      await directory.remove(remaining);
    },
  );

  t.test("a user is offline after the last session was removed", async (t) => {
    for (const session of await sessionsOf(store, uid)) await directory.remove(session);
    t.same(await sessionsOf(store, uid), []);
    t.same(await directory.presence([uid]), [{ uid, online: false, flag: 0 }]);
  });
}

async function presence(t: Test, driver: NodeDriver): Promise<void> {
  const { cluster, directory } = await driver.open(t);
  const bringOnline = async (kinds: readonly SessionKind[]): Promise<string> => {
    const uid = uniqueUid();
    for (const kind of kinds) await directory.login(sessionOf(cluster, uid, kind));
    return uid;
  };

  const RULES: readonly (readonly [string, readonly SessionKind[], DeviceFlag])[] = [
    ["the flag of the only session", [{ flag: DESKTOP, ...secondary }], DESKTOP],
    [
      "the flag of the main session, even if a secondary one has a lower flag",
      [{ flag: APP, ...secondary }, { flag: DESKTOP }, { flag: WEB, ...secondary }],
      DESKTOP,
    ],
    [
      "the lowest flag of several secondary sessions",
      [
        { flag: DESKTOP, ...secondary },
        { flag: WEB, ...secondary },
      ],
      WEB,
    ],
    ["the lowest flag of several main sessions", [{ flag: DESKTOP }, { flag: WEB }], WEB],
  ];
  for (const [rule, kinds, flag] of RULES)
    t.test(`an online user's presence has ${rule}`, async (t) => {
      const uid = await bringOnline(kinds);
      t.same(await directory.presence([uid]), [{ uid, online: true, flag }]);
    });

  t.test("a node can read which clients of another node are in the background", async (t) => {
    const other = await driver.open(t);
    const uid = uniqueUid();
    const sessions = [{ flag: APP }, { flag: WEB }].map((kind) => sessionOf(cluster, uid, kind));
    for (const session of sessions) await directory.login(session);
    const background = async () => {
      const [live = []] = await other.directory.liveSessions([uid]);
      return live.flatMap(({ flag, isBackground }) => (isBackground ? [flag] : []));
    };
    t.same(await background(), [], "a new session is in the foreground");
    const [app] = sessions as [SessionRecord, SessionRecord];
    await directory.setBackground(app, true);
    t.same(await background(), [APP]);
    await directory.recheck(app);
    t.same(await background(), [APP], "a confirmation keeps the state");
    await directory.setBackground(app, false);
    t.same(await background(), []);
    await directory.setBackground(sessionOf(cluster, uniqueUid(), {}), true);
    t.same(await background(), [], "a session that is not in the store is not affected");
  });

  t.test(
    "presence is returned in the order of the requested uids, duplicates included",
    async (t) => {
      const online = await bringOnline([{ flag: WEB }]);
      const offline = uniqueUid();
      const onlineState = { uid: online, online: true, flag: WEB };
      const offlineState = { uid: offline, online: false, flag: 0 };
      const states = [offlineState, onlineState, offlineState, onlineState, onlineState];
      t.same(await directory.presence([offline, online, offline, online, online]), states);
    },
  );

  t.test("every call that changes a user's sessions publishes the user's presence", async (t) => {
    const [here, there] = [await driver.open(t), await driver.open(t)];
    const uid = uniqueUid();
    await there.cluster.listen(presenceTopic(uid));
    const session = sessionOf(here.cluster, uid);
    const second = sessionOf(here.cluster, uid, secondary);
    const wrongToken = { tokenHash: new Uint8Array(32) };
    const steps = [
      [1, () => here.directory.login(session)],
      [0, () => here.directory.login(second, wrongToken)],
      [1, () => here.directory.login(second)],
      [1, () => here.directory.remove(second)],
      [0, () => here.directory.remove(second)],
      [1, () => there.store.endSession(session, "logged_out")],
      [0, () => there.store.endSession(session, "logged_out")],
      [0, () => here.directory.remove(session)],
    ] as const;
    for (const [at, [count, step]] of steps.entries()) {
      const from = there.events.length;
      await step();
      await there.cluster.barrier();
      const published = there.events
        .slice(from)
        .filter((event) => event.kind === "presence" && event.uid === uid);
      t.equal(published.length, count, `step ${at + 1} publishes the expected number of events`);
    }
  });

  t.test("a presence query for no users returns an empty list", async (t) => {
    t.same(await directory.presence([]), []);
  });
}
