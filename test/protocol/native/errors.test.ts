// Error names and close reasons in native frames, including those of a newer server.

import {
  CLOSE_REASONS,
  type CloseReason,
  ERRORS,
  type ErrorCode,
} from "../../../src/broker/errors.ts";
import { closeReasonOf, errorCodeOf, wireCodeOf } from "../../../src/protocol/native/errors.ts";
import { t } from "../../support/suite.ts";

t.test(
  "every error code has its own name in a frame, and every close reason its own close code",
  async (t) => {
    const codes = Object.keys(ERRORS) as ErrorCode[];
    for (const code of codes) t.equal(errorCodeOf(wireCodeOf(code), false), code);
    const reasons = Object.keys(CLOSE_REASONS) as CloseReason[];
    for (const reason of reasons) t.equal(closeReasonOf(CLOSE_REASONS[reason].code), reason);
  },
);

t.test("an unknown error code is kept, or read as `unavailable` if a retry may help", async (t) => {
  t.equal(errorCodeOf("future_code", false), "future_code");
  t.equal(errorCodeOf("future_code", true), "unavailable");
  for (const [code, { retry }] of Object.entries(ERRORS)) t.equal(errorCodeOf(code, retry), code);
});

t.test("an unknown close code is read as a known close code of the same range", async (t) => {
  for (const code of [4000, 4050, 4099, 4100, 4199, 4200, 4299]) {
    const knownCode = CLOSE_REASONS[closeReasonOf(code)].code;
    t.equal(Math.floor(knownCode / 100), Math.floor(code / 100), String(code));
  }
});
