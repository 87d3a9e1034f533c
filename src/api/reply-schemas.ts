// What each call answers: the schemas of reply bodies in the OpenAPI document; tests hold every reply against them. State: none.

import { Type } from "typebox";

const flag = Type.Enum([0, 1], { type: "integer" });
const deviceFlag = Type.Enum([0, 1, 2], { type: "integer" });
const channelType = Type.Enum([1, 2], { type: "integer" });
const count = Type.Integer({ minimum: 0 });

export const errorBody = Type.Object({
  error: Type.String({ description: "An English sentence" }),
  code: Type.String({ description: "Stable name of the error" }),
  status: Type.Integer({ description: "The HTTP status" }),
  details: Type.Optional(
    Type.Array(Type.Object({ path: Type.String(), message: Type.String() }), {
      description: "The places in the request that are refused",
    }),
  ),
});

export const statusBody = Type.Object({ status: Type.String() });

export const presenceBody = Type.Array(
  Type.Object({ uid: Type.String(), online: flag, device_flag: deviceFlag }),
  { description: "One record per uid, in the order asked" },
);

export const sentBody = Type.Object(
  {
    message_id: count,
    message_seq: count,
    client_msg_no: Type.String(),
  },
  { additionalProperties: false },
);

const streamState = Type.Enum(
  ["active", "closed", "cancelled", "interrupted"],
  {
    type: "string",
  },
);

/** The success body of an event; `stream` where there is one. */
export const eventBody = Type.Object({
  status: Type.String(),
  stream: Type.Optional(
    Type.Object({ state: streamState }, { description: "How it stands now" }),
  ),
});

const stream = {
  state: streamState,
  text: Type.String({ description: "All content so far" }),
  next_index: count,
  start_data: Type.String(),
  end_data: Type.Union([Type.String(), Type.Null()], {
    description: "null while it is active",
  }),
  events: Type.Array(
    Type.Object({
      index: count,
      text_offset: Type.Integer({
        description: "UTF-16 units of the text before it",
      }),
      id: Type.String(),
      type: Type.String(),
      data: Type.String(),
      timestamp: Type.Integer({ description: "Unix milliseconds" }),
    }),
    { description: "Its tool-call events" },
  ),
};

export const streamBody = Type.Object({
  ...stream,
  client_msg_no: Type.String(),
  from_uid: Type.String(),
  message_id: count,
  message_seq: count,
});

const message = Type.Object({
  message_id: count,
  message_idstr: Type.String(),
  message_seq: count,
  client_msg_no: Type.String(),
  from_uid: Type.String(),
  channel_id: Type.String(),
  channel_type: channelType,
  timestamp: Type.Integer({ description: "Unix seconds" }),
  timestamp_ms: Type.Integer({ description: "Unix milliseconds" }),
  header: Type.Object({
    no_persist: flag,
    red_dot: flag,
    sync_once: flag,
  }),
  expire: Type.Integer({ description: "Seconds; 0: never" }),
  stream_no: Type.String(),
  tag_key: Type.String(),
  payload: Type.String({ contentEncoding: "base64" }),
  stream: Type.Optional(
    Type.Object(stream, { description: "Of a stream's message" }),
  ),
});

export const historyBody = Type.Object({
  messages: Type.Array(message),
  head_seq: Type.Integer({ description: "The channel's newest sequence" }),
  more: Type.Enum([0, 1], {
    type: "integer",
    description: "1: the range holds more messages than were returned",
  }),
});

export const conversationsBody = Type.Array(
  Type.Object({
    channel_id: Type.String(),
    channel_type: channelType,
    unread: count,
    timestamp: Type.Integer({
      description: "Of the last message, Unix seconds",
    }),
    last_msg_seq: count,
    last_client_msg_no: Type.String(),
    offset_msg_seq: Type.Integer({
      description:
        "Messages through this one were deleted from the conversation",
    }),
    readed_to_msg_seq: Type.Integer({
      description: "Messages through this one count as read",
    }),
    version: Type.Integer({
      description: "When it last changed, Unix milliseconds",
    }),
    recents: Type.Array(message, { description: "Newest first" }),
  }),
  { description: "Newest message first" },
);

export const loginBody = Type.Object({
  token: Type.String(),
  expire: Type.Integer({ description: "Seconds" }),
  user: Type.Object({
    username: Type.String(),
    role: Type.Enum(["admin", "operator", "viewer"], { type: "string" }),
    permissions: Type.Array(Type.String()),
  }),
});

export const migrationBody = Type.Object({
  status: Type.Enum(["running", "completed", "migrated", "failed"], {
    type: "string",
  }),
  step: Type.String(),
  last_err: Type.Union([Type.String(), Type.Null()]),
  try_count: count,
});

export const nodesBody = Type.Array(
  Type.Object({
    id: Type.String(),
    address: Type.String({
      description: "Where clients reach it; empty: it tells none",
    }),
    version: Type.String(),
    uptime: Type.Integer({ minimum: 0, description: "Seconds" }),
    sessions: count,
    load: Type.Number({
      minimum: 0,
      maximum: 1,
      description: "Share of one core that its process used lately",
    }),
    draining: flag,
  }),
  { description: "The nodes that live, the one that answers first" },
);

const addresses = {
  tcp_addr: Type.String({ description: "Always empty: clients use sockets" }),
  ws_addr: Type.String({ description: "ws:// address, or empty" }),
  wss_addr: Type.String({ description: "wss:// address, or empty" }),
};

export const routeBody = Type.Object(addresses);

export const routeBatchBody = Type.Array(
  Type.Object({ uids: Type.Array(Type.String()), ...addresses }),
  { description: "One record per node, with the uids that should go there" },
);
