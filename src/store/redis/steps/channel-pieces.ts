// Splits long lists of channels into the arguments of scripts that read many channels. Pure.

import type { ChannelKey } from "../../../broker/model.ts";
import { piecesOf } from "../../../lib/pieces.ts";
import type { Keys } from "../../../redis/keys.ts";
import type { RedisLink } from "../../../redis/link.ts";
import type { Arg } from "../../../redis/script.ts";

/**
 * Splits channels into pieces of at most `length` channels, one piece per call. On a Redis Cluster,
 * a piece's keys are in one slot.
 */
export function channelPieces(
  { isCluster, keys }: Pick<RedisLink, "isCluster" | "keys">,
  channels: readonly ChannelKey[],
  length: number,
): readonly (readonly ChannelKey[])[] {
  const slots = isCluster ? [...keys.byBucket(channels).values()] : [channels];
  return slots.flatMap((slot) => [...piecesOf(slot, length)]);
}

interface BucketArgs {
  /** KEYS: the key prefix of each bucket. */
  readonly tags: readonly string[];
  /** ARGV: for each bucket, the number of its channels and their keys. */
  readonly args: readonly Arg[];
  readonly ordered: readonly ChannelKey[];
}

export function bucketArgs(keys: Keys, channels: readonly ChannelKey[]): BucketArgs {
  const buckets = keys.byBucket(channels);
  const lists = [...buckets.values()];
  return {
    tags: [...buckets.keys()],
    args: lists.flatMap((list) => [list.length, ...list]),
    ordered: lists.flat(),
  };
}
