// The part of the sessions' contract about those that are entered by a token: it is compared in the
// same step, so that no change of it is missed.

import type { Test } from "tap";
import {
  type Device,
  type DeviceLevel,
  MAIN_DEVICE,
  SECONDARY_DEVICE,
} from "../../src/broker/model.ts";
import { type NodeDriver, sessionOf, sessionsOf, uniqueUid } from "./cluster-fixture.ts";

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
  const [one, other] = [await driver.open(t), await driver.open(t)];
  const { cluster, directory, store } = one;

  t.test("only the device's token enters a session", async (t) => {
    const uid = uniqueUid();
    const enter = async (tokenHash: Uint8Array, flag: 0 | 1 = 0) => {
      const session = sessionOf(cluster, uid, { flag });
      return (await directory.login(session, { tokenHash })).kind;
    };
    t.equal(await enter(hash("a")), "unauthorized", "no device");
    await store.putDevice(device(uid, "a"));
    t.equal(await enter(hash("b")), "unauthorized", "another token");
    t.equal(await enter(new Uint8Array()), "unauthorized", "none");
    t.equal(await enter(hash("a"), 1), "unauthorized", "another device");
    t.same(await sessionsOf(store, uid), []);
    t.equal(await enter(hash("a")), "entered");
    await store.putDevice({ ...device(uid, "a"), tokenHash: new Uint8Array() });
    t.equal(await enter(hash("a")), "unauthorized", "it logged out");
    t.equal(await enter(new Uint8Array()), "unauthorized", "and has no token");
    t.equal((await sessionsOf(store, uid)).length, 1, "the first one stays");
  });

  t.test("the device's level counts, not the given one", async (t) => {
    for (const level of [MAIN_DEVICE, SECONDARY_DEVICE] as const) {
      const uid = uniqueUid();
      await store.putDevice(device(uid, "a", level));
      const claimed = level === MAIN_DEVICE ? SECONDARY_DEVICE : MAIN_DEVICE;
      const asked = sessionOf(cluster, uid, { level: claimed });
      const tokenHash = hash("a");
      const placed = await directory.login(asked, { tokenHash });
      t.match(placed, { kind: "entered", session: { ...asked, level } });
      t.same(await sessionsOf(store, uid), [{ ...asked, level }]);
      const next = sessionOf(cluster, uid, { level: claimed });
      await directory.login(next, { tokenHash });
      const left = level === MAIN_DEVICE ? 1 : 2;
      t.equal((await sessionsOf(store, uid)).length, left, "for kicks, too");
    }
  });

  t.test("a wrong token ends nobody and is no login", async (t) => {
    const uid = uniqueUid();
    await store.putDevice(device(uid, "a"));
    const session = sessionOf(cluster, uid);
    const first = await directory.login(session, { tokenHash: hash("a") });
    if (first.kind !== "entered") throw new Error(first.kind);
    const guess = sessionOf(cluster, uid);
    await directory.login(guess, { tokenHash: hash("b") });
    t.same(await sessionsOf(store, uid), [session]);
    const claim = { order: first.order };
    const again = sessionOf(cluster, uid);
    const terms = { tokenHash: hash("a"), claim };
    t.match(await directory.login(again, terms), {
      ...{ kind: "entered", order: first.order },
    });
  });

  t.test("a session that was away while its device logged out stays ended", async (t) => {
    for (const level of [MAIN_DEVICE, SECONDARY_DEVICE] as const) {
      const uid = uniqueUid();
      const tokenHash = hash("a");
      const register = () => store.putDevice(device(uid, "a", level));
      const logOut = () => store.putDevice({ ...device(uid, "", level), tokenHash: NO_TOKEN });
      await register();
      const asked = sessionOf(cluster, uid, { level });
      const first = await store.login(asked, "n:1", { tokenHash });
      if (first.kind !== "entered") throw new Error(first.kind);
      await store.removeSession(asked); // as its entry expires while its node is cut off
      await logOut();
      await register();
      const [confirmed] = await store.confirmSessions([first], "n:1");
      t.equal(confirmed?.kind, "refused", "by its node");
      t.same(await sessionsOf(store, uid), []);
      const claim = { order: first.order };
      const next = () => sessionOf(cluster, uid, { level });
      const again = await store.login(next(), "n:2", { tokenHash, claim });
      if (level === MAIN_DEVICE)
        t.same(again, { kind: "refused", reason: "logged_out" }, "by a resume");
      const login = await store.login(next(), "n:2", { tokenHash });
      if (login.kind !== "entered") throw new Error(login.kind);
      const [later] = await store.confirmSessions([login], "n:2");
      t.equal(later?.kind, "confirmed", "a login is in");
      const resumed = await store.login(next(), "n:2", {
        ...{ tokenHash, claim: { order: login.order } },
      });
      t.match(resumed, { kind: "entered", order: login.order });
    }
  });

  t.test("so does one of a device that needed no token", async (t) => {
    const uid = uniqueUid();
    const asked = sessionOf(cluster, uid);
    const first = await store.login(asked, "n:1", {});
    if (first.kind !== "entered") throw new Error(first.kind);
    await store.removeSession(asked);
    await store.putDevice({ ...device(uid, ""), tokenHash: NO_TOKEN });
    const claim = { order: first.order };
    t.same(await store.login(sessionOf(cluster, uid), "n:2", { claim }), {
      ...{ kind: "refused", reason: "logged_out" },
    });
  });

  t.test("who changes the token then finds every session of it", async (t) => {
    const wrong: string[] = [];
    for (let round = 0; round < RACES; round++) {
      const uid = uniqueUid();
      await store.putDevice(device(uid, "old", SECONDARY_DEVICE));
      const entered: string[] = [];
      const logIn = async (at: number) => {
        for (let turn = 0; turn < at; turn++) await Promise.resolve();
        const node = at % 2 === 0 ? one : other;
        const session = sessionOf(node.cluster, uid);
        const terms = { tokenHash: hash("old") };
        const { kind } = await node.directory.login(session, terms);
        if (kind === "entered") entered.push(session.sessionId);
      };
      const change = async () => {
        await other.store.putDevice(device(uid, "new", SECONDARY_DEVICE));
        return sessionsOf(other.store, uid);
      };
      const [found] = await Promise.all([change(), ...[0, 1, 2, 3, 4, 5].map(logIn)]);
      const seen = new Set(found.map(({ sessionId }) => sessionId));
      for (const id of entered) if (!seen.has(id)) wrong.push(`round ${round}: ${id}`);
    }
    t.same(wrong, []);
  });
}
