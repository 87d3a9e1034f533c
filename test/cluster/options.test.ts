// The heartbeat that follows from the option for dead nodes.

import t from "tap";
import { heartbeatMs } from "../../src/cluster/options.ts";

t.test("a node is not dead for one late heartbeat", async (t) => {
  for (const deadAfterMs of [100, 1000, 2000, 600_000])
    t.ok(deadAfterMs >= 3 * heartbeatMs(deadAfterMs), `${deadAfterMs}`);
  t.equal(heartbeatMs(600_000), 500, "deaths of others are known soon");
});
