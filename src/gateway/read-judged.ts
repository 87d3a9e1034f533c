// Reading for a session what it may no longer be allowed to see: a node that missed events does not know yet whom it must not show what the store has.
// State: none.

import type { Cluster } from "../broker/ports.ts";

/**
 * What `read` gives at a time when the node misses nothing: whoever lost a right before what was read was stored has been told out by then. Rejects
 * `unavailable` where the node does not recover in time.
 */
export async function readJudged<T>(
  cluster: Pick<Cluster, "recovery">,
  read: () => Promise<T> | T,
): Promise<T> {
  for (;;) {
    const found = await read();
    const recovery = cluster.recovery();
    if (recovery === undefined) return found;
    await recovery;
  }
}
