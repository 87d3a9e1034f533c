// The message id counters in Redis: their names, and the check that ids are left. A single server
// has one counter. In a Redis Cluster, each bucket has its own counter, because a script can access
// only its own bucket. Pure.

import { BUCKETS } from "../broker/log-frame.ts";
import { MAX_MESSAGE_ID } from "../broker/model.ts";
import { UnusableRedis } from "./errors.ts";
import type { Keys } from "./keys.ts";

/** Bucket number for scripts on a single server, whose message ids contain no bucket. */
const WHOLE_SERVER = -1;

interface Location {
  readonly keys: Keys;
  readonly isCluster: boolean;
}

export interface IdCounter {
  readonly key: string;
  readonly bucket: number;
}

export function idCounterOf({ keys, isCluster }: Location, bucket: number): IdCounter {
  return isCluster
    ? { key: keys.bucket("messageIds", bucket), bucket }
    : { key: keys.shared("messageIds"), bucket: WHOLE_SERVER };
}

export function idCounterKeys(location: Location): readonly string[] {
  const buckets = Array.from({ length: BUCKETS }, (_, bucket) => bucket);
  return [...new Set(buckets.map((bucket) => idCounterOf(location, bucket).key))];
}

/** Throws an `UnusableRedis` if no valid id follows the newest id of a counter. */
export function assertIdsLeft(key: string, newestId: number): void {
  if (newestId < MAX_MESSAGE_ID) return;
  throw new UnusableRedis(
    `it has message ids above ${MAX_MESSAGE_ID - 1} (the key ${JSON.stringify(key)}). An earlier version assigned them while a clock showed a time after 2093, and may have assigned the same id to several messages. Restore Redis from an older backup, or set a different redis.prefix to begin without data`,
  );
}
