// Part of the session contract, in addition to the tables: sessions that continue earlier ones
// [decisions: resume is no login], and sessions that their node confirms.

import type { Test } from "tap";
import type { CloseReason } from "../../src/broker/errors.ts";
import { MAIN_DEVICE, SECONDARY_DEVICE } from "../../src/broker/model.ts";
import type { Claim, LoggedInSession, LoginResult } from "../../src/broker/ports.ts";
import {
  type ContractNode,
  type NodeDriver,
  type SessionKind,
  sessionOf,
  sessionsEndedDuring,
  sessionsOf,
  uniqueUid,
} from "./cluster-fixture.ts";

/** A user whose sessions log in on several nodes. */
class User {
  readonly uid = uniqueUid();
  readonly #nodes: readonly [ContractNode, ...ContractNode[]];
  #turn = 0;

  /**
   * Each session logs in on the next node in turn. The first node observes which sessions are
   * ended.
   */
  constructor(...nodes: readonly [ContractNode, ...ContractNode[]]) {
    this.#nodes = nodes;
  }

  get node(): ContractNode {
    this.#turn += 1;
    const [first] = this.#nodes;
    return this.#nodes[this.#turn % this.#nodes.length] ?? first;
  }

  /**
   * Logs a session in and returns it with the sessions that the login ended. Throws if the login is
   * refused.
   */
  async enter(kind: SessionKind = {}, claim?: Claim) {
    const { cluster, directory } = this.node;
    const session = sessionOf(cluster, this.uid, kind);
    let order = 0;
    const ended = await sessionsEndedDuring(this.#nodes[0], this.uid, async () => {
      const login = await directory.login(session, { claim });
      if (login.kind !== "entered") throw new Error(login.kind);
      order = login.order;
    });
    return { directory, session, order, ended, leave };

    async function leave() {
      await directory.remove(session);
    }
  }

  /**
   * Tries to log a session in. Returns the reason if the login is refused, otherwise the kind of
   * the result.
   */
  async tryEnter(
    claim: Claim | undefined,
    kind: SessionKind = {},
  ): Promise<CloseReason | LoginResult["kind"]> {
    const { cluster, directory } = this.node;
    const session = sessionOf(cluster, this.uid, kind);
    const login = await directory.login(session, { claim });
    return login.kind === "refused" ? login.reason : login.kind;
  }
}

export async function continuing(t: Test, driver: NodeDriver): Promise<void> {
  const [first, second] = [await driver.open(t), await driver.open(t)];
  const user = () => new User(first, second);

  t.test(
    "a login that claims to continue a login with an unknown label or order is treated as a new login",
    async (t) => {
      const u = user();
      const a = await u.enter();
      const later = a.order + 3_600_000_000; // an order that no login has
      for (const claim of [{ label: "n9-zz" }, { order: later }]) {
        const { order } = await u.enter({}, claim);
        t.ok(order > a.order && order < later, "the session has an order of its own");
        t.equal(await u.tryEnter(a), "kicked", "the new login kicks the earlier one");
      }
    },
  );

  t.test("a login that the store lost keeps its order number when it is continued", async (t) => {
    const u = user();
    const anHour = 3_600_000_000;
    const now = (await user().enter()).order;
    const a = await u.enter({}, { order: now - 2 * anHour });
    t.equal(a.order, now - 2 * anHour);
    const b = await u.enter({}, { order: now - anHour });
    t.same(b.ended, [[a.session.sessionId, "kicked"]], "the later login kicks the earlier one");
    t.equal(await u.tryEnter(a), "kicked");
  });

  t.test("endedBy returns undefined for a session that was not ended", async (t) => {
    const u = user();
    const a = await u.enter({ deviceId: "a" });
    const secondary = await u.enter({ level: SECONDARY_DEVICE });
    t.equal(await a.directory.endedBy(a.session), undefined);
    const b = await u.enter({ deviceId: "b" });
    for (const entry of [secondary, b, await user().enter()])
      t.equal(await entry.directory.endedBy(entry.session), undefined);
  });

  t.test(
    "the session of the last login stays when the sessions of all logins are continued concurrently",
    async (t) => {
      const u = user();
      const logins = [await u.enter(), await u.enter(), await u.enter()];
      const last = logins[2] as (typeof logins)[number]; // it was added above
      await Promise.all([
        ...logins.map((login) => u.tryEnter(login)),
        ...logins.map((login) => u.tryEnter(login)),
      ]);
      const remaining = await sessionsOf(u.node.store, u.uid);
      t.equal(remaining.length, 1);
      const [session] = remaining;
      if (session === undefined) return;
      const continuation = await u.enter({}, last);
      t.equal(continuation.order, last.order, "the last login can be continued");
      t.same(continuation.ended, [[session.sessionId, "replaced"]]);
      const { ended } = await u.enter();
      t.same(ended, [[continuation.session.sessionId, "kicked"]]);
    },
  );

  t.test(
    "`confirmSessions` returns one result for each session, in the order of the sessions passed to it",
    async (t) => {
      const { cluster, store } = first;
      const logins: LoggedInSession[] = [];
      const expected: string[] = [];
      for (let at = 0; at < 120; at++) {
        const level = at % 2 === 0 ? SECONDARY_DEVICE : MAIN_DEVICE;
        const session = sessionOf(cluster, uniqueUid(), { level });
        const login = await store.login(session, cluster.incarnation);
        if (login.kind !== "entered") throw new Error(login.kind);
        logins.push(login);
        if (at % 3 === 0) await store.endSession(session, "logged_out");
        expected.push(at % 3 === 0 ? "logged_out" : "confirmed");
      }
      const confirm = async (sessions: readonly LoggedInSession[]) => {
        const results = await store.confirmSessions(sessions, cluster.incarnation);
        return results.map((r) => (r.kind === "refused" ? r.reason : r.kind));
      };
      t.same(await confirm(logins), expected);
      t.same(await confirm([]), []);
    },
  );
}
