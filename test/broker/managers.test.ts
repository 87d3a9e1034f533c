// Managers: the first start, logins, throttling, tokens and their revocation [decisions: Managers,
// Tokens, Login throttling].

import { hashPassword } from "../../src/broker/passwords.ts";
import { t } from "../support/suite.ts";
import { testManagers } from "./manager-store.ts";

const ADMIN = { adminPassword: "right" };

t.test(
  "the first start without configured accounts generates admin's password, shows it once and stores its hash",
  async (t) => {
    const { managers, store, announced } = testManagers();
    await managers.start();
    await managers.start();
    const [password = ""] = announced;
    t.equal(announced.length, 1);
    t.ok(password.length >= 24);
    t.notOk(store.passwords.get("admin")?.passwordHash.includes(password));
    const { account } = await managers.login("admin", password, "10.0.0.1");
    t.same(account, { username: "admin", role: "admin", permissions: ["*"] });

    const restarted = testManagers({ store });
    await restarted.managers.start();
    t.same(restarted.announced, [], "a later start shows no password");
    await t.resolves(restarted.managers.login("admin", password, "10.0.0.1"));
  },
);

t.test("a configured admin password is used, but neither shown nor stored", async (t) => {
  const { managers, store, announced } = testManagers(ADMIN);
  await managers.start();
  await t.resolves(managers.login("admin", "right", "10.0.0.1"));
  t.same(announced, []);
  t.equal(store.passwords.size, 0);
});

t.test(
  "configured accounts log in with a hashed or plain password, and no account named admin is created",
  async (t) => {
    const { managers, announced } = testManagers({
      ...ADMIN,
      accounts: [
        {
          username: "ops",
          passwordHash: await hashPassword("h"),
          role: "operator",
        },
        { username: "view", password: "p", passwordHash: "", role: "viewer" },
        {
          username: "own",
          password: "o",
          role: "viewer",
          permissions: ["users:write"],
        },
      ],
    });
    await managers.start();
    const permissions = async (username: string, password: string) =>
      (await managers.login(username, password, "a")).account.permissions;
    t.same(await permissions("view", "p"), ["events:read", "webhooks:read", "system:read"]);
    t.same(await permissions("own", "o"), ["users:write"]);
    t.same(await permissions("ops", "h"), [
      "users:write",
      "channels:write",
      "messages:write",
      "events:read",
      "events:write",
      "streams:read",
      "streams:write",
      "webhooks:read",
      "webhooks:write",
      "system:read",
    ]);
    await t.rejects(managers.login("admin", "right", "a"), {
      code: "bad_credentials",
    });
    t.same(announced, []);
  },
);

t.test("a node with an invalid manager account does not start", async (t) => {
  const account = { username: "a", password: "p", role: "viewer" } as const;
  for (const accounts of [
    [account, account],
    [{ ...account, password: "" }],
    [{ ...account, passwordHash: await hashPassword("x") }],
    [{ ...account, password: "", passwordHash: "md5$1234" }],
    [{ ...account, permissions: ["users:read"] }],
  ])
    await t.rejects(testManagers({ accounts }).managers.start(), {
      code: "bad_request",
    });
});

t.test(
  "after 5 failed logins with one username from different addresses, the correct password is accepted after a delay of one second",
  async (t) => {
    const { managers, pass } = testManagers(ADMIN);
    await managers.start();
    for (let i = 0; i < 5; i++)
      await t.rejects(managers.login("admin", "wrong", `10.0.0.${i}`), {
        code: "bad_credentials",
      });
    const timed = async (address: string) => {
      const startMs = performance.now();
      await managers.login("admin", "right", address);
      return performance.now() - startMs;
    };
    t.ok((await timed("10.0.0.9")) >= 990, "the login is delayed");
    pass(60_000);
    for (let i = 0; i < 5; i++)
      await t.rejects(managers.login("admin", "wrong", `10.0.1.${i}`), {
        code: "bad_credentials",
      });
    await t.resolves(managers.login("admin", "right", "10.0.0.9"));
  },
);

t.test(
  "logins from an address are refused after 5 failed logins until the window of 60 seconds ends, except for users who have already logged in from that address",
  async (t) => {
    const accounts = ["admin", "ops"].map((username) => ({
      ...{ username, password: "right", role: "admin" as const },
    }));
    const { managers, pass } = testManagers({ accounts });
    await managers.start();
    await managers.login("ops", "right", "10.0.0.1");
    for (let i = 0; i < 5; i++)
      await t.rejects(managers.login(`nobody${i}`, "x", "10.0.0.1"), {
        code: "bad_credentials",
      });
    pass(20_000);
    await t.rejects(managers.login("admin", "right", "10.0.0.1"), {
      ...{ code: "too_many_attempts", retryAfterS: 40 },
    });
    await t.resolves(managers.login("admin", "right", "10.0.0.2"));
    for (let i = 0; i < 5; i++)
      await t.rejects(managers.login("ops", "wrong", "10.0.0.1"), {
        code: "bad_credentials",
      });
    await t.rejects(managers.login("ops", "right", "10.0.0.1"), {
      code: "too_many_attempts",
    });
    pass(40_000);
    await t.resolves(managers.login("admin", "right", "10.0.0.1"));
  },
);

t.test("a successful login resets the username's count of failed logins", async (t) => {
  const { managers } = testManagers(ADMIN);
  await managers.start();
  for (let round = 0; round < 2; round++) {
    for (let i = 0; i < 4; i++)
      await t.rejects(managers.login("admin", "wrong", `${round}.${i}`), {
        code: "bad_credentials",
      });
    await t.resolves(managers.login("admin", "right", `${round}.9`));
  }
});

t.test("concurrent logins cannot exceed the limit of failed logins", async (t) => {
  const { managers } = testManagers(ADMIN);
  await managers.start();
  const outcomes = await Promise.all(
    Array.from({ length: 12 }, () =>
      managers.login("admin", "wrong", "10.0.0.1").catch((e) => e.code),
    ),
  );
  t.equal(outcomes.filter((code) => code === "bad_credentials").length, 5);
  t.equal(outcomes.filter((code) => code === "too_many_attempts").length, 7);
});

t.test("concurrent logins with the correct password all succeed", async (t) => {
  const { managers } = testManagers(ADMIN);
  await managers.start();
  const logins = await Promise.all(
    Array.from({ length: 12 }, () => managers.login("admin", "right", "a")),
  );
  t.equal(new Set(logins.map((login) => login.token)).size, 12);
});

t.test("an access token is valid until it expires, and only its hash is stored", async (t) => {
  const { managers, store, pass } = testManagers(ADMIN);
  await managers.start();
  const { token, expireS } = await managers.login("admin", "right", "a");
  t.equal(expireS, 86_400);
  t.match(token, /^[A-Za-z0-9_-]{43}$/);
  t.notOk(JSON.stringify([...store.tokens]).includes(token));
  t.equal((await managers.authenticate(token))?.username, "admin");
  pass(86_400_000);
  t.equal(await managers.authenticate(token), undefined);
});

t.test("an access token cannot be checked before the manager accounts are loaded", async (t) => {
  const { managers } = testManagers(ADMIN);
  const early = managers.authenticate("a".repeat(43));
  await t.rejects(early, { code: "unavailable" });
});

t.test(
  "a string that cannot be an access token is refused without reading the store",
  async (t) => {
    const { managers, store } = testManagers(ADMIN);
    await managers.start();
    for (const token of ["", "x", "a".repeat(44), `${"a".repeat(42)}=`])
      t.equal(await managers.authenticate(token), undefined);
    t.equal(store.ownerReads, 0);
    t.equal(await managers.authenticate("a".repeat(43)), undefined);
    t.equal(store.ownerReads, 1);
  },
);

t.test(
  "the owner of an access token is read from the store at most once in five seconds",
  async (t) => {
    const { managers, store, pass } = testManagers(ADMIN);
    await managers.start();
    const { token } = await managers.login("admin", "right", "a");
    await managers.authenticate(token);
    pass(4999);
    await managers.authenticate(token);
    t.equal(store.ownerReads, 1);
    pass(1);
    await managers.authenticate(token);
    t.equal(store.ownerReads, 2);
  },
);

t.test(
  "an access token is invalid immediately after logout, even if it was being read from the store",
  async (t) => {
    const { managers, store } = testManagers(ADMIN);
    await managers.start();
    const { token } = await managers.login("admin", "right", "a");
    t.ok(await managers.authenticate(token));
    await managers.logout(token);
    t.equal(await managers.authenticate(token), undefined);

    const next = (await managers.login("admin", "right", "a")).token;
    const read = store.accessTokenOwner.bind(store);
    let finishRead = () => {};
    store.accessTokenOwner = async (hash) => {
      const owner = await read(hash);
      await new Promise<void>((resolve) => {
        finishRead = resolve;
      });
      return owner;
    };
    const concurrent = managers.authenticate(next);
    await new Promise(setImmediate);
    store.accessTokenOwner = read;
    await managers.logout(next);
    finishRead();
    await concurrent;
    t.equal(await managers.authenticate(next), undefined);
    await t.resolves(managers.logout("not a token"));
  },
);

t.test("an access token is invalid when its account is no longer configured", async (t) => {
  const { managers, store } = testManagers(ADMIN);
  await managers.start();
  const { token } = await managers.login("admin", "right", "a");
  const changed = testManagers({
    store,
    accounts: [{ username: "ops", password: "p", role: "operator" }],
  });
  await changed.managers.start();
  t.equal(await changed.managers.authenticate(token), undefined);
});
