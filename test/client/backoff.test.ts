// When to connect again.

import { CLOSE_REASONS, ERRORS } from "../../src/broker/errors.ts";
import { reconnectDelayMs, reconnectTiming } from "../../src/client/connector.ts";
import { RETRYABLE } from "../../src/client/errors.ts";
import { t } from "../support/suite.ts";

t.test("every close reason of the server is obeyed by its range", async (t) => {
  for (const [name, { code }] of Object.entries(CLOSE_REASONS)) {
    const expected = code < 4100 ? "at_once" : code < 4200 ? "pause" : "never";
    t.equal(reconnectTiming(code), expected, name);
  }
  for (const code of [1000, 1001, 1006, 1011, 1013, 4300])
    t.equal(reconnectTiming(code), "pause", `${code}`);
});

t.test("pauses double up to the most, half of each is chance", async (t) => {
  const bounds = { minMs: 100, maxMs: 1000 };
  const longest = (attempt: number) => reconnectDelayMs(attempt, bounds, () => 1);
  const shortest = (attempt: number) => reconnectDelayMs(attempt, bounds, () => 0);
  t.same([0, 1, 2, 3, 4, 5, 99].map(longest), [100, 200, 400, 800, 1000, 1000, 1000]);
  t.same([0, 1, 2, 3, 4, 99].map(shortest), [0, 100, 200, 400, 500, 500]);
});

t.test("the SDK knows of every code whether a retry may help", async (t) => {
  const codes = Object.entries(ERRORS).filter(([, { retry }]) => retry);
  const known = Object.keys(ERRORS).filter((code) => RETRYABLE.has(code));
  t.same(
    codes.map(([code]) => code),
    known,
  );
  t.ok(known.length > 0);
});
