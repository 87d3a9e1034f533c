// Stores the public keys that were last read from an identity provider: one STRING with JSON.

import type { KeySetStore, StoredKeySet } from "../../../broker/ports.ts";
import type { RedisStorePorts } from "../ports.ts";

const FORMAT = 1;

export function createRedisKeySets({ link }: Pick<RedisStorePorts, "link">): KeySetStore {
  const key = link.keys.shared("keySet");
  return {
    async keySet() {
      const stored = await link.call("get", key);
      if (stored === null) return undefined;
      const { format, ...set } = JSON.parse(String(stored)) as StoredKeySet & { format: number };
      // If a newer build wrote the keys, they are read from the provider instead.
      return format === FORMAT ? set : undefined;
    },

    async putKeySet(set) {
      await link.write("set", key, JSON.stringify({ format: FORMAT, ...set }));
    },
  };
}
