// Passwords: their kept form, what is refused as one, and the bound on checks.

import {
  decoyHash,
  hashPassword,
  PasswordChecker,
  type PasswordHash,
  parsePasswordHash,
} from "../../src/broker/passwords.ts";
import { t } from "../support/suite.ts";

const BOUNDS = { maxRunning: 2, maxWaiting: 8 };

async function kept(password: string): Promise<PasswordHash> {
  const parsed = parsePasswordHash(await hashPassword(password));
  if (parsed === undefined) throw new Error("a made hash must parse");
  return parsed;
}

t.test("a password matches its own hash and no other does", async (t) => {
  const checker = new PasswordChecker(BOUNDS);
  const hash = await kept("correct horse 电池");
  t.equal(await checker.matches("correct horse 电池", hash), true);
  t.equal(await checker.matches("correct horse 电", hash), false);
  t.equal(await checker.matches("", hash), false);
});

t.test("the kept form names scrypt's cost and is salted", async (t) => {
  const [a, b] = [await hashPassword("same"), await hashPassword("same")];
  t.match(a, /^scrypt\$16384\$8\$1\$/);
  t.not(a, b);
  t.notMatch(a, /same/);
});

t.test("a decoy costs what its model costs and matches nothing", async (t) => {
  const model = { ...(await kept("x")), N: 1024 };
  const decoy = decoyHash(model);
  t.match(decoy, { N: 1024, r: 8, p: 1 });
  t.equal(await new PasswordChecker(BOUNDS).matches("x", decoy), false);
});

t.test("what is no hash, or too costly to check, does not parse", async (t) => {
  const [salt, hash] = ["AAAAAAAAAAAAAAAAAAAAAA==", "A".repeat(43)];
  t.ok(parsePasswordHash(`scrypt$16384$8$1$${salt}$${hash}=`));
  for (const text of [
    "",
    "plain",
    `scrypt$16384$8$1$${salt}`,
    `scrypt$16383$8$1$${salt}$${hash}=`,
    `scrypt$16384$0$1$${salt}$${hash}=`,
    `scrypt$16384$8$0$${salt}$${hash}=`,
    `scrypt$16384$8$17$${salt}$${hash}=`,
    `scrypt$4194304$8$1$${salt}$${hash}=`,
    `scrypt$16384$8$1$AAAA$${hash}=`,
    `scrypt$16384$8$1$${salt}$AAAA`,
    `argon2$16384$8$1$${salt}$${hash}=`,
  ])
    t.equal(parsePasswordHash(text), undefined, text);
});

t.test("checks beyond the bound wait, beyond that are overloaded", async (t) => {
  const checker = new PasswordChecker({ maxRunning: 1, maxWaiting: 1 });
  const hash = await kept("x");
  const running = checker.matches("x", hash);
  const waiting = checker.matches("x", hash);
  await t.rejects(checker.matches("x", hash), { code: "overloaded" });
  t.same(await Promise.all([running, waiting]), [true, true]);
  t.equal(await checker.matches("x", hash), true, "the places are free again");
});

t.test("of those that wait the lowest rank comes first, and makes room for itself", async (t) => {
  const checker = new PasswordChecker({ maxRunning: 1, maxWaiting: 2 });
  const hash = await kept("x");
  const order: number[] = [];
  const check = async (rank: number) => {
    await checker.matches("x", hash, rank);
    order.push(rank);
  };
  const running = check(9);
  const high = check(3);
  const higher = check(4);
  const refused = t.rejects(higher, { code: "overloaded" });
  const low = check(-1);
  await t.rejects(check(3), { code: "overloaded" });
  await Promise.all([running, high, low, refused]);
  t.same(order, [9, -1, 3]);
});
