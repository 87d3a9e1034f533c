// The call that posts an event: a hot path, an AI backend makes one for each chunk of text. State: none.

import type { StreamState } from "../broker/model.ts";
import type { EventInput, Streams } from "../broker/streams.ts";
import type { HttpReply } from "../transport/types.ts";
import { errorReply } from "./errors.ts";
import { jsonReply, OK_REPLY } from "./reply.ts";
import type { Outcome } from "./route.ts";
import type { Body } from "./schemas.ts";

export interface EventParts {
  readonly streams: Pick<Streams, "post">;
}

export interface EventCalls {
  /** Refuses an event without a type before anything else [spec: Error messages of /event]. */
  refuseUntyped(body: unknown): HttpReply | undefined;
  post(body: Body<"event">, query: Body<"eventQuery">): Outcome;
}

const TYPE_EMPTY = {
  details: [{ path: "event.type", message: "is required" }],
};

/** With each state a stream can be in after an event that was accepted. */
const STREAM_REPLIES: Readonly<Record<StreamState, HttpReply>> = Object.freeze({
  active: streamReply("active"),
  closed: streamReply("closed"),
  cancelled: streamReply("cancelled"),
  interrupted: streamReply("interrupted"),
});

export function createEventCalls({ streams }: EventParts): EventCalls {
  return {
    refuseUntyped(body) {
      return isUntyped(body)
        ? errorReply("event_type_empty", TYPE_EMPTY)
        : undefined;
    },

    post(body, { force }) {
      return streams.post(toInput(body, force === "1")).then(postedReply);
    },
  };
}

/** A body that is an object whose event has no type, or that has no event at all. */
function isUntyped(body: unknown): boolean {
  if (!isRecord(body)) return false;
  const { event } = body;
  if (event === undefined) return true;
  if (!isRecord(event)) return false;
  const { type } = event;
  return type === undefined || type === null || type === "";
}

function isRecord(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function toInput(body: Body<"event">, force: boolean): EventInput {
  const { event } = body;
  return {
    channel: { id: body.channel_id, type: body.channel_type },
    fromUid: body.from_uid ?? "",
    clientMsgNo: body.client_msg_no,
    eventId: event.id,
    type: event.type,
    data: event.data ?? "",
    timestampMs: event.timestamp,
    force,
  };
}

function postedReply({
  state,
}: {
  readonly state: StreamState | undefined;
}): HttpReply {
  return state === undefined ? OK_REPLY : STREAM_REPLIES[state];
}

function streamReply(state: StreamState): HttpReply {
  return Object.freeze(
    jsonReply(JSON.stringify({ status: "ok", stream: { state } })),
  );
}
