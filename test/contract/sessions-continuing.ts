// The part of the sessions' contract about those that continue earlier ones [decisions: resume is
// no login] and those that a node confirms, beside the table: names that are not known, many at
// once.

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

/** A user's sessions, as they come and go. */
class User {
  readonly uid = uniqueUid();
  readonly #nodes: readonly [ContractNode, ...ContractNode[]];
  #turn = 0;

  /** Each session comes on the next of the nodes; the first of them hears which are ended. */
  constructor(...nodes: readonly [ContractNode, ...ContractNode[]]) {
    this.#nodes = nodes;
  }

  get node(): ContractNode {
    this.#turn += 1;
    const [first] = this.#nodes;
    return this.#nodes[this.#turn % this.#nodes.length] ?? first;
  }

  /** Enters a session that must not be refused. */
  async enter(kind: SessionKind = {}, claim?: Claim) {
    const { cluster, directory } = this.node;
    const session = sessionOf(cluster, this.uid, kind);
    let order = 0;
    const ended = await sessionsEndedDuring(this.#nodes[0], this.uid, async () => {
      const placed = await directory.login(session, { claim });
      if (placed.kind !== "entered") throw new Error(placed.kind);
      order = placed.order;
    });
    return { directory, session, order, ended, leave };

    async function leave() {
      await directory.remove(session);
    }
  }

  /** Why a session is refused; "entered": it is not. */
  async refusal(
    claim: Claim | undefined,
    kind: SessionKind = {},
  ): Promise<CloseReason | LoginResult["kind"]> {
    const { cluster, directory } = this.node;
    const session = sessionOf(cluster, this.uid, kind);
    const placed = await directory.login(session, { claim });
    return placed.kind === "refused" ? placed.reason : placed.kind;
  }
}

export async function continuing(t: Test, driver: NodeDriver): Promise<void> {
  const [one, other] = [await driver.open(t), await driver.open(t)];
  const user = () => new User(one, other);

  t.test("a name that is not known is a login", async (t) => {
    const u = user();
    const a = await u.enter();
    const later = a.order + 3_600_000_000; // no login was then
    for (const claim of [{ label: "n9-zz" }, { order: later }]) {
      const { order } = await u.enter({}, claim);
      t.ok(order > a.order && order < later);
      t.equal(await u.refusal(a), "kicked");
    }
  });

  t.test("a name that was forgotten keeps its place", async (t) => {
    const u = user();
    const anHour = 3_600_000_000;
    const now = (await user().enter()).order;
    const a = await u.enter({}, { order: now - 2 * anHour });
    t.equal(a.order, now - 2 * anHour);
    const b = await u.enter({}, { order: now - anHour });
    t.same(b.ended, [[a.session.sessionId, "kicked"]], "b logged in later");
    t.equal(await u.refusal(a), "kicked");
  });

  t.test("nothing speaks against a session that was not ended", async (t) => {
    const u = user();
    const a = await u.enter({ deviceId: "a" });
    const secondary = await u.enter({ level: SECONDARY_DEVICE });
    t.equal(await a.directory.endedBy(a.session), undefined);
    const b = await u.enter({ deviceId: "b" });
    for (const at of [secondary, b, await user().enter()])
      t.equal(await at.directory.endedBy(at.session), undefined);
  });

  t.test("any order of logins and returns: the last login is in", async (t) => {
    const u = user();
    const logins = [await u.enter(), await u.enter(), await u.enter()];
    const last = logins[2] as (typeof logins)[number]; // just made
    await Promise.all([
      ...logins.map((login) => u.refusal(login)),
      ...logins.map((login) => u.refusal(login)),
    ]);
    const left = await sessionsOf(u.node.store, u.uid);
    t.equal(left.length, 1);
    const [session] = left;
    if (session === undefined) return;
    const probe = await u.enter({}, last);
    t.equal(probe.order, last.order);
    t.same(probe.ended, [[session.sessionId, "replaced"]]);
    const { ended } = await u.enter();
    t.same(ended, [[probe.session.sessionId, "kicked"]]);
  });

  t.test("of many confirmed each has its own answer, in order", async (t) => {
    const { cluster, store } = one;
    const asked: LoggedInSession[] = [];
    const expected: string[] = [];
    for (let at = 0; at < 120; at++) {
      const level = at % 2 === 0 ? SECONDARY_DEVICE : MAIN_DEVICE;
      const session = sessionOf(cluster, uniqueUid(), { level });
      const entered = await store.login(session, cluster.incarnation);
      if (entered.kind !== "entered") throw new Error(entered.kind);
      asked.push(entered);
      if (at % 3 === 0) await store.endSession(session, "logged_out");
      expected.push(at % 3 === 0 ? "logged_out" : "confirmed");
    }
    const confirm = async (all: readonly LoggedInSession[]) => {
      const results = await store.confirmSessions(all, cluster.incarnation);
      return results.map((r) => (r.kind === "refused" ? r.reason : r.kind));
    };
    t.same(await confirm(asked), expected);
    t.same(await confirm([]), []);
  });
}
