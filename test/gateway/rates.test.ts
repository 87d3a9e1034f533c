// The budgets of users whose sessions open and close. Tested with a simulated clock, because with a
// real clock the effects take seconds.

import { ConnectionRate, UserRates } from "../../src/gateway/rates.ts";
import { t } from "../support/suite.ts";

const LIMITS = {
  connection: { perSecond: 10, burst: 100 },
  user: { perSecond: 10, burst: 100 },
  stored: { perSecond: 1000, burst: 10_000 },
  events: { perSecond: 20, burst: 20 },
};

function createFixture() {
  let nowMs = 0;
  const rates = new UserRates(LIMITS);
  const connect = (uid: string) => {
    const rate = new ConnectionRate(LIMITS, () => nowMs);
    rate.chargeAlso(rates.addSession(uid, nowMs));
    return rate;
  };
  const pass = (ms: number) => {
    nowMs += ms;
    return nowMs;
  };
  return {
    rates,
    connect,
    pass,
    leave: (uid: string) => rates.removeSession(uid, nowMs),
  };
}

t.test("a user's work budget is refilled by time, not by a reconnect", async (t) => {
  const { rates, connect, pass, leave } = createFixture();
  connect("a").charge(150);
  leave("a");
  t.equal(rates.waitMs("a", pass(0)), 5100);
  const again = connect("a");
  t.ok(again.frame(1, pass(0)) > 0);
  t.equal(again.frame(1, pass(5300)), 0);
});

t.test("work refused only by the user's budget is charged once to the connection", async (t) => {
  const { connect, pass } = createFixture();
  connect("a").chargeUser(105);
  const other = connect("a");
  t.ok(other.take(60, pass(0)) > 0, "the user is in debt");
  t.equal(other.take(1, pass(600)), 0, "the connection is not, so it may go on with the user");
});

t.test("the budgets of a user without sessions are kept until they are full", async (t) => {
  const { rates, connect, pass, leave } = createFixture();
  for (const uid of ["a", "b", "c"]) connect(uid).charge(50);
  for (const uid of ["a", "b", "c"]) leave(uid);
  t.equal(rates.size, 3);
  pass(5000);
  connect("d");
  leave("d");
  t.equal(rates.size, 0, "no user is remembered after all budgets are full");
});

t.test(
  "full budgets of users without sessions are removed, even if users whose sessions ended earlier are in debt",
  async (t) => {
    const { rates, connect, leave } = createFixture();
    for (const uid of ["a", "b"]) {
      connect(uid).charge(50);
      leave(uid);
    }
    for (let user = 0; user < 20; user++) {
      connect(`idle${user}`);
      leave(`idle${user}`);
    }
    t.ok(rates.size <= 4, `${rates.size} users are remembered`);
  },
);

t.test("a user's debt for stored bytes survives a reconnect", async (t) => {
  const { rates, connect, pass, leave } = createFixture();
  t.equal(connect("a").store(12_000, pass(0)), 0, "the budget was full before");
  leave("a");
  t.ok(connect("a").store(1, pass(1000)) > 0);
  leave("a");
  t.equal(connect("a").store(1, pass(1001)), 0);
  t.equal(rates.size, 1);
});

t.test("the budgets of at most 10,000 users without a session are kept", async (t) => {
  const { rates, connect, leave } = createFixture();
  for (let i = 0; i < 11_000; i++) {
    connect(`u${i}`).charge(50);
    leave(`u${i}`);
  }
  t.ok(rates.size <= 10_001, `${rates.size} users are remembered, at most 10,001`);
  t.equal(rates.waitMs("u0", 0), 0);
});

t.test(
  "a connection of a user in debt counts as exhausted after one burst of refused frames",
  async (t) => {
    const { connect, pass } = createFixture();
    connect("a").charge(150);
    const again = connect("a");
    for (let frame = 1; frame < LIMITS.connection.burst; frame++) {
      if (again.frame(1, pass(0)) === 0) t.fail(`frame ${frame} is not refused`);
      if (again.isExhausted(pass(0))) t.fail(`the connection is exhausted after ${frame} frames`);
    }
    again.frame(1, pass(0));
    t.ok(again.isExhausted(pass(0)), "the connection is exhausted after the last refused frame");
  },
);

t.test("a user keeps its budget while one of its sessions is open", async (t) => {
  const { rates, connect, pass, leave } = createFixture();
  const remaining = connect("a");
  connect("a");
  leave("a");
  remaining.charge(150);
  t.equal(rates.waitMs("a", pass(0)), 5100, "the work of the open session counts for the user");
  t.ok(connect("a").frame(1, pass(0)) > 0, "the work also counts for a new session");
});

t.test("a command costs one frame of work for each stored copy", (t) => {
  const unlimited = { perSecond: 0, burst: 0 };
  const user = { perSecond: 10, burst: 20, maxDebt: 1000 };
  const limits = { ...LIMITS, connection: unlimited, user };
  const rate = new ConnectionRate(limits, () => 0);
  rate.chargeAlso(new UserRates(limits).addSession("a", 0));
  rate.reserve(1, 0, 0).admit(60);
  t.equal(rate.frame(1, 0), 4100, "20 of the copies are paid at once, 10 more each second");
  t.end();
});

t.test("the charge for the copies of a command that was not stored is refunded", (t) => {
  const user = { perSecond: 10, burst: 20, maxDebt: 50 };
  const limits = { ...LIMITS, connection: { perSecond: 10, burst: 20 }, user };
  const rate = new ConnectionRate(limits, () => 0);
  rate.chargeAlso(new UserRates(limits).addSession("a", 0));
  rate.charge(19);
  for (let round = 0; round < 3; round++) {
    const command = rate.reserve(0, 0, 0);
    command.admit(200); // more than the maximum debt
    command.refund();
    command.refund();
  }
  t.equal(rate.frame(1, 0), 0, "the copies are refunded");
  t.ok(rate.frame(1, 0) > 0, "but not more than was charged");
  t.end();
});

t.test("a command is refused because of earlier debt or its copies, not its deliveries", (t) => {
  const user = { perSecond: 10, burst: 20, maxDebt: 1000 };
  const limits = { ...LIMITS, user };
  const rate = new ConnectionRate(limits, () => 0);
  rate.chargeAlso(new UserRates(limits).addSession("a", 0));
  t.equal(rate.frame(1, 0), 0);
  const command = rate.reserve(1, 0, 100);
  t.doesNotThrow(() => command.requirePaid(), "the command's own deliveries do not count");
  command.admit(30);
  t.throws(() => command.requirePaid(), { code: "rate_limited" }, "the command's copies count");
  t.throws(() => rate.reserve(1, 0, 0).requirePaid(), { code: "rate_limited" });
  t.end();
});

t.test("the debt of one expensive call is at most `maxDebt`", async (t) => {
  let nowMs = 0;
  const limits = { ...LIMITS, user: { perSecond: 10, burst: 20, maxDebt: 50 } };
  const rates = new UserRates(limits);
  const rate = new ConnectionRate(limits, () => nowMs);
  rate.chargeAlso(rates.addSession("a", nowMs));
  rate.reserve(1, 0, 60);
  t.equal(rate.frame(1, nowMs), 4100, "a debt larger than the burst is paid in full");
  nowMs += 4100;
  t.equal(rate.frame(1, nowMs), 0);
  const reserved = rate.reserve(1, 0, 1_000_000);
  t.equal(rate.frame(1, nowMs), 5100, "the debt is limited");
  rate.refund(reserved);
  t.equal(rate.frame(1, nowMs), 100, "a refund does not exceed the charge");
});
