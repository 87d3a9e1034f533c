// The tables of error codes and close reasons.

import { BrokerError, CLOSE_REASONS, type CloseReason, ERRORS } from "../../src/broker/errors.ts";
import { t } from "../support/suite.ts";

t.test(
  "a BrokerError has the message of its code unless it is created with its own message",
  async (t) => {
    const cause = new Error("socket hang up");
    const error = new BrokerError("unavailable", { cause, retryAfterMs: 1001 });
    t.match(error, {
      name: "BrokerError",
      code: "unavailable",
      message: ERRORS.unavailable.message,
      details: undefined,
      ...{ retryAfterMs: 1001, retryAfterS: 2 },
      cause,
    });
    const precise = new BrokerError("bad_id", {
      message: "uid is empty",
      details: [{ path: "uid", message: "empty" }],
    });
    t.equal(precise.message, "uid is empty");
    t.same(precise.details, [{ path: "uid", message: "empty" }]);
  },
);

const RANGES: Readonly<Record<CloseReason, "at once" | "later" | "never">> = {
  draining: "at once",
  slow_reader: "at once",
  rate_limited: "later",
  auth_timeout: "later",
  unavailable: "later",
  token_expired: "later",
  kicked: "never",
  auth_failed: "never",
  replaced: "never",
  token_changed: "never",
  logged_out: "never",
  protocol_error: "never",
  goodbye: "never",
  banned: "never",
};

t.test("the range of a close code determines whether and when clients reconnect", async (t) => {
  const ranges = ["at once", "later", "never"];
  for (const [reason, { code }] of Object.entries(CLOSE_REASONS))
    t.equal(ranges[Math.floor((code - 4000) / 100)], RANGES[reason as CloseReason], reason);
});

t.test("every close reason has a code of its own", async (t) => {
  const codes = Object.values(CLOSE_REASONS).map(({ code }) => code);
  t.equal(new Set(codes).size, codes.length);
});
