// System accounts in Redis: one set that the whole cluster shares. Keeps no state.

import type { SystemAccountStore } from "../../../broker/ports.ts";
import type { Keys } from "../../../redis/keys.ts";
import type { RedisStorePorts } from "../ports.ts";

export const systemUidsKey = (keys: Keys): string => keys.shared("systemUids");

export function createRedisSystemAccounts({
  link,
  waitForReplicas,
}: Pick<RedisStorePorts, "link" | "waitForReplicas">): SystemAccountStore {
  const key = systemUidsKey(link.keys);
  return {
    async systemUids() {
      const uids = await link.call("smembers", key);
      return (uids as readonly Buffer[]).map(String); // the reply of SMEMBERS
    },

    async changeSystemUids(kind, uids) {
      if (uids.length === 0) return;
      await link.write(kind === "add" ? "sadd" : "srem", key, ...uids);
      await waitForReplicas(key);
    },
  };
}
