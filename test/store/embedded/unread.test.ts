// The number of rows that are read to count unread messages that expire.

import { UnreadCounter } from "../../../src/store/embedded/steps/unread.ts";
import { t } from "../../support/suite.ts";

t.test(
  "counting unread messages reads the rows of at most 1,000 expiring messages, newest first",
  (t) => {
    const rows = 100_000;
    let readRows = 0;
    const state = { number: 1, head: rows, headCounted: 0, active: undefined };
    const unread = new UnreadCounter({
      clock: () => 0,
      retentionMs: Infinity,
      states: {
        recordFrom: (_, seq) => ({ seq, acceptedMs: 0, counted: 0, isCounted: false }) as const,
        *expiringNewestFirst(_, fromSeq) {
          for (let seq = rows; seq >= fromSeq; seq--) {
            readRows++;
            yield { seq, acceptedMs: 0, expiresAtMs: seq > 50_000 ? 1 : 0 };
          }
        },
      },
    });
    t.equal(unread.count(state, 0), 1000);
    t.equal(readRows, 1000);
    t.equal(unread.positionOf(state, 5, 0), rows - 5);
    t.equal(readRows, 2000);
    t.end();
  },
);
