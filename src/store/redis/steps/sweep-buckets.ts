// Finds the buckets that a sweep of a single server must process, so that a sweep of an idle store
// costs one call.

import { BUCKETS } from "../../../broker/log-frame.ts";
import type { RedisLink } from "../../../redis/link.ts";
import { loadScript } from "../../../redis/script.ts";
import { lua } from "../ports.ts";

export type ScoreRange = readonly [from: string, to: string];

const SWEEP_BUCKETS = loadScript(lua("sweep_buckets"));

/** All buckets. A sweep of a Redis Cluster processes all of them, with one call per bucket. */
export const ALL_BUCKETS = Array.from({ length: BUCKETS }, (_, bucket) => bucket);

/**
 * Returns the buckets whose key `part` exists. With `ranges`, returns the buckets whose key `part`
 * has a score in one of the ranges.
 */
export async function bucketsWithWork(
  link: RedisLink,
  part: string,
  ranges: readonly ScoreRange[] = [],
): Promise<readonly number[]> {
  const keys = ALL_BUCKETS.map((bucket) => link.keys.bucket(part, bucket));
  const positions = (await link.run(SWEEP_BUCKETS, keys, ranges.flat())) as readonly number[];
  return positions.map((position) => position - 1);
}
