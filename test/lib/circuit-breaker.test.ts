// Tests when a circuit breaker stops calls, and when it tries again.

import { CircuitBreaker } from "../../src/lib/circuit-breaker.ts";
import { t } from "../support/suite.ts";

function create() {
  const clock = { nowMs: 0, opened: 0 };
  const breaker = new CircuitBreaker(
    { failuresInRow: 10, window: 100, openMs: 5000 },
    () => clock.nowMs,
    () => {
      clock.opened += 1;
    },
  );
  const call = (hasFailed: boolean) => {
    const record = breaker.admit();
    record?.(hasFailed);
    return record !== undefined;
  };
  return { breaker, clock, call };
}

t.test("ten failures in a row open the circuit, and nine do not", async (t) => {
  const { breaker, clock, call } = create();
  for (let round = 0; round < 5; round++) {
    for (let failure = 0; failure < 9; failure++) t.ok(call(true));
    for (let success = 0; success < 12; success++) t.ok(call(false));
  }
  for (let failure = 0; failure < 9; failure++) t.ok(call(true));
  t.equal(breaker.state, "closed");
  t.ok(call(true));
  t.equal(breaker.state, "open");
  t.notOk(call(false), "no call is made");
  t.equal(clock.opened, 1);
});

t.test("the circuit opens if half of the last hundred calls failed", async (t) => {
  const { breaker, call } = create();
  for (let at = 0; at < 99; at++) t.ok(call(at % 2 === 0));
  t.equal(breaker.state, "closed", "fewer than a hundred calls are not judged");
  t.ok(call(false));
  t.equal(breaker.state, "open");
});

t.test("failures that are older than the last hundred calls do not count", async (t) => {
  const { breaker, call } = create();
  for (let at = 0; at < 98; at++) call(at % 2 === 0);
  for (let at = 0; at < 300; at++) t.ok(call(at % 3 === 2));
  t.equal(breaker.state, "closed");
});

t.test("after five seconds, one trial call closes or reopens an open circuit", async (t) => {
  const { breaker, clock, call } = create();
  for (let failure = 0; failure < 10; failure++) call(true);
  clock.nowMs = 4999;
  t.notOk(call(false));
  clock.nowMs = 5000;
  const trial = breaker.admit();
  t.ok(trial);
  t.equal(breaker.state, "half_open");
  t.notOk(call(false), "only one call is tried");
  trial?.(true);
  t.equal(breaker.state, "open");
  clock.nowMs = 9999;
  t.notOk(call(false));
  clock.nowMs = 10_000;
  t.ok(call(false));
  t.equal(breaker.state, "closed");
  for (let failure = 0; failure < 9; failure++) t.ok(call(true), "the count starts again");
});

t.test("results of calls that were made before the circuit opened do not count", async (t) => {
  const { breaker, clock, call } = create();
  const earlier = breaker.admit();
  for (let failure = 0; failure < 10; failure++) call(true);
  earlier?.(false);
  t.equal(breaker.state, "open");
  clock.nowMs = 5000;
  const trial = breaker.admit();
  earlier?.(true);
  t.equal(breaker.state, "half_open");
  trial?.(false);
  t.equal(breaker.state, "closed");
});
