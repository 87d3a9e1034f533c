// Schemas of the bodies of `/message/event` and `/message/eventsync`.

import { Type } from "typebox";
import {
  channelId,
  channelType,
  flag,
  LABEL_PATTERN,
  LOBBY,
  OPTIONAL_ID_PATTERN,
  streamName,
  WELL_FORMED_PATTERN,
} from "../../api/fields.ts";
import * as replies from "../../api/reply-schemas.ts";
import { MAX_EVENT_ID_LENGTH } from "./event-ids.ts";
import { digits } from "./message-sync.ts";
import { STORED_ID_PATTERN } from "./single-messages.ts";
import { MAIN_LANE, STATUSES } from "./stream-lane.ts";
import { eventSeq, laneStatus } from "./sync-schemas.ts";

export const SYNC_LIMIT = 200;
const MAX_SYNC_LIMIT = 2000;

const text = (description: string) => Type.String({ pattern: WELL_FORMED_PATTERN, description });
const fromUid = Type.Optional(
  Type.String({
    pattern: OPTIONAL_ID_PATTERN,
    description:
      "Sender of the stream's message. If empty or absent, the server looks up the sender. In a personal channel, this works only on a node that began the stream or has received an event of the stream with from_uid. For other nodes, from_uid is required",
  }),
);

export const messageEventBody = Type.Object(
  {
    channel_id: channelId,
    channel_type: channelType,
    from_uid: fromUid,
    message_id: Type.Optional(digits("Id of the stream's message. Ignored")),
    client_msg_no: streamName,
    event_id: Type.String({
      pattern: `^\\P{Cs}{1,${MAX_EVENT_ID_LENGTH}}$`,
      description:
        "Id of the event. An event that repeats the id, the type, the payload and the time is a retry, unless the id is the client_msg_no or was used by different events",
    }),
    event_type: text(`One of ${[...STATUSES.keys()].join(", ")}`),
    event_key: Type.Optional(text(`Lane of the event. Must be ${MAIN_LANE} or empty`)),
    visibility: Type.Optional(text("Visibility of the event. Must be public or empty")),
    occurred_at: Type.Optional(
      Type.Integer({ description: "Time of the event in Unix milliseconds. 0 means now" }),
    ),
    payload: Type.Optional(
      Type.Unknown({
        description:
          '{"kind":"text","delta":<text>} for stream.delta, {"kind":"text","text":<text>} for stream.snapshot. For an event that ends the stream, any value; its fields `end_reason` and `error` are returned with the message',
      }),
    ),
  },
  {
    title: "MessageEventRequest",
    description: "Event of a stream that was begun with is_stream",
    examples: [
      {
        ...LOBBY,
        ...{ from_uid: "bob", client_msg_no: "answer", event_id: "e-1" },
        event_type: "stream.delta",
        payload: { kind: "text", delta: "It is " },
      },
    ],
  },
);

export const eventSyncBody = Type.Object(
  {
    channel_id: Type.String({
      pattern: STORED_ID_PATTERN,
      description:
        "Channel id. For a personal channel, either the uid of the recipient, together with from_uid, or both uids joined by @",
    }),
    channel_type: channelType,
    from_uid: Type.Optional(
      Type.String({ pattern: OPTIONAL_ID_PATTERN, description: "Sender of the stream's message" }),
    ),
    client_msg_no: Type.String({
      pattern: LABEL_PATTERN,
      description: "client_msg_no of the stream's message",
    }),
    event_key: Type.Optional(text("Lane whose events are returned. Empty means all")),
    from_msg_event_seq: Type.Optional(
      Type.Integer({
        minimum: 0,
        maximum: Number.MAX_SAFE_INTEGER,
        description: "Only events after this number are returned",
      }),
    ),
    limit: Type.Optional(
      Type.Integer({
        minimum: 0,
        maximum: MAX_SYNC_LIMIT,
        description: `Maximum number of events to return. 0 or absent means ${SYNC_LIMIT}`,
      }),
    ),
    include_private: Type.Optional(flag("Has no effect, because all events are public")),
  },
  {
    title: "MessageEventSyncRequest",
    description: "Stored events to return",
    examples: [{ ...LOBBY, client_msg_no: "answer" }],
  },
);

export const laneBody = Type.Object(
  {
    status: Type.Literal(200, { description: "200: the event was accepted" }),
    data: Type.Object(
      {
        client_msg_no: replies.text("client_msg_no of the stream's message"),
        event_key: replies.text("Lane of the event: main, or __finish__ for stream.finish"),
        event_id: replies.text("Id of the event"),
        msg_event_seq: eventSeq("Number of the event. 0 while the stream is active"),
        stream_status: laneStatus,
        channel_id: replies.channelId,
        channel_type: channelType,
        from_uid: replies.text("Sender of the event"),
      },
      { description: "State after the event" },
    ),
  },
  {
    title: "MessageEventResult",
    description: "Reply to an event that was accepted",
    examples: [
      {
        status: 200,
        data: {
          ...{ client_msg_no: "answer", event_key: "main", event_id: "e-1", msg_event_seq: 0 },
          ...{ stream_status: "open", channel_id: "lobby", channel_type: 2, from_uid: "bob" },
        },
      },
    ],
  },
);

export const eventPageBody = Type.Object(
  {
    status: Type.Literal(200, { description: "200: the call succeeded" }),
    data: Type.Object(
      {
        client_msg_no: replies.text("client_msg_no of the stream's message"),
        from_msg_event_seq: eventSeq("from_msg_event_seq of the request"),
        next_msg_event_seq: eventSeq(
          "Number of the last event in the reply, or from_msg_event_seq if the reply has no events",
        ),
        more: flag("1: there are more events"),
        events: Type.Array(
          Type.Object({
            msg_event_seq: eventSeq("Number of the event"),
            event_id: replies.text("Id of the event"),
            event_key: replies.text("Lane of the event: main or __finish__"),
            event_type: replies.text("Type of the event"),
            visibility: replies.text("Visibility of the event: public or empty"),
            occurred_at: Type.Integer({ description: "Time of the event in Unix milliseconds" }),
            payload: Type.Object(
              {},
              {
                additionalProperties: true,
                description: "Payload of the event. In the main lane, it contains the text",
              },
            ),
          }),
          { description: "Stored events in ascending order" },
        ),
        filtered_by_event_key: replies.text("event_key of the request"),
      },
      { description: "The page" },
    ),
  },
  {
    title: "MessageEventList",
    description: "Stored events of a stream",
    examples: [
      {
        status: 200,
        data: {
          ...{ client_msg_no: "answer", from_msg_event_seq: 0, next_msg_event_seq: 0, more: 0 },
          ...{ events: [], filtered_by_event_key: "" },
        },
      },
    ],
  },
);
