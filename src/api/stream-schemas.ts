// What the calls about streams and events may send. State: none.

import { Type } from "typebox";
import {
  channelId,
  channelType,
  LABEL_PATTERN,
  OPTIONAL_ID_PATTERN,
  personUid,
} from "./fields.ts";

const MAX_INDEX = Number.MAX_SAFE_INTEGER;
const MAX_TIME_MS = 8_640_000_000_000_000;

const streamName = Type.String({
  pattern: LABEL_PATTERN,
  description: "Names the stream or message; all events of a stream share it",
});

/** What an event is beyond its shape (reserved types, the size of its data) is for the broker to say. */
const event = Type.Object({
  type: Type.String({
    minLength: 1,
    description:
      "___TextMessageStart, ___TextMessageContent, ___TextMessageEnd, ___ToolCallStart, ___ToolCallArgs, ___ToolCallEnd, ___ToolCallResult, or a name of your own that does not begin with ___",
  }),
  data: Type.Optional(
    Type.String({ default: "", description: "Its format depends on the type" }),
  ),
  timestamp: Type.Optional(
    Type.Integer({
      minimum: 0,
      maximum: MAX_TIME_MS,
      description: "Unix milliseconds; absent: the time of acceptance",
    }),
  ),
  id: Type.Optional(
    Type.String({
      pattern: LABEL_PATTERN,
      description:
        "Your id of the event: sent again in the same stream it is a retry. Absent: the server makes one",
    }),
  ),
});

export const streamSchemas = {
  event: Type.Object(
    {
      client_msg_no: streamName,
      channel_id: channelId,
      channel_type: channelType,
      from_uid: Type.Optional(
        Type.String({
          pattern: OPTIONAL_ID_PATTERN,
          default: "",
          description: "Sender; empty or absent: the system",
        }),
      ),
      event,
    },
    {
      title: "EventRequest",
      examples: [
        {
          client_msg_no: "answer",
          channel_id: "lobby",
          channel_type: 2,
          from_uid: "bob",
          event: { type: "___TextMessageContent", data: "It is " },
        },
      ],
    },
  ),
  eventQuery: Type.Object({
    force: Type.Optional(
      Type.Enum(["0", "1"], {
        type: "string",
        default: "0",
        description: "1: a start ends the channel's active stream first",
      }),
    ),
  }),
  stream: Type.Object({
    channel_type: channelType,
    channel_id: channelId,
    client_msg_no: streamName,
    uid: Type.Optional(personUid),
    from: Type.Optional(
      Type.Integer({
        minimum: 0,
        maximum: MAX_INDEX,
        default: 0,
        description:
          "Following: index of the first event wanted; the header Last-Event-ID says the same",
      }),
    ),
    token: Type.Optional(
      Type.String({
        maxLength: 4096,
        description:
          "A viewer's own credential, in place of one of the control plane: the token of a device of `uid`, who must be in the channel. Also as header x-token",
      }),
    ),
    device_flag: Type.Optional(
      Type.Enum([0, 1, 2], {
        type: "integer",
        default: 1,
        description: "Whose token it is: 0 app, 1 web, 2 desktop",
      }),
    ),
  }),
};
