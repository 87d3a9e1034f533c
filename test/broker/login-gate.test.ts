// The login gate: its bounds, and that an attempt which breaks counts as nothing.

import { LoginGate } from "../../src/broker/login-gate.ts";
import { LocalThrottle } from "../../src/cluster/single.ts";
import { t } from "../support/suite.ts";

t.test("an attempt that breaks frees its place and counts as no failure", async (t) => {
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
});

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
    const rankOf = async (username: string, address: string, isRight = false) => {
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

t.test(
  "a user that logged in from its network before is served beside 40 guesses of it that are under way, and while all places of the node are taken",
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
    for (let i = 0; i < 20; i++) t.equal(await login(), true, `login ${i}`);
    const others = Array.from({ length: 496 }, (_, at) => attempt(`10.${at}.1.1`, "u"));
    await t.rejects(attempt("10.0.9.1", "u"), { code: "overloaded" });
    t.equal(await login(), true, "from the reserve");
    finish();
    const answers = await Promise.all(codes);
    t.equal(answers.filter((code) => code === "tried").length, 5);
    t.equal((await Promise.all(others)).length, 496);
  },
);

t.test(
  "guesses at a user that logged in from the network before have its room of failures and a bound on how many wait",
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
    const answers = await Promise.all(
      Array.from({ length: 100 }, () => attempt(false).then(String, ({ code }) => code)),
    );
    t.equal(answers.filter((answer) => answer === "false").length, 5);
    const refused = answers.filter((answer) => answer === "too_many_attempts");
    t.equal(refused.length, 95);
  },
);
