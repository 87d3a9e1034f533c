// The token bucket, on a clock that the test controls.

import { TokenBucket } from "../../src/lib/token-bucket.ts";
import { t } from "../support/suite.ts";

const bucketOf = (perSecond: number, burst: number, nowMs = 0): TokenBucket =>
  new TokenBucket({ perSecond, burst }, nowMs);

/** Returns how many uses are allowed at `nowMs` until one is refused. */
function drain(bucket: TokenBucket, nowMs: number): number {
  let uses = 0;
  while (uses < 1000 && bucket.take(nowMs) === 0) uses += 1;
  return uses;
}

t.test("a full bucket allows as many uses as its burst and refuses further uses", async (t) => {
  const bucket = bucketOf(10, 5, 0);
  t.equal(drain(bucket, 0), 5);
  t.ok(bucket.take(0) > 0);
});

t.test("tokens are refilled over time, up to the burst", async (t) => {
  const bucket = bucketOf(10, 5, 0);
  for (let use = 0; use < 5; use++) bucket.take(0);
  t.equal(bucket.take(100), 0, "at 10 per second, one token is refilled in 100 ms");
  t.ok(bucket.take(100) > 0);
  t.equal(drain(bucket, 1_000_000), 5, "a bucket never holds more than its burst");
});

t.test("a use is allowed after exactly the returned time to wait", async (t) => {
  const overdrawn = (): TokenBucket => {
    const bucket = bucketOf(4, 3, 0);
    for (let use = 0; use < 3; use++) bucket.take(0);
    return bucket;
  };
  const waiting = overdrawn();
  const waitMs = waiting.take(0);
  t.equal(waitMs, 500, "the refused use is added to the debt");
  t.equal(waiting.take(waitMs), 0);
  const hasty = overdrawn();
  t.ok(hasty.take(0) > 0);
  t.ok(hasty.take(waitMs - 1) > 0);
});

t.test("refused uses increase the debt up to one burst", async (t) => {
  const bucket = bucketOf(10, 5, 0);
  for (let use = 0; use < 9; use++) bucket.take(0);
  t.notOk(bucket.exhausted);
  bucket.take(0);
  t.ok(bucket.exhausted, "a bucket is exhausted when refused uses cost a burst");
  for (let use = 0; use < 1000; use++) bucket.take(0);
  t.ok(bucket.exhausted);
  t.ok(bucket.take(590) > 0);
  t.notOk(bucket.exhausted, "a bucket that is refilled is no longer exhausted");
  t.equal(bucket.take(700), 0);
});

t.test("a bucket with a burst of one allows uses at its rate", async (t) => {
  const bucket = bucketOf(2, 1, 0);
  t.equal(bucket.take(0), 0);
  t.equal(bucket.take(500), 0);
  t.equal(bucket.take(1000), 0);
  t.ok(bucket.take(1001) > 0);
});

t.test("a rate of 0 means no limit", async (t) => {
  const bucket = bucketOf(0, 1, 0);
  t.equal(drain(bucket, 0), 1000);
  t.notOk(bucket.exhausted);
});

t.test("setting the clock back removes no tokens and does not stop the refill", async (t) => {
  const bucket = bucketOf(10, 5, 1_000_000);
  t.equal(bucket.take(0), 0);
  for (let use = 0; use < 4; use++) bucket.take(0);
  t.ok(bucket.take(0) > 0);
  t.equal(bucket.take(300), 0, "the bucket is refilled on the new time");
});

t.test("a use that costs more than the remaining tokens leaves a debt", async (t) => {
  const bucket = bucketOf(10, 5);
  t.equal(bucket.take(0, 8), 0, "a use is allowed while there is a token");
  t.equal(bucket.waitMs(0), 400, "three tokens of debt and one for the next use");
  t.ok(bucket.waitMs(399) > 0);
  t.equal(bucket.take(400), 0);
});

t.test("a cost that is charged after the work delays later uses", async (t) => {
  const bucket = bucketOf(10, 5);
  bucket.charge(7);
  t.equal(bucket.waitMs(0), 300);
  t.notOk(bucket.exhausted, "charged costs are not refused uses");
  bucket.charge(-3);
  t.equal(bucket.waitMs(0), 0, "a negative cost adds tokens");
  bucket.charge(-1000);
  t.equal(drain(bucket, 0), 5, "a bucket never holds more than its burst");
  bucket.charge(1000);
  t.equal(bucket.waitMs(0), 600, "a debt is at most one burst");
  t.notOk(bucket.exhausted);
});

t.test("a bucket is exhausted when the cost of refused uses reaches its burst", async (t) => {
  const bucket = bucketOf(10, 5);
  bucket.take(0, 5);
  bucket.take(0, 4);
  t.notOk(bucket.exhausted);
  bucket.take(0, 1);
  t.ok(bucket.exhausted);
});

t.test("a bucket is full when all used tokens are refilled", async (t) => {
  const bucket = bucketOf(10, 5);
  t.ok(bucket.isFull(0));
  bucket.take(0, 2);
  t.notOk(bucket.isFull(199));
  t.ok(bucket.isFull(200));
  t.ok(bucketOf(0, 5).isFull(0));
});
