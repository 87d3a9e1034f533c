// The calls that change streams in Redis: one step each, issued in the order of the calls; what a stream may do next is decided there. State: their
// turns.

import { STREAM_START } from "../../../../broker/model.ts";
import type { StreamStore } from "../../../../broker/stream-ports.ts";
import type { RedisStoreParts } from "../../parts.ts";
import type { StreamSteps } from "./steps.ts";
import type { FinishStep } from "./telling.ts";
import { StreamTurns } from "./turns.ts";

export interface StreamWriteParts
  extends Pick<RedisStoreParts, "link" | "clock"> {
  readonly steps: StreamSteps;
  readonly finish: FinishStep;
}

export function createStreamWrites({
  link,
  clock,
  steps,
  finish,
}: StreamWriteParts): Pick<StreamStore, "streamEvent" | "cancelStream"> {
  const turns = new StreamTurns({ link, clock });
  return {
    async streamEvent(draft) {
      const { key, type } = draft;
      const isStart = type === STREAM_START;
      const turn = turns.of(key, isStart);
      if (turn !== undefined) await turn;
      const reply = await steps.event(draft);
      const begun = isStart ? turns.begun(key) : undefined;
      if (begun !== undefined) await begun;
      return finish(key, reply);
    },

    async cancelStream(key, clientMsgNo) {
      const turn = turns.of(key, false);
      if (turn !== undefined) await turn;
      return finish(key, await steps.cancel({ key, clientMsgNo }));
    },
  };
}
