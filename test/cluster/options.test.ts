// The heartbeat interval that is derived from `cluster.deadAfterMs`.

import t from "tap";
import { heartbeatMs } from "../../src/cluster/options.ts";

t.test("the heartbeat interval is at most a third of deadAfterMs and at most 500 ms", async (t) => {
  for (const deadAfterMs of [100, 1000, 2000, 600_000])
    t.ok(deadAfterMs >= 3 * heartbeatMs(deadAfterMs), `deadAfterMs ${deadAfterMs}`);
  t.equal(heartbeatMs(600_000), 500, "the interval is at most 500 ms");
});
