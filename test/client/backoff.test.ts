// Reconnecting: which close codes allow it, and how long the client waits.

import { CLOSE_REASONS, ERRORS } from "../../src/broker/errors.ts";
import { reconnectDelayMs, reconnectTiming, refusedDelayMs } from "../../src/client/connector.ts";
import { RETRYABLE } from "../../src/client/errors.ts";
import { t } from "../support/suite.ts";

t.test("the range of a close code decides whether and when the client reconnects", async (t) => {
  for (const [name, { code }] of Object.entries(CLOSE_REASONS)) {
    const expected = code < 4100 ? "at_once" : code < 4200 ? "pause" : "never";
    t.equal(reconnectTiming(code), expected, name);
  }
  for (const code of [1000, 1001, 1006, 1011, 1013, 4300])
    t.equal(reconnectTiming(code), "pause", `the client pauses after close code ${code}`);
});

t.test("the reconnect delay doubles up to its maximum, and half of it is random", async (t) => {
  const bounds = { minMs: 100, maxMs: 1000 };
  const longest = (attempt: number) => reconnectDelayMs(attempt, bounds, () => 1);
  const shortest = (attempt: number) => reconnectDelayMs(attempt, bounds, () => 0);
  t.same([0, 1, 2, 3, 4, 5, 99].map(longest), [100, 200, 400, 800, 1000, 1000, 1000]);
  t.same([0, 1, 2, 3, 4, 99].map(shortest), [0, 100, 200, 400, 500, 500]);
});

t.test("the SDK and the server agree on which error codes may be retried", async (t) => {
  const codes = Object.entries(ERRORS).filter(([, { retry }]) => retry);
  const retryable = Object.keys(ERRORS).filter((code) => RETRYABLE.has(code));
  t.same(
    codes.map(([code]) => code),
    retryable,
  );
  t.ok(retryable.length > 0);
});

t.test(
  "a refused connection is retried after 50 to 150 ms at first, and the delay grows up to the maximum",
  async (t) => {
    const bounds = { minMs: 500, maxMs: 30_000 };
    const range = (attempt: number) =>
      [0, 1].map((random) => Math.round(refusedDelayMs(attempt, bounds, () => random)));
    t.same(range(0), [50, 150], "first delay");
    t.same(range(1), [100, 300], "second delay");
    for (const attempt of [2, 5, 11]) t.same(range(attempt), [200, 600], `delay ${attempt}`);
    t.same(range(12), [400, 1200], "the delay doubles again if the server stays away");
    t.same(range(99), [10_000, 30_000], "the delay ends at maxMs");
  },
);
