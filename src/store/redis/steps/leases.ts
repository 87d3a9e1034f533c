// Leases in Redis: one hash for each task, in the slot of the keys that the whole cluster shares.
// Keeps no state.

import type { LeaseStore } from "../../../broker/lease-ports.ts";
import type { Keys } from "../../../redis/keys.ts";
import { loadScript } from "../../../redis/script.ts";
import { lua, type RedisStorePorts } from "../ports.ts";

const LEASE = loadScript(lua("lease"), lua("lease_acquire"));

export const leaseKey = (keys: Keys, name: string): string => keys.shared(`lease:${name}`);

export function createRedisLeases({ link }: Pick<RedisStorePorts, "link">): LeaseStore {
  return {
    async acquireLease(name, owner, ttlMs) {
      const token = Number(await link.run(LEASE, [leaseKey(link.keys, name)], [owner, ttlMs, ""]));
      return token === 0 ? undefined : { name, token };
    },

    async releaseLease({ name, token }, owner) {
      await link.run(LEASE, [leaseKey(link.keys, name)], [owner, 0, token]);
    },
  };
}
