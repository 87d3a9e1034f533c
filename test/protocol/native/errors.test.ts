// Error names and close reasons on the wire, also those of a newer server.

import {
  CLOSE_REASONS,
  type CloseReason,
  ERRORS,
  type ErrorCode,
} from "../../../src/broker/errors.ts";
import { closeReasonOf, errorCodeOf, wireCodeOf } from "../../../src/protocol/native/errors.ts";
import { t } from "../../support/suite.ts";

t.test("every error has a wire name of its own, every reason a close code", async (t) => {
  const codes = Object.keys(ERRORS) as ErrorCode[];
  for (const code of codes) t.equal(errorCodeOf(wireCodeOf(code), false), code);
  const reasons = Object.keys(CLOSE_REASONS) as CloseReason[];
  for (const reason of reasons) t.equal(closeReasonOf(CLOSE_REASONS[reason].code), reason);
});

t.test("an unknown error keeps its answer to whether to retry", async (t) => {
  for (const retry of [true, false])
    t.equal(ERRORS[errorCodeOf("of_tomorrow", retry)].retry, retry);
});

t.test("an unknown reason keeps its range of close codes", async (t) => {
  for (const code of [4000, 4050, 4099, 4100, 4199, 4200, 4299]) {
    const known = CLOSE_REASONS[closeReasonOf(code)].code;
    t.equal(Math.floor(known / 100), Math.floor(code / 100), String(code));
  }
});
