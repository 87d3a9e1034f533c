// Reason codes of WuKongIM's protocols, which are fixed numbers that applications compare. Tested
// on the private file, because a socket shows only the codes of refusals that a test can cause.

import { ERRORS, type ErrorCode } from "../../../src/broker/errors.ts";
import {
  KICKED_REASON,
  reasonOf,
  SUCCESS_REASON,
} from "../../../src/compat/wukongim/reason-codes.ts";
import { t } from "../../support/suite.ts";

t.test("error codes are mapped to the reason codes of WuKongIM", async (t) => {
  const expected = [
    ["unauthorized", 2],
    ["not_subscriber", 3],
    ["denylisted", 4],
    ["bad_payload", 9],
    ["stranger_refused", 13],
    ["not_allowlisted", 13],
    ["unavailable", 15],
    ["channel_banned", 19],
    ["rate_limited", 22],
    ["channel_disbanded", 24],
    ["send_banned", 25],
  ] as const satisfies readonly (readonly [ErrorCode, number])[];
  for (const [code, reason] of expected) t.equal(reasonOf(code), reason, code);
  t.equal(SUCCESS_REASON, 1, "the reason code of success is 1");
  t.equal(KICKED_REASON, 12, "the reason code of a kick is 12");
});

t.test("no error code is mapped to the reason code of success or of a kick", async (t) => {
  const special: readonly number[] = [SUCCESS_REASON, KICKED_REASON];
  for (const code of Object.keys(ERRORS) as ErrorCode[])
    t.notOk(special.includes(reasonOf(code)), code);
});
