// Schemas of the replies to the sync calls, for `/openapi.json`.

import { Type } from "typebox";
import { channelType, flag } from "../../api/fields.ts";
import {
  channelId,
  count,
  MESSAGE_EXAMPLE,
  message,
  streamProperties,
  text,
} from "../../api/reply-schemas.ts";

const SYNCED_EXAMPLE = { ...MESSAGE_EXAMPLE, setting: 0 };

export const laneStatus = Type.Enum(["open", "closed", "error", "cancelled"], {
  type: "string",
  description: "Status of the lane",
});
export const eventSeq = (description: string) => Type.Integer({ minimum: 0, description });

const eventMeta = Type.Object(
  {
    has_events: Type.Literal(true, { description: "Always true" }),
    completed: Type.Boolean({ description: "True if the stream has ended" }),
    event_version: Type.Optional(eventSeq("Number of the last stored event")),
    last_msg_event_seq: Type.Optional(eventSeq("Number of the last stored event")),
    event_count: Type.Literal(1, { description: "Number of lanes, always 1" }),
    open_event_count: Type.Optional(
      Type.Literal(1, { description: "Number of open lanes. Absent if the stream has ended" }),
    ),
    events: Type.Array(
      Type.Object({
        event_key: Type.Literal("main", { description: "Name of the lane" }),
        status: laneStatus,
        last_msg_event_seq: Type.Optional(eventSeq("Number of the lane's last stored event")),
        snapshot: Type.Optional(
          Type.Object(
            {
              kind: Type.Literal("text", { description: "Always text" }),
              text: text("Text of the stream so far"),
            },
            {
              description:
                "Text of the lane. Absent if there is no text, or if event_summary_mode is basic",
            },
          ),
        ),
        end_reason: Type.Optional(Type.Integer({ description: "end_reason of the last event" })),
        error: Type.Optional(text("error of the last event")),
      }),
      { description: "State of each lane" },
    ),
  },
  { description: "State of a stream that was begun with is_stream. Absent before its first event" },
);

const syncedMessage = Type.Object(
  {
    ...message.properties,
    stream: Type.Optional(
      Type.Object(
        {
          ...streamProperties,
          log: Type.Optional(
            text(
              "Path at which the records of the stream can be read. In the wukongim dialect, present only if the stream is truncated",
            ),
          ),
        },
        { description: "Stream of the message, if it has one" },
      ),
    ),
    setting: Type.Integer({
      description:
        "Bits that the client sent, plus 2 for a stream's message and 8 for a message with a topic",
    }),
    end: Type.Optional(Type.Literal(1, { description: "1: the stream has ended" })),
    end_reason: Type.Optional(
      Type.Integer({
        description:
          "Reason for the end: 1 interrupted, 2 the end event had data (only in the wukongim dialect), 3 cancelled. For a stream that was begun with is_stream, the end_reason of its last event",
      }),
    ),
    error: Type.Optional(Type.String({ description: "Reason for the end, as text" })),
    stream_data: Type.Optional(
      Type.String({
        contentEncoding: "base64",
        description: "Text of the stream so far",
      }),
    ),
    event_meta: Type.Optional(eventMeta),
    event_sync_hint: Type.Optional(
      Type.Object(
        {
          client_msg_no: text("client_msg_no of the message"),
          from_msg_event_seq: Type.Literal(0, { description: "Always 0" }),
        },
        { description: "Fields of a call to /message/eventsync that lists this stream's events" },
      ),
    ),
  },
  {
    title: "SyncedMessage",
    description: "A message in WuKongIM's format",
    examples: [SYNCED_EXAMPLE],
  },
);

export const syncedPageBody = Type.Object(
  {
    start_message_seq: count(
      "start_message_seq of the request. In the reply to /messages, sequence number of the first message, or 0 without messages",
    ),
    end_message_seq: count(
      "end_message_seq of the request. In the reply to /messages, sequence number of the last message, or 0 without messages",
    ),
    more: flag(
      "1: there are more messages in the direction of the read. In the reply to /messages, 1: further messages did not fit into the reply",
    ),
    messages: Type.Array(syncedMessage, { description: "Messages in ascending order" }),
  },
  {
    title: "SyncedMessages",
    description: "Messages in WuKongIM's format",
    examples: [
      {
        start_message_seq: 0,
        end_message_seq: 0,
        more: 0,
        messages: [SYNCED_EXAMPLE],
      },
    ],
  },
);

export const commandsBody = Type.Array(syncedMessage, {
  title: "CommandList",
  description: "Commands, oldest first. message_seq is the sequence number in the user's inbox",
  examples: [[SYNCED_EXAMPLE]],
});

export const singleMessageBody = Type.Union(
  [
    syncedMessage,
    Type.Object(
      { status: Type.Literal(404, { description: "404: there is no such message" }) },
      {
        title: "NoMessage",
        description: "Reply if there is no such message",
        additionalProperties: false,
        examples: [{ status: 404 }],
      },
    ),
  ],
  {
    title: "SingleMessage",
    description: "The message, or a body with the status 404 if it does not exist",
    examples: [SYNCED_EXAMPLE],
  },
);

export const storedChannelsBody = Type.Array(
  Type.Object({
    channel_id: Type.String({
      description: "Channel id. For a personal channel, both uids joined by @",
    }),
    channel_type: channelType,
  }),
  {
    title: "StoredChannelList",
    description: "Channels of the user's newest conversations",
    examples: [[{ channel_id: "lobby", channel_type: 2 }]],
  },
);

export const maxSeqBody = Type.Object(
  { message_seq: count("Sequence number of the newest message; 0 if there is none") },
  {
    title: "MaxMessageSeq",
    description: "The newest sequence number of a channel",
    examples: [{ message_seq: 1 }],
  },
);

const CONVERSATION_EXAMPLE = {
  channel_id: "lobby",
  channel_type: 2,
  unread: 1,
  timestamp: 1_790_000_000,
  last_msg_seq: 1,
  last_client_msg_no: "first",
  offset_msg_seq: 0,
  readed_to_msg_seq: 0,
  version: 1_790_000_000_000,
  recents: [SYNCED_EXAMPLE],
};

export const conversationsBody = Type.Array(
  Type.Object(
    {
      channel_id: channelId,
      channel_type: channelType,
      unread: count("Number of unread messages"),
      timestamp: Type.Integer({
        description: "Time of the last message in Unix seconds",
      }),
      last_msg_seq: count("Sequence number of the last message"),
      last_client_msg_no: text("client_msg_no of the last message"),
      offset_msg_seq: Type.Integer({
        description: "Sequence number up to which messages were deleted from the conversation",
      }),
      readed_to_msg_seq: Type.Integer({
        description: "Sequence number up to which the user has read the messages",
      }),
      version: Type.Integer({
        description: "Time of the last change in Unix milliseconds",
      }),
      recents: Type.Array(syncedMessage, {
        description: "Newest messages, at most `msg_count` of them, newest first",
      }),
    },
    {
      title: "Conversation",
      description: "A conversation of a user",
      examples: [CONVERSATION_EXAMPLE],
    },
  ),
  {
    title: "ConversationList",
    description: "Conversations, ordered by their newest message, newest first",
    examples: [[CONVERSATION_EXAMPLE]],
  },
);
