// The login gate: what counts as one client address, and that an attempt which breaks counts as nothing.

import t from "tap";
import { LoginGate, networkOf } from "../../src/broker/login-gate.ts";
import { LocalThrottle } from "../../src/cluster/single.ts";

t.test(
  "an IPv6 client is its /64, an IPv4 client its address, however written",
  async (t) => {
    t.equal(networkOf("10.1.2.3"), "10.1.2.3");
    t.equal(networkOf("2001:db8:0:1::5"), networkOf("2001:db8:0:1:ffff::9"));
    t.equal(
      networkOf("2001:0DB8:0000:0001:0000:0000:0000:0005"),
      networkOf("2001:db8:0:1::5"),
    );
    t.not(networkOf("2001:db8:0:1::5"), networkOf("2001:db8:0:2::5"));
    t.not(networkOf("::ffff:10.0.0.1"), networkOf("::ffff:10.0.0.2"));
    t.equal(
      networkOf("0000:0000:0000:0000:0000:ffff:0a00:0001"),
      networkOf("::ffff:a00:1"),
    );
    t.not(networkOf("::ffff:a00:1"), networkOf("::ffff:a00:2"));
    t.equal(networkOf("fe80::1%eth0"), networkOf("fe80::2"));
  },
);

t.test(
  "an attempt that breaks frees its place and counts as no failure",
  async (t) => {
    const gate = new LoginGate(new LocalThrottle(() => 0), {
      attempts: 1,
      windowS: 60,
    });
    const who = { username: "u", address: "a" };
    const broken = () => Promise.reject(new Error("store gone"));
    await t.rejects(gate.attempt(who, broken), { message: "store gone" });
    t.equal(await gate.attempt(who, async () => true), true);
    t.equal(await gate.attempt(who, async () => false), false);
    await t.rejects(
      gate.attempt(who, async () => true),
      {
        code: "too_many_attempts",
      },
    );
  },
);

t.test("attempts beyond the bound are overloaded", async (t) => {
  const gate = new LoginGate(new LocalThrottle(() => 0), {
    attempts: 1000,
    windowS: 60,
  });
  let finish = () => {};
  const until = new Promise<void>((resolve) => {
    finish = resolve;
  });
  const who = { username: "u", address: "a" };
  const attempts = Array.from({ length: 256 }, () =>
    gate.attempt(who, () => until.then(() => true)),
  );
  await t.rejects(
    gate.attempt(who, async () => true),
    { code: "overloaded" },
  );
  finish();
  t.ok((await Promise.all(attempts)).every(Boolean));
  t.equal(await gate.attempt(who, async () => true), true);
});
