// Schemas of the reply bodies for the OpenAPI document. Tests check every reply against them. A
// schema with a `title` is listed under that name in the components of the document.

import { Type } from "typebox";

export const flag = Type.Enum([0, 1], { type: "integer" });
const deviceFlag = Type.Enum([0, 1, 2], { type: "integer" });
export const channelType = Type.Enum([1, 2], { type: "integer" });
export const count = Type.Integer({ minimum: 0 });

export const errorBody = Type.Object(
  {
    error: Type.String({ description: "Error message in English" }),
    code: Type.String({ description: "Stable error code" }),
    status: Type.Integer({ description: "HTTP status" }),
    details: Type.Optional(
      Type.Array(Type.Object({ path: Type.String(), message: Type.String() }), {
        description: "Invalid fields of the request",
      }),
    ),
  },
  {
    title: "Error",
    examples: [
      {
        error: "uid is required",
        code: "bad_request",
        status: 400,
        details: [{ path: "uid", message: "is required" }],
      },
    ],
  },
);

export const statusBody = Type.Object(
  { status: Type.String() },
  { title: "Status", examples: [{ status: "ok" }] },
);

export const channelBody = Type.Object(
  {
    channel_id: Type.String(),
    channel_type: channelType,
    ban: flag,
    disband: flag,
    send_ban: flag,
    allow_stranger: flag,
    large: flag,
    subscriber_count: Type.Integer({
      minimum: 0,
      description: "Number of permanent and temporary subscribers",
    }),
    blacklist_count: count,
    whitelist_count: count,
    last_message_seq: Type.Integer({
      minimum: 0,
      description: "Sequence number of the newest message of a group; 0 if there is none",
    }),
  },
  {
    title: "ChannelState",
    examples: [
      {
        channel_id: "lobby",
        channel_type: 2,
        ban: 0,
        disband: 0,
        send_ban: 0,
        allow_stranger: 0,
        large: 0,
        subscriber_count: 2,
        blacklist_count: 0,
        whitelist_count: 0,
        last_message_seq: 1,
      },
    ],
  },
);

const cursor = Type.String({
  description: "Cursor of the next page; empty if this is the last page",
});

export const uidsBody = Type.Object(
  { uids: Type.Array(Type.String()), cursor },
  { title: "UidPage", examples: [{ uids: ["alice", "bob"], cursor: "" }] },
);

export const channelsBody = Type.Object(
  {
    channels: Type.Array(Type.Object({ channel_id: Type.String(), channel_type: channelType })),
    cursor,
  },
  {
    title: "ChannelPage",
    examples: [{ channels: [{ channel_id: "lobby", channel_type: 2 }], cursor: "" }],
  },
);

export const whitelistBody = Type.Array(Type.Object({ uid: Type.String() }), {
  title: "Whitelist",
  examples: [[{ uid: "alice" }]],
});

export const presenceBody = Type.Array(
  Type.Object({ uid: Type.String(), online: flag, device_flag: deviceFlag }),
  {
    title: "OnlineStatusList",
    description: "One record for each uid, in the order of the request",
    examples: [
      [
        { uid: "alice", online: 1, device_flag: 1 },
        { uid: "bob", online: 0, device_flag: 0 },
      ],
    ],
  },
);

const sessionDevice = {
  device_flag: deviceFlag,
  device_level: flag,
  device_id: Type.String(),
};

const DEVICES_EXAMPLE = {
  devices: [{ device_flag: 1, device_level: 1, has_token: 1 }],
  sessions: [
    {
      session_id: "n1-1",
      node_id: "n1",
      ...{ device_flag: 1, device_level: 1, device_id: "browser" },
    },
  ],
};

export const devicesBody = Type.Object(
  {
    devices: Type.Array(
      Type.Object({
        device_flag: deviceFlag,
        device_level: flag,
        has_token: Type.Enum([0, 1], {
          type: "integer",
          description: "0: the device was logged out",
        }),
      }),
      { description: "Registered device types" },
    ),
    sessions: Type.Array(
      Type.Object({
        session_id: Type.String(),
        node_id: Type.String(),
        ...sessionDevice,
      }),
      { description: "Live sessions on any node" },
    ),
  },
  { title: "Devices", examples: [DEVICES_EXAMPLE] },
);

const CONNECTION_EXAMPLE = {
  id: "n1-1",
  uid: "alice",
  ip: "192.0.2.7",
  uptime: 61,
  pending_bytes: 0,
  device: "web",
  ...{ device_flag: 1, device_level: 1, device_id: "browser" },
  format: "native",
  version: 1,
  node_id: "n1",
};

export const connzBody = Type.Object(
  {
    connections: Type.Array(
      Type.Object({
        id: Type.String({ description: "Session id" }),
        uid: Type.String(),
        ip: Type.String(),
        uptime: Type.Integer({ minimum: 0, description: "Seconds since the login" }),
        pending_bytes: count,
        device: Type.String(),
        ...sessionDevice,
        format: Type.String({ description: "Wire format" }),
        version: Type.Integer({ description: "Version of the protocol of the wire format" }),
        node_id: Type.String(),
      }),
    ),
    now: Type.String({ description: "Current time in ISO 8601" }),
    total: count,
    offset: count,
    limit: count,
  },
  {
    title: "Connections",
    examples: [
      {
        connections: [CONNECTION_EXAMPLE],
        now: "2026-09-21T14:13:20.000Z",
        ...{ total: 1, offset: 0, limit: 20 },
      },
    ],
  },
);

export const varzBody = Type.Object(
  {
    server_id: Type.String({ description: "Node id" }),
    server_name: Type.String(),
    version: Type.String(),
    uptime: Type.Integer({ minimum: 0, description: "Seconds since the start" }),
    connections: Type.Integer({ minimum: 0, description: "Open client sockets" }),
    sessions: count,
    out_msgs: Type.Integer({
      minimum: 0,
      description: "Number of pushes to sessions since the start",
    }),
    mem: Type.Integer({ minimum: 0, description: "Resident memory in bytes" }),
    ws_addr: Type.String({ description: "Address at which clients reach the node, or empty" }),
  },
  {
    title: "Varz",
    examples: [
      {
        server_id: "n1",
        server_name: "Jindou",
        version: "0.1.0",
        ...{ uptime: 61, connections: 2, sessions: 2, out_msgs: 12 },
        mem: 80_000_000,
        ws_addr: "chat1.example.com:5200",
      },
    ],
  },
);

export const systemUidsBody = Type.Array(Type.String(), {
  title: "SystemUidList",
  description: "Uids in ascending order",
  examples: [["bot"]],
});

export const sentBody = Type.Object(
  {
    message_id: count,
    message_seq: count,
    client_msg_no: Type.String(),
  },
  {
    title: "SentMessage",
    additionalProperties: false,
    examples: [{ message_id: 4398046511105, message_seq: 1, client_msg_no: "first" }],
  },
);

const streamState = Type.Enum(["active", "closed", "cancelled", "interrupted"], {
  type: "string",
});

/** Body of a successful reply to an event. `stream` is present if the event belongs to a stream. */
export const eventBody = Type.Object(
  {
    status: Type.String(),
    stream: Type.Optional(
      Type.Object(
        { state: streamState },
        { description: "Stream of the event, with its state after the event" },
      ),
    ),
  },
  {
    title: "EventResult",
    examples: [{ status: "ok", stream: { state: "active" } }],
  },
);

const stream = {
  state: streamState,
  text: Type.String({ description: "Text of the stream so far" }),
  next_index: count,
  start_data: Type.String(),
  end_data: Type.Union([Type.String(), Type.Null()], {
    description: "Data of the end event; null while the stream is active",
  }),
  events: Type.Array(
    Type.Object({
      index: count,
      text_offset: Type.Integer({
        description: "Length of the text before the event, in UTF-16 code units",
      }),
      id: Type.String(),
      type: Type.String(),
      data: Type.String(),
      timestamp: Type.Integer({ description: "Time in Unix milliseconds" }),
    }),
    { description: "Tool-call events of the stream" },
  ),
};

const STREAM_EXAMPLE = {
  state: "active",
  text: "It is ",
  next_index: 1,
  start_data: "",
  end_data: null,
  events: [],
};

export const streamBody = Type.Object(
  {
    ...stream,
    client_msg_no: Type.String(),
    from_uid: Type.String(),
    message_id: count,
    message_seq: count,
  },
  {
    title: "Stream",
    examples: [
      {
        ...STREAM_EXAMPLE,
        client_msg_no: "answer",
        from_uid: "bob",
        message_id: 4398046511106,
        message_seq: 2,
      },
    ],
  },
);

export const MESSAGE_EXAMPLE = {
  message_id: 4398046511105,
  message_idstr: "4398046511105",
  message_seq: 1,
  client_msg_no: "first",
  from_uid: "bob",
  channel_id: "lobby",
  channel_type: 2,
  timestamp: 1_790_000_000,
  timestamp_ms: 1_790_000_000_000,
  header: { no_persist: 0, red_dot: 0, sync_once: 0 },
  expire: 0,
  stream_no: "",
  tag_key: "",
  payload: "eyJ0eXBlIjoxLCJjb250ZW50IjoiaGVsbG8ifQ==",
};

export const message = Type.Object(
  {
    message_id: count,
    message_idstr: Type.String(),
    message_seq: count,
    client_msg_no: Type.String(),
    from_uid: Type.String(),
    channel_id: Type.String(),
    channel_type: channelType,
    timestamp: Type.Integer({ description: "Time in Unix seconds" }),
    timestamp_ms: Type.Integer({ description: "Time in Unix milliseconds" }),
    header: Type.Object({
      no_persist: flag,
      red_dot: flag,
      sync_once: flag,
    }),
    expire: Type.Integer({
      description: "Seconds after its timestamp at which the message expires; 0 means never",
    }),
    stream_no: Type.String(),
    tag_key: Type.String(),
    setting: Type.Optional(
      Type.Integer({ description: "Setting bits that a WKProto client sent with the message" }),
    ),
    topic: Type.Optional(
      Type.String({ description: "Topic that a WKProto client sent with the message" }),
    ),
    payload: Type.String({ contentEncoding: "base64" }),
    stream: Type.Optional(
      Type.Object(stream, { description: "Stream of the message, if it has one" }),
    ),
  },
  { title: "Message", examples: [MESSAGE_EXAMPLE] },
);

export const historyBody = Type.Object(
  {
    messages: Type.Array(message),
    head_seq: Type.Integer({ description: "Sequence number of the newest message of the channel" }),
    more: Type.Enum([0, 1], {
      type: "integer",
      description: "1: the range contains more messages than were returned",
    }),
  },
  {
    title: "History",
    examples: [{ messages: [MESSAGE_EXAMPLE], head_seq: 1, more: 0 }],
  },
);

export const sentBatchBody = Type.Object(
  {
    fail_uids: Type.Array(Type.String(), {
      description: "Users to whom the message was not sent",
    }),
    reason: Type.Array(Type.String(), {
      description: "Reason for each user in fail_uids, in the same order",
    }),
  },
  { title: "SentBatch", examples: [{ fail_uids: [], reason: [] }] },
);

export const loginBody = Type.Object(
  {
    token: Type.String(),
    expire: Type.Integer({ description: "Lifetime of the token in seconds" }),
    user: Type.Object({
      username: Type.String(),
      role: Type.Enum(["admin", "operator", "viewer"], { type: "string" }),
      permissions: Type.Array(Type.String()),
    }),
  },
  {
    title: "Login",
    examples: [
      {
        token: "u2FJ0Vg8dJYw3c1q1Uj6S2Q8mV0yQm3n5b7c9d1e3f4",
        expire: 86_400,
        user: { username: "admin", role: "admin", permissions: ["*"] },
      },
    ],
  },
);

export const migrationBody = Type.Object(
  {
    status: Type.Enum(["running", "completed", "migrated", "failed"], {
      type: "string",
    }),
    step: Type.String(),
    last_err: Type.Union([Type.String(), Type.Null()]),
    try_count: count,
  },
  {
    title: "MigrationResult",
    examples: [{ status: "running", step: "message", last_err: null, try_count: 1 }],
  },
);

const NODE_EXAMPLE = {
  id: "n1",
  address: "chat1.example.com:5200",
  version: "0.1.0",
  uptime: 61,
  sessions: 2,
  load: 0.02,
  draining: 0,
};

export const nodesBody = Type.Array(
  Type.Object(
    {
      id: Type.String(),
      address: Type.String({
        description: "Address at which clients reach the node; empty if none is configured",
      }),
      version: Type.String(),
      uptime: Type.Integer({ minimum: 0, description: "Seconds since the start" }),
      sessions: count,
      load: Type.Number({
        minimum: 0,
        maximum: 1,
        description: "Fraction of one core that the process used recently",
      }),
      draining: flag,
    },
    { title: "Node", examples: [NODE_EXAMPLE] },
  ),
  {
    title: "NodeList",
    description: "Nodes that are alive, beginning with the node that replies",
    examples: [[NODE_EXAMPLE]],
  },
);

const addresses = {
  tcp_addr: Type.String({
    description: "Always empty, because no node accepts clients on plain TCP",
  }),
  ws_addr: Type.String({ description: "Address with ws://, or empty" }),
  wss_addr: Type.String({ description: "Address with wss://, or empty" }),
};

const ADDRESS_EXAMPLE = {
  tcp_addr: "",
  ws_addr: "ws://chat1.example.com:5200",
  wss_addr: "",
};

export const routeBody = Type.Object(addresses, {
  title: "Route",
  examples: [ADDRESS_EXAMPLE],
});

export const routeBatchBody = Type.Array(
  Type.Object({ uids: Type.Array(Type.String()), ...addresses }),
  {
    title: "RouteList",
    description: "One record for each node, with the users who should connect to it",
    examples: [[{ uids: ["alice", "bob"], ...ADDRESS_EXAMPLE }]],
  },
);
