// Failed credentials that all nodes count together: a hash per key, with the count and when its
// window ends. No state but in Redis; what ends by itself there does so later than the window,
// which goes by the clock.

import { createHash } from "node:crypto";
import type { Clock, Throttle } from "../../broker/ports.ts";
import type { RedisLink } from "../../redis/link.ts";
import { loadScript } from "../../redis/script.ts";

const ADD = loadScript(new URL("./lua/throttle_add.lua", import.meta.url));

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
      const nowMs = clock();
      const args = [nowMs, windowMs, RECLAIM_AFTER_MS];
      const reply = await link.run(ADD, [keyOf(key)], args);
      const [count = 0, ends = 0] = (reply as unknown[]).map(Number); // the script's reply
      return { count, retryAfterS: Math.ceil((ends - nowMs) / 1000) };
    },

    async clear(key) {
      await link.call("del", keyOf(key));
    },
  };
}
