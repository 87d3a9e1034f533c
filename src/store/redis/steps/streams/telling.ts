// What follows a step on a stream before its caller is answered: on a Redis Cluster the users of a personal channel are told, and replicas have it.
// No state.

import { BrokerError } from "../../../../broker/errors.ts";
import type { ChannelKey } from "../../../../broker/model.ts";
import type { StreamStep } from "../../../../broker/stream-ports.ts";
import { bucketOf } from "../../../../redis/keys.ts";
import {
  kindOf,
  MESSAGE_FRAME,
  STREAM_STATES,
} from "../../../../redis/wire.ts";
import type { RedisStoreParts } from "../../parts.ts";
import { tellUsers } from "../personal.ts";

/** Finishes a step by its reply (`lua/stream_steps.lua`). Throws `too_large`, `unavailable`. */
export type FinishStep = (
  key: ChannelKey,
  reply: unknown,
) => Promise<StreamStep>;

type Verdict = StreamStep["verdict"] | "too_large";

export function createFinishStep(parts: RedisStoreParts): FinishStep {
  const { link, clock, written, onProblem } = parts;

  async function tell(
    key: ChannelKey,
    ended: string,
    frames: readonly Buffer[],
  ): Promise<void> {
    const atMs = clock();
    await Promise.all(
      frames.map((frame) =>
        tellUsers(link, key, {
          frame,
          keptAtMs: kindOf(frame) === MESSAGE_FRAME ? atMs : undefined,
        }),
      ),
    );
    if (ended === "") return;
    // Were it not taken out, its users would once more be told of its end.
    link
      .call("zrem", link.keys.bucket("live", bucketOf(key)), ended)
      .catch((error: unknown) =>
        onProblem(error, "The end of a stream could not be published"),
      );
  }

  return async (key, reply) => {
    const [verdict, state, ended = "", ...frames] = reply as [
      ...[Buffer, number, Buffer?, ...Buffer[]],
    ]; // Redis' reply
    if (frames.length > 0) await tell(key, String(ended), frames);
    await written(link.keys.channel("head", key));
    const became = String(verdict) as Verdict;
    if (became === "too_large") throw new BrokerError("too_large");
    return { verdict: became, state: STREAM_STATES[state] };
  };
}
