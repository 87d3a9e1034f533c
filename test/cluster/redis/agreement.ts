// Creates the agreement of a test node. The node never adopts the longer timings of another node,
// because tests freeze a node whose timings are longer than those of the others.

import { Agreement } from "../../../src/cluster/redis/nodes/agreement.ts";

class OwnTimings extends Agreement {
  override update(): void {}
}

export function agreementOf(deadAfterMs: number): Agreement {
  const timings = {
    ...{ "cluster.deadAfterMs": deadAfterMs, "redis.timeoutMs": 3000 },
    "store.dedupeWindowS": 86_400,
  };
  return new OwnTimings({ timings, settings: {}, acceptsNewTimings: true });
}
