// The tables of refusals and close reasons: what an edge and a client rely on.

import { BrokerError, CLOSE_REASONS, type CloseReason, ERRORS } from "../../src/broker/errors.ts";
import { t } from "../support/suite.ts";

t.test("a BrokerError speaks its table's sentence by default", async (t) => {
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
});

const RANGES: Readonly<Record<CloseReason, "at once" | "later" | "never">> = {
  draining: "at once",
  slow_reader: "at once",
  rate_limited: "later",
  auth_timeout: "later",
  unavailable: "later",
  kicked: "never",
  auth_failed: "never",
  replaced: "never",
  token_changed: "never",
  logged_out: "never",
  protocol_error: "never",
  goodbye: "never",
};

t.test("a close code's range says whether to reconnect", async (t) => {
  const ranges = ["at once", "later", "never"];
  for (const [reason, { code }] of Object.entries(CLOSE_REASONS))
    t.equal(ranges[Math.floor((code - 4000) / 100)], RANGES[reason as CloseReason], reason);
});

t.test("no two close reasons share a code", async (t) => {
  const codes = Object.values(CLOSE_REASONS).map(({ code }) => code);
  t.equal(new Set(codes).size, codes.length);
});
