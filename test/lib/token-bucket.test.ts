// The rate limit of a connection's frames, on a clock of the test's own.

import t from "tap";
import { TokenBucket } from "../../src/lib/token-bucket.ts";

/** Uses taken at `nowMs` until one has to wait. */
function drain(bucket: TokenBucket, nowMs: number): number {
  let uses = 0;
  while (uses < 1000 && bucket.take(nowMs) === 0) uses += 1;
  return uses;
}

t.test("a full bucket holds its burst, then asks to wait", async (t) => {
  const bucket = new TokenBucket(10, 5, 0);
  t.equal(drain(bucket, 0), 5);
  t.ok(bucket.take(0) > 0);
});

t.test("tokens come back with time, up to the burst", async (t) => {
  const bucket = new TokenBucket(10, 5, 0);
  for (let use = 0; use < 5; use++) bucket.take(0);
  t.equal(bucket.take(100), 0, "one after 100 ms at 10 per second");
  t.ok(bucket.take(100) > 0);
  t.equal(drain(bucket, 1_000_000), 5, "never more than the burst");
});

t.test("the wait it names is enough, and a little less is not", async (t) => {
  const overdrawn = (): TokenBucket => {
    const bucket = new TokenBucket(4, 3, 0);
    for (let use = 0; use < 3; use++) bucket.take(0);
    return bucket;
  };
  const waitMs = overdrawn().take(0);
  t.equal(waitMs, 250);
  const patient = overdrawn();
  t.equal(patient.take(waitMs), 0);
  t.ok(overdrawn().take(waitMs - 1) > 0);
});

t.test("refused uses deepen the debt no further than a burst", async (t) => {
  const bucket = new TokenBucket(10, 5, 0);
  for (let use = 0; use < 9; use++) bucket.take(0);
  t.notOk(bucket.exhausted);
  bucket.take(0);
  t.ok(bucket.exhausted, "a second burst in debt");
  for (let use = 0; use < 1000; use++) bucket.take(0);
  t.ok(bucket.exhausted);
  t.ok(bucket.take(590) > 0);
  t.notOk(bucket.exhausted, "it recovers");
  t.equal(bucket.take(700), 0);
});

t.test("a burst of one still serves at its rate", async (t) => {
  const bucket = new TokenBucket(2, 1, 0);
  t.equal(bucket.take(0), 0);
  t.equal(bucket.take(500), 0);
  t.equal(bucket.take(1000), 0);
  t.ok(bucket.take(1001) > 0);
});

t.test("a rate of 0 is no limit", async (t) => {
  const bucket = new TokenBucket(0, 1, 0);
  t.equal(drain(bucket, 0), 1000);
  t.notOk(bucket.exhausted);
});

t.test("a clock set back takes no tokens and stops no refill", async (t) => {
  const bucket = new TokenBucket(10, 5, 1_000_000);
  t.equal(bucket.take(0), 0);
  for (let use = 0; use < 4; use++) bucket.take(0);
  t.ok(bucket.take(0) > 0);
  t.equal(bucket.take(300), 0, "refills on the new time");
});
