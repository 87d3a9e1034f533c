// Ends streams whose producers fell silent, whichever node looks first. State: since when this node has had Redis.

import type { StreamStore } from "../../../../broker/stream-ports.ts";
import { BUCKETS } from "../../../../redis/keys.ts";
import type { RedisStoreParts } from "../../parts.ts";
import type { StreamSteps } from "./steps.ts";
import type { FinishStep } from "./telling.ts";

/** Silent streams of a bucket that are ended at a time. */
const PAGE = 64;

export interface StreamSilenceParts
  extends Pick<RedisStoreParts, "link" | "clock"> {
  readonly steps: StreamSteps;
  readonly finish: FinishStep;
}

export function createStreamSilence(
  parts: StreamSilenceParts,
): Pick<StreamStore, "interruptStreams"> {
  const { link, clock, steps, finish } = parts;
  let reachableSinceMs = clock();
  link.onChange((isUp) => {
    if (isUp) reachableSinceMs = clock();
  });

  /** Ends what was silent in a bucket; returns how many. */
  async function endIn(bucket: number, sinceMs: number): Promise<number> {
    const live = link.keys.bucket("live", bucket);
    const range = ["-inf", `(${sinceMs}`, "LIMIT", 0, PAGE];
    for (let count = 0; ; ) {
      const found = await link.call("zrangebyscore", live, ...range);
      const names = (found as readonly Buffer[]).map(String); // Redis' reply
      const ended = await Promise.all(names.map((n) => end(n, sinceMs)));
      count += ended.filter(Boolean).length;
      if (names.length < PAGE) return count; // each of a page has left the range
    }
  }

  async function end(name: string, sinceMs: number): Promise<boolean> {
    const at = name.indexOf("\n");
    const [key, clientMsgNo] = [name.slice(0, at), name.slice(at + 1)];
    const reply = await steps.interrupt({ key, clientMsgNo }, sinceMs);
    const { verdict } = await finish(key, reply);
    return verdict === "done";
  }

  return {
    /**
     * While Redis was away no producer could be heard, so silence counts from when it came back; so it does where this node began, for all nodes
     * may have been away.
     */
    async interruptStreams(silentSinceMs) {
      if (silentSinceMs < reachableSinceMs) return 0;
      const buckets = Array.from({ length: BUCKETS }, (_, bucket) =>
        endIn(bucket, silentSinceMs),
      );
      const counts = await Promise.all(buckets);
      return counts.reduce((sum, count) => sum + count, 0);
    },
  };
}
