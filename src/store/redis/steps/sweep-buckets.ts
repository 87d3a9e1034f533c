// Finds the buckets that a sweep of a single server must process, so that a sweep of an idle store
// costs one call. Also processes the due members of a bucket's sorted set.

import { BUCKETS } from "../../../broker/log-frame.ts";
import type { RedisLink } from "../../../redis/link.ts";
import { loadScript } from "../../../redis/script.ts";
import { SweepFailures } from "../../sweep-failures.ts";
import { lua } from "../ports.ts";

export type ScoreRange = readonly [from: string, to: string];

const MEMBERS_PER_PAGE = 64;

const SWEEP_BUCKETS = loadScript(lua("sweep_buckets"));

/** All buckets. A sweep of a Redis Cluster processes all of them, each with at least one call. */
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

/**
 * Processes the members of a sorted set whose score is at most `nowMs`, one after another.
 * `process` returns false if its member stays due. Throws the first error after the last member, or
 * as soon as 100 calls have failed (see `SweepFailures`).
 */
export async function sweepDue(
  link: RedisLink,
  key: string,
  {
    nowMs,
    isStopped,
    process,
  }: {
    readonly nowMs: number;
    readonly isStopped: () => boolean;
    readonly process: (member: string, score: string) => Promise<boolean>;
  },
): Promise<void> {
  if (isStopped()) return;
  const failures = new SweepFailures();
  let left = 0;
  let texts: readonly string[];
  do {
    const range = ["-inf", nowMs, "WITHSCORES", "LIMIT", left, MEMBERS_PER_PAGE];
    const reply = (await link.call("zrangebyscore", key, ...range)) as readonly Buffer[];
    texts = reply.map(String);
    for (let at = 0; at < texts.length && !isStopped(); at += 2) {
      const [member = "", score = ""] = texts.slice(at, at + 2);
      const isProcessed = await failures.attempt(() => process(member, score));
      if (isProcessed !== true) left += 1;
    }
  } while (texts.length === 2 * MEMBERS_PER_PAGE && !isStopped());
  failures.throwFirst();
}
