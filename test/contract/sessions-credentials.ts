// Part of the session contract: sessions that log in with a token. The token is compared in the
// same step that enters the session, so that no change of the token is missed.

import type { Test } from "tap";
import {
  type Device,
  type DeviceLevel,
  MAIN_DEVICE,
  SECONDARY_DEVICE,
} from "../../src/broker/model.ts";
import { type NodeDriver, sessionOf, sessionsOf, uniqueUid } from "./cluster-fixture.ts";

/** Number of times that a race between logins and a token change is repeated. */
const RACES = 30;

const NO_TOKEN = new Uint8Array();

const hash = (token: string) => new Uint8Array(Buffer.alloc(32, token));

const device = (uid: string, token: string, level: DeviceLevel = MAIN_DEVICE): Device => ({
  uid,
  flag: 0,
  level,
  tokenHash: hash(token),
});

export async function credentials(t: Test, driver: NodeDriver): Promise<void> {
  const [first, second] = [await driver.open(t), await driver.open(t)];
  const { cluster, directory, store } = first;

  t.test("a login opens a session only with the token of its device", async (t) => {
    const uid = uniqueUid();
    const enter = async (tokenHash: Uint8Array, flag: 0 | 1 = 0) => {
      const session = sessionOf(cluster, uid, { flag });
      return (await directory.login(session, { tokenHash })).kind;
    };
    t.equal(await enter(hash("a")), "unauthorized", "a user without devices is refused");
    await store.putDevice(device(uid, "a"));
    t.equal(await enter(hash("b")), "unauthorized", "a different token is refused");
    t.equal(await enter(new Uint8Array()), "unauthorized", "an empty token is refused");
    t.equal(
      await enter(hash("a"), 1),
      "unauthorized",
      "a login with a flag for which no device is registered is refused",
    );
    t.same(await sessionsOf(store, uid), []);
    t.equal(await enter(hash("a")), "entered");
    await store.putDevice({ ...device(uid, "a"), tokenHash: new Uint8Array() });
    t.equal(
      await enter(hash("a")),
      "unauthorized",
      "the token is refused after the device logged out",
    );
    t.equal(
      await enter(new Uint8Array()),
      "unauthorized",
      "an empty token is refused after the logout",
    );
    t.equal((await sessionsOf(store, uid)).length, 1, "the session that entered stays");
  });

  t.test("a session has the level of its device, not the level in the login", async (t) => {
    for (const level of [MAIN_DEVICE, SECONDARY_DEVICE] as const) {
      const uid = uniqueUid();
      await store.putDevice(device(uid, "a", level));
      const claimed = level === MAIN_DEVICE ? SECONDARY_DEVICE : MAIN_DEVICE;
      const session = sessionOf(cluster, uid, { level: claimed });
      const tokenHash = hash("a");
      const login = await directory.login(session, { tokenHash });
      t.match(login, { kind: "entered", session: { ...session, level } });
      t.same(await sessionsOf(store, uid), [{ ...session, level }]);
      const next = sessionOf(cluster, uid, { level: claimed });
      await directory.login(next, { tokenHash });
      const count = level === MAIN_DEVICE ? 1 : 2;
      t.equal(
        (await sessionsOf(store, uid)).length,
        count,
        "the level of the device determines kicks",
      );
    }
  });

  t.test("a login with a wrong token ends no session and does not count as a login", async (t) => {
    const uid = uniqueUid();
    await store.putDevice(device(uid, "a"));
    const session = sessionOf(cluster, uid);
    const first = await directory.login(session, { tokenHash: hash("a") });
    if (first.kind !== "entered") throw new Error(first.kind);
    const guess = sessionOf(cluster, uid);
    await directory.login(guess, { tokenHash: hash("b") });
    t.same(await sessionsOf(store, uid), [session]);
    const claim = { order: first.order };
    const next = sessionOf(cluster, uid);
    const terms = { tokenHash: hash("a"), claim };
    t.match(await directory.login(next, terms), {
      ...{ kind: "entered", order: first.order },
    });
  });

  t.test(
    "a session whose device logged out while its node was disconnected cannot be confirmed or, if it is a main session, continued",
    async (t) => {
      for (const level of [MAIN_DEVICE, SECONDARY_DEVICE] as const) {
        const uid = uniqueUid();
        const tokenHash = hash("a");
        const register = () => store.putDevice(device(uid, "a", level));
        const logOut = () => store.putDevice({ ...device(uid, "", level), tokenHash: NO_TOKEN });
        await register();
        const session = sessionOf(cluster, uid, { level });
        const first = await store.login(session, "n:1", { tokenHash });
        if (first.kind !== "entered") throw new Error(first.kind);
        await store.removeSession(session); // the entry of a disconnected node's session expires
        await logOut();
        await register();
        const [confirmed] = await store.confirmSessions([first], "n:1");
        t.equal(confirmed?.kind, "refused", "the node cannot confirm the session");
        t.same(await sessionsOf(store, uid), []);
        const claim = { order: first.order };
        const next = () => sessionOf(cluster, uid, { level });
        const continued = await store.login(next(), "n:2", { tokenHash, claim });
        if (level === MAIN_DEVICE)
          t.same(
            continued,
            { kind: "refused", reason: "logged_out" },
            "the session cannot be continued",
          );
        const login = await store.login(next(), "n:2", { tokenHash });
        if (login.kind !== "entered") throw new Error(login.kind);
        const [later] = await store.confirmSessions([login], "n:2");
        t.equal(later?.kind, "confirmed", "a later login is confirmed");
        const resumed = await store.login(next(), "n:2", {
          ...{ tokenHash, claim: { order: login.order } },
        });
        t.match(resumed, { kind: "entered", order: login.order });
      }
    },
  );

  t.test(
    "a session that logged in without a token cannot be continued after its device logged out",
    async (t) => {
      const uid = uniqueUid();
      const session = sessionOf(cluster, uid);
      const first = await store.login(session, "n:1", {});
      if (first.kind !== "entered") throw new Error(first.kind);
      await store.removeSession(session);
      await store.putDevice({ ...device(uid, ""), tokenHash: NO_TOKEN });
      const claim = { order: first.order };
      t.same(await store.login(sessionOf(cluster, uid), "n:2", { claim }), {
        ...{ kind: "refused", reason: "logged_out" },
      });
    },
  );

  t.test(
    "after a token change, the list of sessions contains every session that a concurrent login with the old token opened",
    async (t) => {
      const missing: string[] = [];
      for (let round = 0; round < RACES; round++) {
        const uid = uniqueUid();
        await store.putDevice(device(uid, "old", SECONDARY_DEVICE));
        const entered: string[] = [];
        const logIn = async (at: number) => {
          for (let turn = 0; turn < at; turn++) await Promise.resolve();
          const node = at % 2 === 0 ? first : second;
          const session = sessionOf(node.cluster, uid);
          const terms = { tokenHash: hash("old") };
          const { kind } = await node.directory.login(session, terms);
          if (kind === "entered") entered.push(session.sessionId);
        };
        const change = async () => {
          await second.store.putDevice(device(uid, "new", SECONDARY_DEVICE));
          return sessionsOf(second.store, uid);
        };
        const [sessions] = await Promise.all([change(), ...[0, 1, 2, 3, 4, 5].map(logIn)]);
        const sessionIds = new Set(sessions.map(({ sessionId }) => sessionId));
        for (const id of entered) if (!sessionIds.has(id)) missing.push(`round ${round}: ${id}`);
      }
      t.same(missing, [], "no session is missing from the list");
    },
  );

  t.test(
    "a logout revokes the device's JWTs that were issued before the second of the logout",
    async (t) => {
      const uid = uniqueUid();
      const enter = async (issuedS: number, flag: 0 | 1 = 0, node = first) => {
        const session = sessionOf(node.cluster, uid, { flag });
        return (await node.directory.login(session, { issuedS })).kind;
      };
      t.equal(await enter(0), "entered", "no device is registered");
      await store.putDevice(device(uid, "a"));
      t.equal(await enter(0), "entered", "the device was never logged out");
      t.equal((await store.device(uid, 0))?.revokedS, undefined);
      await store.putDevice({ ...device(uid, ""), tokenHash: NO_TOKEN });
      const revokedS = (await second.store.device(uid, 0))?.revokedS ?? 0;
      t.ok(revokedS > 0, "the store records the time of the logout in seconds");
      for (const node of [first, second]) {
        t.equal(await enter(revokedS - 1, 0, node), "unauthorized");
        t.equal(await enter(0, 0, node), "unauthorized", "the time of issue is not known");
        t.equal(
          await enter(revokedS, 0, node),
          "entered",
          "the token was issued in the same second as the logout",
        );
        t.equal(await enter(revokedS - 1, 1, node), "entered", "another device flag");
      }
      await store.putDevice(device(uid, "b"));
      t.equal((await store.device(uid, 0))?.revokedS, revokedS, "a new token keeps the time");
      t.equal(await enter(revokedS - 1), "unauthorized");
      t.equal(
        (await directory.login(sessionOf(cluster, uid), { tokenHash: hash("b") })).kind,
        "entered",
      );
    },
  );

  t.test(
    "after a logout, the list of sessions contains every session that a concurrent login with a JWT opened",
    async (t) => {
      const remaining: string[] = [];
      for (let round = 0; round < RACES; round++) {
        const uid = uniqueUid();
        const entered: string[] = [];
        const logIn = async (at: number) => {
          for (let turn = 0; turn < at; turn++) await Promise.resolve();
          const node = at % 2 === 0 ? first : second;
          const session = sessionOf(node.cluster, uid, { level: SECONDARY_DEVICE });
          const { kind } = await node.directory.login(session, { issuedS: 1 });
          if (kind === "entered") entered.push(session.sessionId);
        };
        const logOut = async () => {
          await second.store.putDevice({ ...device(uid, ""), tokenHash: NO_TOKEN });
          return sessionsOf(second.store, uid);
        };
        const [sessions] = await Promise.all([logOut(), ...[0, 1, 2, 3, 4, 5].map(logIn)]);
        const sessionIds = new Set(sessions.map(({ sessionId }) => sessionId));
        for (const id of entered) if (!sessionIds.has(id)) remaining.push(`round ${round}: ${id}`);
      }
      t.same(remaining, [], "the caller that logs the device out finds every session");
    },
  );
}
