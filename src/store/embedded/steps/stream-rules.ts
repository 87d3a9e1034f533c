// The state machine of streams: what an event, a viewer's cancel and a producer's silence do to them [spec: Streaming text session; decisions:
// Messages and events]. Decides on what is assigned, settled or not, and asks for assignments. No state.

import {
  type ChannelKey,
  STREAM_CONTENT,
  STREAM_END,
  STREAM_START,
} from "../../../broker/model.ts";
import type { StreamDraft, StreamStep } from "../../../broker/ports.ts";
import type { LiveStream } from "./live-stream.ts";
import type { LiveStreams } from "./live-streams.ts";
import type { StreamAssignments } from "./stream-assignments.ts";
import { type Ending, stateAfter } from "./stream-record.ts";
import type { EndedStream, StreamRows } from "./stream-rows.ts";

interface StreamRulesParts {
  readonly live: LiveStreams;
  readonly rows: StreamRows;
  /** Whether the sender used the clientMsgNo for something that is no stream. */
  readonly isTaken: (draft: StreamDraft, nowMs: number) => boolean;
}

export class StreamRules {
  readonly #parts: StreamRulesParts;

  constructor(parts: StreamRulesParts) {
    this.#parts = parts;
  }

  /** The port's `streamEvent`. */
  event(draft: StreamDraft, assignments: StreamAssignments): StreamStep {
    const { live, rows } = this.#parts;
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
  ): StreamStep {
    const { live, rows } = this.#parts;
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
    return [...this.#parts.live].filter(
      (s) => s.ending === undefined && s.lastMs < silentSinceMs,
    );
  }

  #start(draft: StreamDraft, assignments: StreamAssignments): StreamStep {
    const { live, isTaken } = this.#parts;
    if (isTaken(draft, assignments.nowMs))
      return { verdict: "taken", state: undefined };
    const other = live.running(draft.key);
    if (other !== undefined && !draft.force)
      return { verdict: "running", state: undefined };
    live.assertRoom(draft, 0);
    if (other !== undefined) end(other, "replaced", assignments);
    assignments.add(assignments.begin(draft), toEvent(draft));
    return { verdict: "done", state: "active" };
  }

  /** An event for a stream that ended. */
  #late(draft: StreamDraft, ended: LiveStream | EndedStream): StreamStep {
    const { ending } = ended;
    const state = stateAfter(ending);
    const { type } = draft;
    if (type === STREAM_START) return { verdict: "closed", state };
    if (type === STREAM_END || this.#knows(ended, draft.eventId))
      return { verdict: "done", state };
    if (ending === "stopped") return { verdict: "stopped", state };
    return { verdict: type === STREAM_CONTENT ? "closed" : "missing", state };
  }

  #knows(
    ended: LiveStream | EndedStream,
    eventId: string | undefined,
  ): boolean {
    if ("knows" in ended) return ended.knows(eventId);
    return this.#parts.rows.knows(ended, eventId);
  }
}

function end(
  stream: LiveStream,
  ending: Ending,
  assignments: StreamAssignments,
): void {
  const event = { type: STREAM_END, ending, eventId: undefined, data: "" };
  assignments.add(stream, { ...event, timestampMs: undefined });
}

function toEvent({ type, eventId, data, timestampMs }: StreamDraft) {
  const ending: Ending | undefined = type === STREAM_END ? "closed" : undefined;
  return { type, ending, eventId, data, timestampMs };
}
