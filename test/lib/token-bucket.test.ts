// The rate limit of a connection's frames, on a clock of the test's own.

import { TokenBucket } from "../../src/lib/token-bucket.ts";
import { t } from "../support/suite.ts";

const bucketOf = (perSecond: number, burst: number, nowMs = 0): TokenBucket =>
  new TokenBucket({ perSecond, burst }, nowMs);

/** Uses taken at `nowMs` until one has to wait. */
function drain(bucket: TokenBucket, nowMs: number): number {
  let uses = 0;
  while (uses < 1000 && bucket.take(nowMs) === 0) uses += 1;
  return uses;
}

t.test("a full bucket holds its burst, then asks to wait", async (t) => {
  const bucket = bucketOf(10, 5, 0);
  t.equal(drain(bucket, 0), 5);
  t.ok(bucket.take(0) > 0);
});

t.test("tokens come back with time, up to the burst", async (t) => {
  const bucket = bucketOf(10, 5, 0);
  for (let use = 0; use < 5; use++) bucket.take(0);
  t.equal(bucket.take(100), 0, "one after 100 ms at 10 per second");
  t.ok(bucket.take(100) > 0);
  t.equal(drain(bucket, 1_000_000), 5, "never more than the burst");
});

t.test("the wait it names is enough, and a little less is not", async (t) => {
  const overdrawn = (): TokenBucket => {
    const bucket = bucketOf(4, 3, 0);
    for (let use = 0; use < 3; use++) bucket.take(0);
    return bucket;
  };
  const patient = overdrawn();
  const waitMs = patient.take(0);
  t.equal(waitMs, 500, "the refused use counts too");
  t.equal(patient.take(waitMs), 0);
  const hasty = overdrawn();
  t.ok(hasty.take(0) > 0);
  t.ok(hasty.take(waitMs - 1) > 0);
});

t.test("refused uses deepen the debt no further than a burst", async (t) => {
  const bucket = bucketOf(10, 5, 0);
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
  const bucket = bucketOf(2, 1, 0);
  t.equal(bucket.take(0), 0);
  t.equal(bucket.take(500), 0);
  t.equal(bucket.take(1000), 0);
  t.ok(bucket.take(1001) > 0);
});

t.test("a rate of 0 is no limit", async (t) => {
  const bucket = bucketOf(0, 1, 0);
  t.equal(drain(bucket, 0), 1000);
  t.notOk(bucket.exhausted);
});

t.test("a clock set back takes no tokens and stops no refill", async (t) => {
  const bucket = bucketOf(10, 5, 1_000_000);
  t.equal(bucket.take(0), 0);
  for (let use = 0; use < 4; use++) bucket.take(0);
  t.ok(bucket.take(0) > 0);
  t.equal(bucket.take(300), 0, "refills on the new time");
});

t.test("a use that costs more than there is leaves a debt", async (t) => {
  const bucket = bucketOf(10, 5);
  t.equal(bucket.take(0, 8), 0, "there was something");
  t.equal(bucket.waitMs(0), 400, "three in debt, and one is needed");
  t.ok(bucket.waitMs(399) > 0);
  t.equal(bucket.take(400), 0);
});

t.test("work charged later makes later uses wait", async (t) => {
  const bucket = bucketOf(10, 5);
  bucket.charge(7);
  t.equal(bucket.waitMs(0), 300);
  t.notOk(bucket.exhausted, "nothing was refused");
  bucket.charge(-3);
  t.equal(bucket.waitMs(0), 0, "given back");
  bucket.charge(-1000);
  t.equal(drain(bucket, 0), 5, "never more than the burst");
  bucket.charge(1000);
  t.equal(bucket.waitMs(0), 600, "a debt is no deeper than the burst");
  t.notOk(bucket.exhausted);
});

t.test("refused uses count by their cost", async (t) => {
  const bucket = bucketOf(10, 5);
  bucket.take(0, 5);
  bucket.take(0, 4);
  t.notOk(bucket.exhausted);
  bucket.take(0, 1);
  t.ok(bucket.exhausted);
});

t.test("a bucket is full when all it gave is refilled", async (t) => {
  const bucket = bucketOf(10, 5);
  t.ok(bucket.isFull(0));
  bucket.take(0, 2);
  t.notOk(bucket.isFull(199));
  t.ok(bucket.isFull(200));
  t.ok(bucketOf(0, 5).isFull(0));
});
