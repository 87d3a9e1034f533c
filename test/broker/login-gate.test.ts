// The login gate: its bounds, and that an attempt which breaks counts as nothing.

import t from "tap";
import { LoginGate } from "../../src/broker/login-gate.ts";
import { LocalThrottle } from "../../src/cluster/single.ts";

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

t.test(
  "attempts beyond the bounds of a network and of the node are refused, and further networks get their one place",
  async (t) => {
    const gate = new LoginGate(new LocalThrottle(() => 0), {
      attempts: 1000,
      windowS: 60,
    });
    let finish = () => {};
    const until = new Promise<void>((resolve) => {
      finish = resolve;
    });
    const attempt = (address: string) =>
      gate.attempt({ username: "u", address }, () => until.then(() => true));
    const times = (count: number, address: (at: number) => string) =>
      Array.from({ length: count }, (_, at) => attempt(address(at)));
    const attempts = times(256, (at) => `10.0.0.${at >> 4}`);
    await t.rejects(attempt("10.0.0.1"), { code: "too_many_attempts" });
    attempts.push(...times(256, (at) => `10.0.1.${at}`));
    await t.rejects(attempt("10.0.2.1"), { code: "overloaded" });
    finish();
    t.ok((await Promise.all(attempts)).every(Boolean));
    t.equal(await attempt("10.0.0.1"), true);
  },
);

t.test(
  "a user that logged in from its network before ranks first, then networks by their failures",
  async (t) => {
    const limits = { attempts: 5, windowS: 60 };
    const gate = new LoginGate(new LocalThrottle(() => 0), limits);
    const rankOf = async (
      username: string,
      address: string,
      isRight = false,
    ) => {
      let found: number | undefined;
      await gate.attempt({ username, address }, async (rank) => {
        found = rank;
        return isRight;
      });
      return found;
    };
    t.equal(await rankOf("a", "10.0.0.1", true), 0);
    t.equal(await rankOf("b", "10.0.0.1"), 0);
    t.equal(await rankOf("b", "10.0.0.1"), 1);
    t.equal(await rankOf("a", "10.0.0.1", true), -1);
    t.equal(await rankOf("a", "10.0.0.2"), 0);
  },
);
