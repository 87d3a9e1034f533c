// Counts how many scopes are read from the database. No port shows this number.

import { channelKey, GROUP_CHANNEL } from "../../../src/broker/model.ts";
import { StreamEnds } from "../../../src/store/embedded/steps/stream-ends.ts";
import { t } from "../../support/suite.ts";

t.test(
  "a channel or user without ended streams is looked up in the database only once",
  async (t) => {
    let reads = 0;
    const ended = channelKey({ id: "g3", type: GROUP_CHANNEL }, "");
    const end = { key: ended, clientMsgNo: "c", messageSeq: 1, endedMs: 1000 };
    const ends = new StreamEnds(
      { of: () => [], personalOf: () => [] },
      {
        *ends(scope) {
          reads += 1;
          if (scope === ended) yield end;
        },
      },
    );
    const keys = Array.from({ length: 500 }, (_, at) =>
      channelKey({ id: `g${at}`, type: GROUP_CHANNEL }, ""),
    );
    t.same(await ends.ofChannels(keys, 0, 100), [end]);
    t.same(ends.ofUser("alice", 0, 100), []);
    const firstReads = reads;
    t.equal(
      firstReads,
      500 + 1 + 1,
      "each scope once for its newest end, and the group with an end again",
    );
    t.same(await ends.ofChannels(keys, 0, 100), [end]);
    t.same(ends.ofUser("alice", 0, 100), []);
    t.equal(reads, firstReads + 1);
  },
);
