// Where the ids of a channel's messages are counted: on one server all channels share a counter, so that a call that stores into many of them reads one;
// on a Redis Cluster a step reaches its bucket only, which has a counter of its own. `redis/lua/shared.lua` is the other half. Pure.

import { BUCKETS } from "../../../redis/keys.ts";
import type { RedisLink } from "../../../redis/link.ts";

/** What the steps take for the name of a bucket: ids of one server name none. */
const WHOLE_SERVER = -1;

type Place = Pick<RedisLink, "keys" | "isCluster">;

export interface IdCounter {
  readonly key: string;
  /** As the steps are given it. */
  readonly bucket: number;
}

/** The counter of a bucket's channels. */
export function idCounterOf(
  { keys, isCluster }: Place,
  bucket: number,
): IdCounter {
  return isCluster
    ? { key: keys.bucket("id", bucket), bucket }
    : { key: keys.shared("id"), bucket: WHOLE_SERVER };
}

/** The keys of all counters. */
export function idCounterKeys(link: Place): readonly string[] {
  const buckets = Array.from({ length: BUCKETS }, (_, bucket) => bucket);
  return [...new Set(buckets.map((bucket) => idCounterOf(link, bucket).key))];
}
