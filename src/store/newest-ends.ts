// Selects the newest stream ends among those of many channels. Reads the channels in batches, and
// stops when no remaining channel can contain one of the newest ends. Pure except for the reads.

import type { StreamEnd } from "../broker/ports.ts";
import type { MaybePromise } from "../lib/maybe-promise.ts";

/**
 * Maximum number of channels per read. The ends of all channels of a read are in memory at the same
 * time.
 */
const CHANNELS_PER_READ = 16;

/**
 * Returns the newest ends at `sinceMs` or later, at most `limit` of them. `read` reads the ends of
 * some of the channels.
 */
export async function newestEnds<Channel extends { readonly newestMs: number }>(
  channels: readonly Channel[],
  { sinceMs, limit }: { readonly sinceMs: number; readonly limit: number },
  read: (channels: readonly Channel[], sinceMs: number) => MaybePromise<readonly StreamEnd[]>,
): Promise<readonly StreamEnd[]> {
  const newestFirst = channels.toSorted((a, b) => b.newestMs - a.newestMs);
  let ends: readonly StreamEnd[] = [];
  let oldestMs = sinceMs;
  for (let at = 0; at < newestFirst.length; at += CHANNELS_PER_READ) {
    const next = newestFirst.slice(at, at + CHANNELS_PER_READ);
    if ((next[0]?.newestMs ?? 0) < oldestMs) break;
    const more = await read(next, oldestMs);
    ends = [...ends, ...more].toSorted((a, b) => b.endedMs - a.endedMs).slice(0, limit);
    if (ends.length === limit) oldestMs = Math.max(oldestMs, ends.at(-1)?.endedMs ?? 0);
  }
  return ends;
}
