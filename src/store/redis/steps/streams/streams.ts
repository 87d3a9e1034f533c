// The streams of the Redis store: the port's calls. No state but the parts'. Must never answer a call before what it did or shows is replicated as
// configured and has reached this node's own listener.

import type { StreamStore } from "../../../../broker/stream-ports.ts";
import type { RedisStoreParts } from "../../parts.ts";
import { createStreamReads, streamReadScripts } from "./reads.ts";
import { createStreamSilence } from "./silence.ts";
import { createStreamSteps, streamStepScripts } from "./steps.ts";
import { createFinishStep } from "./telling.ts";
import { createStreamWrites } from "./writes.ts";

/** What the link must know. */
export const streamScripts = [...streamStepScripts, ...streamReadScripts];

/** Every call throws `unavailable` (a write may have taken effect: the same event again is a retry) or `overloaded` as the link does. */
export function createRedisStreams(parts: RedisStoreParts): StreamStore {
  const steps = createStreamSteps(parts);
  const finish = createFinishStep(parts);
  return {
    ...createStreamWrites({ ...parts, steps, finish }),
    ...createStreamSilence({ ...parts, steps, finish }),
    ...createStreamReads(parts),
  };
}
