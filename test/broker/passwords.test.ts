// Passwords: their stored form, invalid hashes, and the limit of concurrent checks.

import {
  decoyHash,
  hashPassword,
  PasswordChecker,
  type PasswordHash,
  parsePasswordHash,
} from "../../src/broker/passwords.ts";
import { t } from "../support/suite.ts";

const BOUNDS = { maxRunning: 2, maxWaiting: 8 };

/** Returns the parsed hash of a password. */
async function hashOf(password: string): Promise<PasswordHash> {
  const parsed = parsePasswordHash(await hashPassword(password));
  if (parsed === undefined) throw new Error("the hash of a password cannot be parsed");
  return parsed;
}

t.test("only the correct password matches its stored hash", async (t) => {
  const checker = new PasswordChecker(BOUNDS);
  const hash = await hashOf("correct horse 电池");
  t.equal(await checker.matches("correct horse 电池", hash), true);
  t.equal(await checker.matches("correct horse 电", hash), false);
  t.equal(await checker.matches("", hash), false);
});

t.test("the stored form of a password contains the cost of scrypt and a random salt", async (t) => {
  const [a, b] = [await hashPassword("same"), await hashPassword("same")];
  t.match(a, /^scrypt\$16384\$8\$1\$/);
  t.not(a, b);
  t.notMatch(a, /same/);
});

t.test("a decoy hash has the cost of the hash it imitates and matches no password", async (t) => {
  const model = { ...(await hashOf("x")), N: 1024 };
  const decoy = decoyHash(model);
  t.match(decoy, { N: 1024, r: 8, p: 1 });
  t.equal(await new PasswordChecker(BOUNDS).matches("x", decoy), false);
});

t.test("a hash that is invalid or too costly to check is rejected", async (t) => {
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

t.test(
  "a password check over the concurrency limit waits in a queue, and is rejected with `overloaded` if the queue is full",
  async (t) => {
    const checker = new PasswordChecker({ maxRunning: 1, maxWaiting: 1 });
    const hash = await hashOf("x");
    const running = checker.matches("x", hash);
    const waiting = checker.matches("x", hash);
    await t.rejects(checker.matches("x", hash), { code: "overloaded" });
    t.same(await Promise.all([running, waiting]), [true, true]);
    t.equal(await checker.matches("x", hash), true, "finished checks make room for others");
  },
);

t.test(
  "the waiting check with the lowest rank runs first, and a new check displaces a waiting check with a higher rank if the queue is full",
  async (t) => {
    const checker = new PasswordChecker({ maxRunning: 1, maxWaiting: 2 });
    const hash = await hashOf("x");
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
  },
);
