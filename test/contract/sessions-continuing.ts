// The part of the sessions' contract about those that continue earlier ones [decisions: resume is no login]: the last login wins, however often
// an older session comes back.

import type { Test } from "tap";
import type { CloseReason } from "../../src/broker/errors.ts";
import {
  SECONDARY_DEVICE,
  type SessionRecord,
} from "../../src/broker/model.ts";
import type { Claim, LoginResult } from "../../src/broker/ports.ts";
import {
  type ContractNode,
  endedWhile,
  freshUid,
  type Kind,
  type NodeDriver,
  sessionOf,
  sessionsOf,
} from "./cluster-bench.ts";

/** A user's sessions, as they come and go. */
class User {
  readonly uid = freshUid();
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
  async enter(kind: Kind = {}, claim?: Claim) {
    const { cluster, directory } = this.node;
    const session = sessionOf(cluster, this.uid, kind);
    let order = 0;
    const ended = await endedWhile(this.#nodes[0], this.uid, async () => {
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
    kind: Kind = {},
  ): Promise<CloseReason | LoginResult["kind"]> {
    const { cluster, directory } = this.node;
    const session = sessionOf(cluster, this.uid, kind);
    const placed = await directory.login(session, { claim });
    return placed.kind === "refused" ? placed.reason : placed.kind;
  }

  async ids(): Promise<readonly string[]> {
    const sessions = await sessionsOf(this.node.store, this.uid);
    return sessions.map(({ sessionId }) => sessionId).sort();
  }
}

const ids = (...of: readonly { readonly session: SessionRecord }[]) =>
  of.map(({ session }) => session.sessionId).sort();

export async function continuing(t: Test, driver: NodeDriver): Promise<void> {
  const [one, other] = [await driver.open(t), await driver.open(t)];
  const user = () => new User(one, other);

  t.test("a main keeps the place of its login, and ends nobody", async (t) => {
    const u = user();
    const login = await u.enter({ deviceId: "a" });
    await login.leave();
    const web = await u.enter({ flag: 1 });
    const again = await u.enter({ deviceId: "a" }, login);
    t.equal(again.order, login.order);
    t.same(again.ended, []);
    t.same(await u.ids(), ids(web, again));
    await again.leave();
    const third = await u.enter({}, again);
    t.equal(third.order, login.order, "also as a device without a name");
  });

  t.test("a main that is still in is replaced, not kicked", async (t) => {
    for (const kind of [{}, { level: SECONDARY_DEVICE }] as const) {
      const u = user();
      const login = await u.enter(kind);
      const again = await u.enter(kind, login);
      t.same(again.ended, [[login.session.sessionId, "replaced"]]);
      t.same(await u.ids(), ids(again));
      await login.leave(); // its node notices late
      t.same(await u.ids(), ids(again));
    }
  });

  t.test("a main loses to a later login, there or gone", async (t) => {
    const u = user();
    const a = await u.enter({ deviceId: "a" });
    const b = await u.enter({ deviceId: "b" });
    t.ok(b.order > a.order);
    t.equal(await u.refusal(a, { deviceId: "a" }), "kicked");
    t.equal(await u.refusal(a), "kicked", "nor without its device's name");
    t.same(await u.ids(), ids(b));
    await b.leave();
    t.equal(await u.refusal(a), "kicked", "that b left proves nothing");
    t.same(await u.ids(), []);
    const back = await u.enter({}, b);
    t.equal(back.order, b.order, "the last login comes back");
    t.same(await u.refusal(a), "kicked");
    t.equal(await u.refusal(undefined), "entered", "a login is always right");
    t.equal(await u.refusal(b), "kicked");
  });

  t.test("a secondary session is never refused", async (t) => {
    const u = user();
    const kind = { level: SECONDARY_DEVICE } as const;
    const a = await u.enter(kind);
    const main = await u.enter();
    const again = await u.enter(kind, a);
    t.same(await u.ids(), ids(main, again));
  });

  t.test("of one device the newer connection wins silently", async (t) => {
    const u = user();
    const device = { deviceId: "a" };
    const before = await u.enter(device);
    const login = await u.enter(device);
    t.same(login.ended, [[before.session.sessionId, "replaced"]]);
    const again = await u.enter(device, before);
    t.same(again.ended, [[login.session.sessionId, "replaced"]]);
    t.equal(again.order, login.order, "in the place of the device's login");
    await u.enter({ deviceId: "b" });
    t.equal(await u.refusal(before, device), "kicked");
  });

  t.test("a main that was ended cannot be continued", async (t) => {
    for (const reason of ["logged_out", "token_changed"] as const) {
      const u = user();
      const a = await u.enter({ deviceId: "a" });
      await u.node.store.endSession(a.session, reason);
      t.equal(await u.refusal(a, { deviceId: "a" }), reason);
      t.same(await u.ids(), []);
      const b = await u.enter();
      t.equal(await u.refusal(a), "kicked", "by a login after it");
      await u.node.store.endSession(a.session, reason);
      t.equal(await u.refusal(b), "entered", "that ends a, not b");
    }
  });

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

  t.test("a label is one login, however often it comes", async (t) => {
    const u = user();
    const label = { label: "try-a" };
    const a = await u.enter({ deviceId: "a" }, label);
    const again = await u.enter({ deviceId: "a" }, label);
    t.equal(again.order, a.order, "the answer to the first try was lost");
    const named = await u.enter({ deviceId: "a" }, again);
    t.equal(named.order, a.order);
    const other = await u.enter({ deviceId: "a", flag: 1 }, label);
    t.not(other.order, a.order, "of another flag it is another login");
    const b = await u.enter({ deviceId: "b" }, { label: "try-b" });
    t.same(b.ended, [[named.session.sessionId, "kicked"]]);
    for (let at = 0; at < 5; at++)
      t.equal(await u.refusal(label, { deviceId: "a" }), "kicked");
    for (let at = 0; at < 7; at++)
      await u.enter({ deviceId: "b" }, { label: `try-${at}` });
    t.equal(await u.refusal(label), "kicked", "after seven other logins, too");
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
}
