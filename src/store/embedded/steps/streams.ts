// The port's calls that change streams: checked here, decided in their turn of the queue. And the
// state machine of streams: what an event, a viewer's cancel and a producer's silence do to them
// [spec: Streaming text session; decisions: Messages and events]. It decides on what is assigned,
// committed or not, and asks for assignments. No state.

import { BrokerError } from "../../../broker/errors.ts";
import {
  type ChannelKey,
  STREAM_CONTENT,
  STREAM_END,
  STREAM_START,
} from "../../../broker/model.ts";
import type { StreamDraft, StreamResult, StreamStore } from "../../../broker/ports.ts";
import { MAX_LABEL_UNITS } from "../engine/tables.ts";
import type { Appends } from "./append.ts";
import type { LiveStream } from "./live-stream.ts";
import { createStreamReads, type StreamReadsParts } from "./stream-reads.ts";
import { type Ending, isStreamName, isStreamType, stateAfter } from "./stream-record.ts";
import type { EndedStream } from "./stream-rows.ts";
import {
  type Decision,
  type StreamAssignments,
  StreamCall,
  type StreamCallParts,
} from "./stream-steps.ts";

interface StreamParts extends StreamCallParts, StreamReadsParts {
  readonly appends: Appends;
  readonly maxStreamBytes: number;
}

export function createStreams(parts: StreamParts): StreamStore {
  const { appends, maxStreamBytes } = parts;
  const rules = new StreamRules(parts);

  function call<Answer>(decide: Decision<Answer>, bytes: number): Promise<Answer> {
    return new Promise((resolve, reject) => {
      const step = new StreamCall(parts, decide, { resolve, reject });
      appends.enqueue(step, bytes);
    });
  }

  return {
    ...createStreamReads(parts),

    async streamEvent(draft) {
      const refused = refusal(draft, maxStreamBytes);
      if (refused !== undefined) throw refused;
      if (appends.isFull) throw new BrokerError("overloaded");
      return call((assignments) => rules.event(draft, assignments), draft.data.length);
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
      return call((assignments) => rules.interrupt(silentSinceMs, assignments), 0);
    },
  };
}

/**
 * What no record, row or stream can hold: it must not reach a batch, where it would fail others.
 */
function refusal(draft: StreamDraft, maxBytes: number): BrokerError | undefined {
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

class StreamRules {
  readonly #parts: Pick<StreamParts, "live" | "streamRows" | "assigner">;

  constructor(parts: StreamParts) {
    this.#parts = parts;
  }

  /** The port's `streamEvent`. */
  event(draft: StreamDraft, assignments: StreamAssignments): StreamResult {
    const { live, streamRows: rows } = this.#parts;
    const stream = live.find(draft.key, draft.clientMsgNo);
    const isStart = draft.type === STREAM_START;
    if (stream?.ending === undefined && stream !== undefined) {
      const isRetry = isStart || stream.knows(draft.eventId);
      if (!isRetry) {
        live.assertRoom(draft, stream.snapshotBytes);
        assignments.add(stream, toEvent(draft));
      }
      return { verdict: "done", state: stateAfter(stream.ending) };
    }
    const ended = stream ?? rows.find(draft.key, draft.clientMsgNo);
    if (ended !== undefined) return this.#late(draft, ended);
    if (isStart) return this.#start(draft, assignments);
    return { verdict: "missing", state: undefined };
  }

  /** The port's `cancelStream`. */
  cancel(
    name: { readonly key: ChannelKey; readonly clientMsgNo: string },
    assignments: StreamAssignments,
  ): StreamResult {
    const { live, streamRows: rows } = this.#parts;
    const stream = live.find(name.key, name.clientMsgNo);
    if (stream !== undefined) {
      if (stream.ending === undefined) end(stream, "stopped", assignments);
      return { verdict: "done", state: stateAfter(stream.ending) };
    }
    const ended = rows.find(name.key, name.clientMsgNo);
    if (ended === undefined) return { verdict: "missing", state: undefined };
    return { verdict: "done", state: stateAfter(ended.ending) };
  }

  /** The port's `interruptStreams`. */
  interrupt(silentSinceMs: number, assignments: StreamAssignments): number {
    const silent = this.silent(silentSinceMs);
    for (const stream of silent) end(stream, "interrupted", assignments);
    return silent.length;
  }

  /** The streams that take events and had none since. */
  silent(silentSinceMs: number): LiveStream[] {
    return [...this.#parts.live].filter((s) => s.ending === undefined && s.lastMs < silentSinceMs);
  }

  #start(draft: StreamDraft, assignments: StreamAssignments): StreamResult {
    const { live, assigner } = this.#parts;
    // The sender used the clientMsgNo for something that is no stream.
    if (assigner.firstOf(draft, assignments.nowMs) !== undefined)
      return { verdict: "taken", state: undefined };
    const other = live.running(draft.key);
    if (other !== undefined && !draft.force) return { verdict: "running", state: undefined };
    live.assertRoom(draft, 0);
    if (other !== undefined) end(other, "replaced", assignments);
    assignments.add(assignments.begin(draft), toEvent(draft));
    return { verdict: "done", state: "active" };
  }

  /** An event for a stream that ended. */
  #late(draft: StreamDraft, ended: LiveStream | EndedStream): StreamResult {
    const { ending } = ended;
    const state = stateAfter(ending);
    const { type } = draft;
    if (type === STREAM_START) return { verdict: "closed", state };
    if (type === STREAM_END || this.#knows(ended, draft.eventId)) return { verdict: "done", state };
    if (ending === "stopped") return { verdict: "stopped", state };
    return { verdict: type === STREAM_CONTENT ? "closed" : "missing", state };
  }

  #knows(ended: LiveStream | EndedStream, eventId: string | undefined): boolean {
    if ("knows" in ended) return ended.knows(eventId);
    return this.#parts.streamRows.knows(ended, eventId);
  }
}

function end(stream: LiveStream, ending: Ending, assignments: StreamAssignments): void {
  const event = { type: STREAM_END, ending, eventId: undefined, data: "" };
  assignments.add(stream, { ...event, timestampMs: undefined });
}

function toEvent({ type, eventId, data, timestampMs }: StreamDraft) {
  const ending: Ending | undefined = type === STREAM_END ? "closed" : undefined;
  return { type, ending, eventId, data, timestampMs };
}
