// The login gate: its limits, its ranks, and attempts whose check fails with an error.

import { LoginGate } from "../../src/broker/login-gate.ts";
import { LocalThrottle } from "../../src/cluster/single.ts";
import { t } from "../support/suite.ts";

t.test(
  "a login attempt whose password check throws is not counted as a failed login",
  async (t) => {
    const gate = new LoginGate(new LocalThrottle(() => 0), {
      attempts: 1,
      windowS: 60,
    });
    const user = { username: "u", address: "a" };
    const broken = () => Promise.reject(new Error("store gone"));
    await t.rejects(gate.attempt(user, broken), { message: "store gone" });
    t.equal(await gate.attempt(user, async () => true), true);
    t.equal(await gate.attempt(user, async () => false), false);
    await t.rejects(
      gate.attempt(user, async () => true),
      {
        code: "too_many_attempts",
      },
    );
  },
);

t.test(
  "a node with 256 running login attempts admits up to 256 more, one per network that has none running, and refuses all others",
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
  "logins of users who have already logged in from their network are checked first, then logins from the networks with the fewest failures",
  async (t) => {
    const limits = { attempts: 5, windowS: 60 };
    const gate = new LoginGate(new LocalThrottle(() => 0), limits);
    const rankOf = async (username: string, address: string, isRight = false) => {
      let attemptRank: number | undefined;
      await gate.attempt({ username, address }, async (rank) => {
        attemptRank = rank;
        return isRight;
      });
      return attemptRank;
    };
    t.equal(await rankOf("a", "10.0.0.1", true), 0);
    t.equal(await rankOf("b", "10.0.0.1"), 0);
    t.equal(await rankOf("b", "10.0.0.1"), 1);
    t.equal(await rankOf("a", "10.0.0.1", true), -1);
    t.equal(await rankOf("a", "10.0.0.2"), 0);
  },
);

t.test(
  "guesses that use up the login attempts of a network, or of the whole node, do not block a user who has already logged in from that network",
  async (t) => {
    const gate = new LoginGate(new LocalThrottle(() => 0), {
      attempts: 5,
      windowS: 60,
    });
    let finish = () => {};
    const until = new Promise<void>((resolve) => {
      finish = resolve;
    });
    const attempt = (address: string, username: string) =>
      gate.attempt({ username, address }, async () => {
        await until;
        return false;
      });
    const login = () => gate.attempt({ username: "known", address: "10.0.0.1" }, async () => true);
    t.equal(await login(), true);
    const codes = Array.from({ length: 40 }, (_, at) =>
      attempt("10.0.0.1", `victim${at}`).then(
        () => "tried",
        ({ code }) => code,
      ),
    );
    for (let i = 0; i < 20; i++) t.equal(await login(), true, `login ${i} succeeds`);
    const others = Array.from({ length: 496 }, (_, at) => attempt(`10.${at}.1.1`, "u"));
    await t.rejects(attempt("10.0.9.1", "u"), { code: "overloaded" });
    t.equal(await login(), true, "the reserved attempts are used");
    finish();
    const outcomes = await Promise.all(codes);
    t.equal(outcomes.filter((code) => code === "tried").length, 5);
    t.equal((await Promise.all(others)).length, 496);
  },
);

t.test(
  "guesses at the password of a user who has already logged in from the network are limited",
  async (t) => {
    const gate = new LoginGate(new LocalThrottle(() => 0), {
      attempts: 5,
      windowS: 60,
    });
    const attempt = (isRight: boolean) =>
      gate.attempt({ username: "known", address: "10.0.0.1" }, async () => {
        await new Promise(setImmediate);
        return isRight;
      });
    t.equal(await attempt(true), true);
    const outcomes = await Promise.all(
      Array.from({ length: 100 }, () => attempt(false).then(String, ({ code }) => code)),
    );
    t.equal(outcomes.filter((outcome) => outcome === "false").length, 5);
    const refused = outcomes.filter((outcome) => outcome === "too_many_attempts");
    t.equal(refused.length, 95);
  },
);
