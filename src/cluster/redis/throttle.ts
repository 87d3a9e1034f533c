// Failed logins that all nodes count together: a hash per key, with the count and when its window ends. No state but in Redis; what ends by
// itself there does so later than the window, which goes by the clock.

import { createHash } from "node:crypto";
import type { Clock, Throttle } from "../../broker/ports.ts";
import type { RedisLink } from "../../redis/link.ts";
import { loadScript, type Script } from "../../redis/script.ts";

const ADD = loadScript(new URL("./lua/throttle_add.lua", import.meta.url));

export const throttleScripts: readonly Script[] = [ADD];

/** Nodes' clocks differ by less. */
const RECLAIM_AFTER_MS = 60_000;

/** Every call throws `unavailable` while Redis is away. */
export function createRedisThrottle(link: RedisLink, clock: Clock): Throttle {
  /** Names come from outside: what is kept of them has one length. */
  const keyOf = (key: string) =>
    link.keys.shared(`fails:${createHash("sha256").update(key).digest("hex")}`);

  return {
    async failures(key) {
      const reply = await link.call("hmget", keyOf(key), "count", "ends");
      const [count, ends] = (reply as unknown[]).map(Number); // HMGET's reply
      const leftMs = (ends ?? 0) - clock();
      if (leftMs <= 0) return { count: 0, retryAfterS: 0 };
      return { count: count ?? 0, retryAfterS: Math.ceil(leftMs / 1000) };
    },

    async addFailure(key, windowMs) {
      const args = [clock(), windowMs, RECLAIM_AFTER_MS];
      await link.run(ADD, [keyOf(key)], args);
    },

    async clear(key) {
      await link.call("del", keyOf(key));
    },
  };
}
