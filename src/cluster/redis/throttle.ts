// Counts failed attempts in Redis, so that all nodes share the counts. Each key has one HASH, which
// stores the number of failures, and the end and length of the key's time window. A node's estimate
// of Redis' time decides whether a window has ended. Redis expires the HASH later, to free its
// memory.

import { createHash } from "node:crypto";
import type { Clock, Throttle } from "../../broker/ports.ts";
import type { RedisLink } from "../../redis/link.ts";
import { loadScript } from "../../redis/script.ts";

const ADD = loadScript(new URL("./lua/throttle_add.lua", import.meta.url));

/**
 * Time for which a HASH outlives its window. The nodes' estimates of Redis' time differ by less
 * than this time.
 */
const CLOCK_TOLERANCE_MS = 60_000;

export function createRedisThrottle(link: RedisLink, clock: Clock): Throttle {
  const keyOf = (key: string) =>
    link.keys.shared(`fails:${createHash("sha256").update(key).digest("hex")}`);

  return {
    async failures(key) {
      const reply = await link.call("hmget", keyOf(key), "count", "ends", "window");
      const [count = 0, ends = 0, windowMs = 0] = (reply as unknown[]).map(Number); // HMGET's reply
      const remainingMs = ends - clock();
      // If a window ends more than `CLOCK_TOLERANCE_MS` later than a new window would, it began
      // before the clock was set back.
      const isFromLaterClock = windowMs > 0 && remainingMs > windowMs + CLOCK_TOLERANCE_MS;
      if (remainingMs <= 0 || isFromLaterClock) return { count: 0, retryAfterS: 0 };
      return { count, retryAfterS: Math.ceil(remainingMs / 1000) };
    },

    async addFailure(key, windowMs) {
      const nowMs = clock();
      const args = [nowMs, windowMs, CLOCK_TOLERANCE_MS];
      const reply = await link.run(ADD, [keyOf(key)], args);
      const [count = 0, ends = 0] = (reply as unknown[]).map(Number); // the script's reply
      return { count, retryAfterS: Math.ceil((ends - nowMs) / 1000) };
    },

    async clear(key) {
      await link.write("del", keyOf(key));
    },
  };
}
