// The port's calls that change streams: checked here, decided in their turn of the queue. No state but the parts'.

import { BrokerError } from "../../../broker/errors.ts";
import type { StreamDraft, StreamStore } from "../../../broker/ports.ts";
import type { Appends } from "./append.ts";
import { MAX_KEY_UNITS, MAX_LABEL_UNITS } from "./append-call.ts";
import {
  type Decision,
  StreamCall,
  type StreamCallParts,
} from "./stream-call.ts";
import { isStreamType } from "./stream-record.ts";
import type { StreamRules } from "./stream-rules.ts";

type StreamWrites = Pick<
  StreamStore,
  "streamEvent" | "cancelStream" | "interruptStreams"
>;

interface StreamWritesParts extends StreamCallParts {
  readonly appends: Appends;
  readonly rules: StreamRules;
  readonly maxStreamBytes: number;
}

export function createStreamWrites(parts: StreamWritesParts): StreamWrites {
  const { rules, appends, maxStreamBytes } = parts;

  function call<Answer>(
    decide: Decision<Answer>,
    bytes: number,
  ): Promise<Answer> {
    return new Promise((resolve, reject) => {
      const step = new StreamCall(parts, decide, { resolve, reject });
      appends.enqueue(step, bytes);
    });
  }

  return {
    async streamEvent(draft) {
      const refused = refusal(draft, maxStreamBytes);
      if (refused !== undefined) throw refused;
      if (appends.isFull) throw new BrokerError("overloaded");
      return call(
        (assignments) => rules.event(draft, assignments),
        draft.data.length,
      );
    },

    async cancelStream(key, clientMsgNo) {
      const name = { key, clientMsgNo };
      if (!isStreamName(name)) return { verdict: "missing", state: undefined };
      if (appends.isFull) throw new BrokerError("overloaded");
      return call((assignments) => rules.cancel(name, assignments), 0);
    },

    /** Not refused for lack of room: it gives some back. */
    async interruptStreams(silentSinceMs) {
      if (rules.silent(silentSinceMs).length === 0) return 0;
      return call(
        (assignments) => rules.interrupt(silentSinceMs, assignments),
        0,
      );
    },
  };
}

/** Whether a stream can have this name. */
export function isStreamName({
  key,
  clientMsgNo,
}: Pick<StreamDraft, "key" | "clientMsgNo">): boolean {
  return key.length <= MAX_KEY_UNITS && clientMsgNo.length <= MAX_LABEL_UNITS;
}

/** What no record, row or stream can hold: it must not reach a batch, where it would fail others. */
function refusal(
  draft: StreamDraft,
  maxBytes: number,
): BrokerError | undefined {
  if (!isStreamType(draft.type)) return new BrokerError("bad_request");
  const { timestampMs } = draft;
  if (timestampMs !== undefined && !Number.isFinite(timestampMs))
    return new BrokerError("bad_request");
  const isHeld =
    isStreamName(draft) &&
    draft.channel.id.length <= MAX_LABEL_UNITS &&
    draft.fromUid.length <= MAX_LABEL_UNITS &&
    (draft.eventId?.length ?? 0) <= MAX_LABEL_UNITS &&
    draft.data.length <= maxBytes;
  return isHeld ? undefined : new BrokerError("too_large");
}
