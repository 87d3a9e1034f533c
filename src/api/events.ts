// The call that posts an event. It is a hot path, because an AI backend calls it for each chunk of
// text.

import { type Static, Type } from "typebox";
import { MAX_EXPIRE_S, PERSON_CHANNEL, type StreamState, SYSTEM_UID } from "../broker/model.ts";
import type { EventInput, Streams } from "../broker/streams.ts";
import type { HttpReply } from "../transport/types.ts";
import { errorReply, uidRequired } from "./errors.ts";
import {
  channelId,
  channelType,
  LOBBY,
  MAX_TIME_MS,
  OPTIONAL_ID_PATTERN,
  OPTIONAL_LABEL_PATTERN,
  streamName,
} from "./fields.ts";
import { jsonReply, OK_REPLY } from "./reply.ts";
import type { Outcome } from "./route.ts";
import type { ExplainRefusal } from "./send-refusals.ts";

/** Schema of an event. The broker checks reserved types and the size of `data`. */
const event = Type.Object(
  {
    type: Type.String({
      minLength: 1,
      description:
        "___TextMessageStart, ___TextMessageContent, ___TextMessageEnd, ___ToolCallStart, ___ToolCallArgs, ___ToolCallEnd, ___ToolCallResult, or a custom type that does not begin with ___",
    }),
    data: Type.Optional(
      Type.String({
        description:
          "Data of the event. Its format depends on the type. Absent means the empty string",
      }),
    ),
    timestamp: Type.Optional(
      Type.Integer({
        minimum: 0,
        maximum: MAX_TIME_MS,
        description:
          "Time of the event in Unix milliseconds. Absent means the time at which the event is accepted",
      }),
    ),
    id: Type.Optional(
      Type.String({
        pattern: OPTIONAL_LABEL_PATTERN,
        description:
          "Id of the event, chosen by the caller. An event that repeats the id, type, data and timestamp of an earlier event of the stream is a retry and has no effect, unless the id equals client_msg_no or different events have used it. If empty or absent, the server creates an id",
      }),
    ),
  },
  { description: "The event" },
);

export const eventBody = Type.Object(
  {
    client_msg_no: streamName,
    channel_id: channelId,
    channel_type: channelType,
    from_uid: Type.Optional(
      Type.String({
        pattern: OPTIONAL_ID_PATTERN,
        description: "Sender. Empty or absent means the system",
      }),
    ),
    expire: Type.Optional(
      Type.Integer({
        minimum: 0,
        maximum: MAX_EXPIRE_S,
        description:
          "Seconds from the start of a stream until its message expires. Ignored unless the event is a start event. 0 or absent means that the message never expires",
      }),
    ),
    event,
  },
  {
    title: "EventRequest",
    description: "Event to send",
    examples: [
      {
        client_msg_no: "answer",
        ...LOBBY,
        from_uid: "bob",
        event: { type: "___TextMessageContent", data: "It is " },
      },
    ],
  },
);

export const eventQuery = Type.Object({
  force: Type.Optional(
    Type.String({
      description:
        "1: a start event first ends the active stream of the channel. Absent or any other value: a start event is rejected while a stream is active",
    }),
  ),
});

export const cancelBody = Type.Object(
  {
    client_msg_no: streamName,
    channel_id: channelId,
    channel_type: channelType,
    uid: Type.Optional(
      Type.String({
        pattern: OPTIONAL_ID_PATTERN,
        description:
          "User who cancels. For a personal channel, this must be one of its two users. For a group, empty or absent means the system",
      }),
    ),
  },
  {
    title: "CancelRequest",
    description: "Stream to cancel",
    examples: [{ client_msg_no: "answer", ...LOBBY }],
  },
);

export function createCancel(streams: Pick<Streams, "cancel">) {
  return ({ uid = "", channel_id, channel_type, client_msg_no }: Static<typeof cancelBody>) => {
    if (channel_type === PERSON_CHANNEL && uid === "") return uidRequired();
    const channel = { id: channel_id, type: channel_type };
    return streams
      .cancel(uid || SYSTEM_UID, channel, client_msg_no)
      .then((state) => STREAM_REPLIES[state]);
  };
}

const TYPE_EMPTY = {
  details: [{ path: "event.type", message: "is required" }],
};

const STREAM_REPLIES: Readonly<Record<StreamState, HttpReply>> = Object.freeze({
  active: streamReply("active"),
  closed: streamReply("closed"),
  cancelled: streamReply("cancelled"),
  interrupted: streamReply("interrupted"),
});

type Body = Static<typeof eventBody>;
type Query = Static<typeof eventQuery>;

export function createPostEvent(
  streams: Pick<Streams, "post">,
  explain: ExplainRefusal,
): (body: Body, query: Query) => Outcome {
  return (body, { force }) => {
    const input = toInput(body, force === "1");
    return streams.post(input).then(
      ({ state }) => (state === undefined ? OK_REPLY : STREAM_REPLIES[state]),
      (error) => explain(error, input.channel),
    );
  };
}

/** Returns the error for an event without a type. It takes precedence over schema errors. */
export function refuseUntyped(body: unknown): HttpReply | undefined {
  return isUntyped(body) ? errorReply("event_type_empty", TYPE_EMPTY) : undefined;
}

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

function toInput(body: Body, force: boolean): EventInput {
  const { event } = body;
  return {
    channel: { id: body.channel_id, type: body.channel_type },
    fromUid: body.from_uid ?? "",
    clientMsgNo: body.client_msg_no,
    eventId: event.id || undefined,
    type: event.type,
    data: event.data ?? "",
    timestampMs: event.timestamp,
    expireS: body.expire,
    force,
  };
}

function streamReply(state: StreamState): HttpReply {
  return Object.freeze(jsonReply(JSON.stringify({ status: "ok", stream: { state } })));
}
