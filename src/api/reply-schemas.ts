// Schemas of the reply bodies for the OpenAPI document. Tests check every reply against its schema.
// A schema with a `title` is listed under that name in the components of the document.

import { Type } from "typebox";
import { LINE_KINDS } from "../broker/ports.ts";
import { channelType, deviceFlag, deviceLevel, flag, sendBan } from "./fields.ts";

export const text = (description: string) => Type.String({ description });
export const count = (description: string) => Type.Integer({ minimum: 0, description });

const uid = text("User id");
export const channelId = text("Channel id");

export const errorBody = Type.Object(
  {
    error: Type.String({ description: "Error message in English" }),
    code: Type.String({ description: "Stable error code" }),
    status: Type.Integer({ description: "HTTP status" }),
    details: Type.Optional(
      Type.Array(
        Type.Object({
          path: text("Path of the field, with dots between the names"),
          message: text("Problem with the value of the field"),
        }),
        {
          description: "Invalid fields of the request",
        },
      ),
    ),
  },
  {
    title: "Error",
    description: "Reply to a call that failed",
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
  { status: text("ok, or ready in a reply to GET /readyz") },
  { title: "Status", description: "Reply to a call that succeeded", examples: [{ status: "ok" }] },
);

export const importBody = Type.Object(
  {
    state: Type.Enum(["none", "opening", "open", "closing", "closed"], {
      type: "string",
      description: "none if no import was ever opened",
    }),
    stored: Type.Object(
      Object.fromEntries(
        LINE_KINDS.map((kind) => [kind, Type.Optional(count(`Number of ${kind} lines`))]),
      ),
      { description: "Number of stored lines by kind, including lines that replaced earlier ones" },
    ),
    retention_s: count("Value of store.retentionS: older messages are not kept. 0 means no limit"),
    max_channel_messages: count("Value of store.maxChannelMessages. 0 means no limit"),
    channel: Type.Optional(
      Type.Object(
        {
          head_seq: count("Sequence number of the newest message"),
          head_timestamp: count(
            "Time of the newest message in Unix seconds, or 0 if the message was removed or the channel has no message",
          ),
          through_seq: count(
            "Last sequence number that `count` and `checksum` include. They include at most 10000 messages",
          ),
          count: count("Number of messages that `checksum` includes"),
          checksum: text("SHA-256 of the messages, in hexadecimal"),
        },
        { description: "Newest message and checksum of the channel in the query" },
      ),
    ),
  },
  {
    title: "Import",
    description: "State of the import",
    examples: [
      {
        state: "open",
        stored: { token: 2, message: 1000 },
        retention_s: 0,
        max_channel_messages: 0,
      },
    ],
  },
);

export const importedBody = Type.Object(
  {
    stored: count("Number of lines that changed the store"),
    unchanged: count("Number of lines whose content the store already had"),
    refused: Type.Array(
      Type.Object({
        line: count("Line number, starting at 1"),
        code: text("Stable error code"),
        message: text("Reason why the line was not stored"),
      }),
      { description: "Lines that were not stored. They do not affect other lines" },
    ),
  },
  {
    title: "Imported",
    description: "Result of importing the lines of one call",
    examples: [
      {
        stored: 2,
        unchanged: 0,
        refused: [{ line: 3, code: "bad_request", message: "The line is not valid JSON" }],
      },
    ],
  },
);

export const channelBody = Type.Object(
  {
    channel_id: channelId,
    channel_type: channelType,
    ban: flag(
      "1: only the system and system accounts may send to the group, or to the owner of the personal channel",
    ),
    disband: flag("1: the channel is disbanded"),
    send_ban: sendBan,
    allow_stranger: flag("1: strangers may send to the owner of the personal channel"),
    large: flag("1: a super-large group, for which no per-member state is kept"),
    client_events: flag("1: clients may send events to the channel"),
    subscriber_count: count("Number of permanent and temporary subscribers"),
    blacklist_count: count("Number of users on the blacklist"),
    whitelist_count: count("Number of users on the whitelist"),
    last_message_seq: count(
      "Sequence number of a group's newest message; 0 for a personal channel or a group without messages",
    ),
  },
  {
    title: "ChannelState",
    description: "Flags and user counts of a channel",
    examples: [
      {
        channel_id: "lobby",
        channel_type: 2,
        ban: 0,
        disband: 0,
        send_ban: 0,
        allow_stranger: 0,
        large: 0,
        client_events: 1,
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
  { uids: Type.Array(uid, { description: "Users on this page, in ascending order" }), cursor },
  {
    title: "UidPage",
    description: "One page of a list of users",
    examples: [{ uids: ["alice", "bob"], cursor: "" }],
  },
);

export const channelsBody = Type.Object(
  {
    channels: Type.Array(Type.Object({ channel_id: channelId, channel_type: channelType }), {
      description: "Groups on this page, in ascending order of their ids",
    }),
    cursor,
  },
  {
    title: "ChannelPage",
    description: "One page of a user's groups",
    examples: [{ channels: [{ channel_id: "lobby", channel_type: 2 }], cursor: "" }],
  },
);

export const whitelistBody = Type.Array(Type.Object({ uid }), {
  title: "Whitelist",
  description: "Users on the whitelist, in ascending order",
  examples: [[{ uid: "alice" }]],
});

export const presenceBody = Type.Array(
  Type.Object({
    uid,
    online: flag("1: the user has a session"),
    device_flag: deviceFlag(
      "Lowest device type among the user's main sessions, or among all sessions if none is a main session; 0 if the user is offline",
    ),
  }),
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
  device_flag: deviceFlag("Type of the device"),
  device_level: deviceLevel("Level of the device in this session"),
  device_id: text("Id of the device, chosen by the client"),
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
        device_flag: deviceFlag("Type of the device"),
        device_level: deviceLevel("Level of the device, registered with its token"),
        has_token: flag("0: the device was logged out"),
      }),
      { description: "Registered device types" },
    ),
    sessions: Type.Array(
      Type.Object({
        session_id: text("Session id"),
        node_id: text("Node that serves the session"),
        ...sessionDevice,
      }),
      { description: "Live sessions on any node" },
    ),
  },
  {
    title: "Devices",
    description: "Registered device types and live sessions of a user",
    examples: [DEVICES_EXAMPLE],
  },
);

const CONNECTION_EXAMPLE = {
  id: "n1-1",
  conn_id: 4_142_501_573_165_057,
  uid: "alice",
  ip: "192.0.2.7",
  listener: "client",
  uptime: 61,
  pending_bytes: 0,
  device: "web",
  ...{ device_flag: 1, device_level: 1, device_id: "browser" },
  format: "native",
  version: 1,
  foreground: 1,
  node_id: "n1",
};

export const connzBody = Type.Object(
  {
    node_id: text("Node that replies. The page contains only this node's sessions"),
    connections: Type.Array(
      Type.Object({
        id: text("Session id"),
        conn_id: count("Session id as a number, for /conn/kick"),
        uid,
        ip: text("Address of the client"),
        listener: text("Listener that accepted the client: client or wkproto"),
        uptime: count(
          "Seconds since the login. For a closed session, seconds from the opening of its connection to its end",
        ),
        pending_bytes: count(
          "Number of bytes that the client has not read yet, or 0 for a closed session",
        ),
        device: text("Type of the device as text: app, web or desktop"),
        ...sessionDevice,
        format: text("Wire format"),
        version: Type.Integer({ description: "Protocol version of the wire format" }),
        foreground: Type.Optional(
          flag(
            "0: the client has reported that it is in the background. Absent for closed sessions",
          ),
        ),
        node_id: text("Node that serves the session"),
        refused: Type.Optional(
          flag(
            "1: no login was accepted, so uid and device are only what the client claimed. Absent for open sessions, like all following fields",
          ),
        ),
        ended: Type.Optional(text("Time at which the session ended or was refused, in ISO 8601")),
        reason: Type.Optional(
          text(
            "Close reason (docs/protocol/native.md), or one of lost (no close frame), left (the client closed the connection), origin_refused and too_many_connections (the handshake was refused)",
          ),
        ),
        message: Type.Optional(text("Explanation of the reason, in English")),
        code: Type.Optional(
          count("WebSocket close code, or the HTTP status of a refused handshake"),
        ),
        error: Type.Optional(text("Code of the error with which the login was refused")),
        origin: Type.Optional(text("Origin of the web page whose handshake was refused")),
      }),
      { description: "Sessions on this page" },
    ),
    now: text("Current time in ISO 8601"),
    total: count("Number of this node's open or closed sessions that match the query"),
    offset: count("Number of sessions that were skipped"),
    limit: count("Maximum number of sessions on this page"),
  },
  {
    title: "Connections",
    description: "One page of this node's sessions",
    examples: [
      {
        node_id: "n1",
        connections: [CONNECTION_EXAMPLE],
        now: "2026-09-21T14:13:20.000Z",
        ...{ total: 1, offset: 0, limit: 20 },
      },
    ],
  },
);

export const readersBody = Type.Object(
  {
    readers: Type.Array(
      Type.Object({
        uid,
        read_seq: count("Sequence number up to which the user has read the channel"),
        has_read: flag("1: the user has read the message, or a later one"),
      }),
      { description: "Members on this page" },
    ),
    cursor: text("Cursor of the next page, empty on the last page"),
  },
  {
    title: "Readers",
    description: "Read positions of members, and whether each of them has read the message",
    examples: [{ readers: [{ uid: "alice", read_seq: 3, has_read: 1 }], cursor: "" }],
  },
);

export const busiestBody = Type.Object(
  {
    node_id: text(
      "Node that replies. Only messages and events that were sent through this node are counted",
    ),
    window_s: count("Seconds over which messages and events were counted"),
    channels: Type.Array(
      Type.Object({
        channel_id: text("Channel id; for a personal channel, one of its two users"),
        channel_type: channelType,
        uid: Type.Optional(text("The other user of a personal channel. Absent for a group")),
        messages: count("Number of accepted messages, without retries"),
        events: count("Number of accepted events, including stream events"),
      }),
      { description: "Channels, busiest first" },
    ),
  },
  {
    title: "BusiestChannels",
    description:
      "Channels that received the most messages and events. A channel that receives less than a thousandth of all messages and events may be missing",
    examples: [
      {
        node_id: "n1",
        window_s: 900,
        channels: [{ channel_id: "lobby", channel_type: 2, messages: 120, events: 3 }],
      },
    ],
  },
);

export const errorsBody = Type.Object(
  {
    node_id: text("Node that replies"),
    errors: Type.Array(
      Type.Object({
        time: text("Time of the latest occurrence in ISO 8601"),
        level: Type.Enum(["warn", "error", "fatal"], {
          type: "string",
          description: "Level of the log line",
        }),
        room: text("Part of the server that wrote the log line"),
        message: text("Message of the log line"),
        reason: text("Cause, empty if the log line has none"),
        count: Type.Integer({ description: "Number of occurrences" }),
        fields: Type.Unknown({
          description: "Object with other fields of the log line: strings, numbers and booleans",
        }),
      }),
      {
        description:
          "At most 100 different warnings and errors, ordered by their latest occurrence, newest first",
      },
    ),
  },
  {
    title: "Errors",
    description: "Newest warnings and errors of a node",
    examples: [
      {
        node_id: "n1",
        errors: [
          {
            time: "2026-11-26T20:00:00.000Z",
            level: "error",
            room: "broker",
            message: "Could not remove expired messages",
            reason: "the disk is full",
            count: 3,
            fields: {},
          },
        ],
      },
    ],
  },
);

export const configBody = Type.Object(
  {
    node_id: text("Node that replies"),
    version: text("Version of the product"),
    settings: Type.Array(
      Type.Object({
        key: text("Name of the setting"),
        value: Type.Optional(
          Type.Unknown({
            description:
              "Value of the setting. Absent if the value is secret. URLs are shown without user name and password, and secrets in a list are masked",
          }),
        ),
        is_secret: flag("1: the value is secret and not shown"),
        is_set: flag("1: the value is not the default"),
        source: text("Source of the value, and the sources that this source overrides"),
        description: text("Meaning of the setting"),
        unit: Type.Optional(text("Unit of the value")),
      }),
      { description: "All settings, in the order of docs/configuration.md" },
    ),
  },
  {
    title: "Configuration",
    description: "Effective configuration of a node",
    examples: [
      {
        node_id: "n1",
        version: "0.1.0",
        settings: [
          {
            key: "api.listen",
            value: "127.0.0.1:5001",
            ...{ is_secret: 0, is_set: 0 },
            source: "default",
            description: "Address of the HTTP control plane",
            unit: "host:port",
          },
        ],
      },
    ],
  },
);

export const indexBody = Type.Object(
  {
    service: text("Name of the product"),
    message: text("Purpose of this listener, and the port or address to which clients connect"),
    openapi: text("Path of the OpenAPI document"),
  },
  {
    title: "Index",
    description: "Purpose of this address, and the path of the OpenAPI document",
    examples: [
      {
        service: "Jindou",
        message:
          "This is the HTTP API for backends. Clients connect by WebSocket to port 5200 (client.listen).",
        openapi: "/openapi.json",
      },
    ],
  },
);

export const varzBody = Type.Object(
  {
    server_id: text("Node id"),
    server_name: text("Name of the product"),
    version: text("Version of the product"),
    uptime: count("Seconds since the start"),
    connections: count("Number of open client sockets"),
    sessions: count("Number of sessions"),
    out_msgs: count("Number of deliveries of messages to sessions since the start"),
    mem: count("Resident memory in bytes"),
    ws_addr: text("Address at which clients reach the node; empty if none is configured"),
    tcp_addr: text(
      "Address at which clients reach the node by WKProto over TCP; empty if none is configured",
    ),
  },
  {
    title: "Varz",
    description: "Identity and current statistics of a process",
    examples: [
      {
        server_id: "n1",
        server_name: "Jindou",
        version: "0.1.0",
        ...{ uptime: 61, connections: 2, sessions: 2, out_msgs: 12 },
        mem: 80_000_000,
        ws_addr: "chat1.example.com:5200",
        tcp_addr: "chat1.example.com:5100",
      },
    ],
  },
);

export const systemUidsBody = Type.Array(uid, {
  title: "SystemUidList",
  description: "Uids in ascending order",
  examples: [["bot"]],
});

export const sentBody = Type.Object(
  {
    message_id: count("Id of the message, unique in the cluster"),
    message_seq: count(
      "Sequence number of the message in the channel; 0 for a command and for a message that was not stored",
    ),
    client_msg_no: text("client_msg_no of the request, or the one that the server created"),
    repeated: Type.Optional(
      flag(
        "1: the request was a retry, and the ids are those of the first message. Absent means 0",
      ),
    ),
  },
  {
    title: "SentMessage",
    description: "Ids of the message. A retry gets the ids of the first message",
    additionalProperties: false,
    examples: [{ message_id: 4398046511105, message_seq: 1, client_msg_no: "first" }],
  },
);

const streamState = Type.Enum(["active", "closed", "cancelled", "interrupted"], {
  type: "string",
  title: "StreamState",
  description:
    "State of the stream. active: it has not ended. closed: its producer sent the end event. cancelled: a viewer, its producer or a forced start of another stream cancelled it. interrupted: its producer sent no event for longer than the idle timeout",
  examples: ["active"],
});

/** Body of a successful reply to an event. `stream` is present if the event belongs to a stream. */
export const eventBody = Type.Object(
  {
    status: text("Always ok"),
    stream: Type.Optional(
      Type.Object(
        { state: streamState },
        { description: "Stream of the event, with its state after the event" },
      ),
    ),
  },
  {
    title: "EventResult",
    description: "Reply to an event that was accepted",
    examples: [{ status: "ok", stream: { state: "active" } }],
  },
);

export const streamProperties = {
  state: streamState,
  text: text("Text of the stream so far"),
  next_index: count("Index of the next event of the stream"),
  start_data: text("Data of the start event"),
  end_data: Type.Union([Type.String(), Type.Null()], {
    description: "Data of the end event; null while the stream is active",
  }),
  events: Type.Array(
    Type.Object({
      index: count("Index of the event in the stream"),
      text_offset: Type.Integer({
        description: "Length of the text before the event, in UTF-16 code units",
      }),
      id: text("Id of the event"),
      type: text("Type of the event"),
      data: text("Data of the event"),
      timestamp: Type.Integer({ description: "Time of the event in Unix milliseconds" }),
    }),
    { description: "Tool calls and custom events of the stream" },
  ),
  truncated: Type.Optional(
    Type.Literal(1, {
      description:
        "Present if the stream is too long to be shown completely. `text` is then its beginning, `events` has one event that stands for all events that are not shown, and the whole stream can be read at `log`",
    }),
  ),
  log: text("Path at which the records of the stream can be read"),
};

const STREAM_EXAMPLE = {
  state: "active",
  text: "It is ",
  next_index: 1,
  start_data: "",
  end_data: null,
  events: [],
  log: "/v1/stream/channel/2/lobby/answer",
};

export const streamBody = Type.Object(
  {
    ...streamProperties,
    client_msg_no: text("client_msg_no of the stream"),
    from_uid: text("Sender of the stream"),
    message_id: count("Id of the stream's message"),
    message_seq: count("Sequence number of the stream's message in the channel"),
  },
  {
    title: "Stream",
    description: "State of a stream",
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
    message_id: count("Id of the message, unique in the cluster"),
    message_idstr: text("The same id as a string"),
    source_id: Type.Optional(text("Id of an imported message on its old server")),
    message_seq: count("Sequence number of the message in the channel"),
    client_msg_no: text("client_msg_no of the message"),
    from_uid: text("Sender"),
    channel_id: channelId,
    channel_type: channelType,
    timestamp: Type.Integer({ description: "Time of the message in Unix seconds" }),
    timestamp_ms: Type.Integer({ description: "Time of the message in Unix milliseconds" }),
    header: Type.Object(
      {
        no_persist: flag("1: the message is not stored"),
        red_dot: flag("1: the message counts as unread"),
        sync_once: flag("1: the message is a command"),
      },
      { description: "Flags of the message" },
    ),
    expire: Type.Integer({
      description:
        "Lifetime of the message in seconds, counted from its timestamp. 0 means that the message never expires",
    }),
    stream_no: text("client_msg_no of the stream to which the message belongs; empty if none"),
    tag_key: text("Label of the message; empty if it has none"),
    setting: Type.Optional(
      Type.Integer({ description: "Setting bits that a WKProto client sent with the message" }),
    ),
    topic: Type.Optional(
      Type.String({ description: "Topic that a WKProto client sent with the message" }),
    ),
    payload: Type.String({
      contentEncoding: "base64",
      description: "Content of the message in base64",
    }),
    stream: Type.Optional(
      Type.Object(streamProperties, { description: "Stream of the message, if it has one" }),
    ),
  },
  { title: "Message", description: "A stored message", examples: [MESSAGE_EXAMPLE] },
);

export const historyBody = Type.Object(
  {
    messages: Type.Array(message, { description: "Messages in the requested order" }),
    head_seq: Type.Integer({ description: "Sequence number of the newest message of the channel" }),
    more: flag("1: the range contains more messages than were returned"),
  },
  {
    title: "History",
    description: "A range of a channel's history",
    examples: [{ messages: [MESSAGE_EXAMPLE], head_seq: 1, more: 0 }],
  },
);

export const sentBatchBody = Type.Object(
  {
    fail_uids: Type.Array(uid, {
      description: "Users to whom the message was not sent",
    }),
    reason: Type.Array(text("Reason"), {
      description: "Reason for each user in fail_uids, in the same order",
    }),
  },
  {
    title: "SentBatch",
    description: "Users to whom the message was not sent, with the reasons",
    examples: [{ fail_uids: [], reason: [] }],
  },
);

export const loginBody = Type.Object(
  {
    token: text("Access token"),
    expire: Type.Integer({ description: "Lifetime of the token in seconds" }),
    user: Type.Object(
      {
        username: text("Name of the account"),
        role: Type.Enum(["admin", "operator", "viewer"], {
          type: "string",
          title: "Role",
          description: "Role of the account",
          examples: ["admin"],
        }),
        permissions: Type.Array(text("Permission, such as messages:write"), {
          description: "Permissions of the account. * means all",
        }),
      },
      { description: "Account of the manager" },
    ),
  },
  {
    title: "Login",
    description: "An access token and its account",
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
      title: "MigrationStatus",
      description:
        "State of the migration. completed: it finished in this process. migrated: another process or an earlier run finished it, or there was nothing to migrate",
      examples: ["running"],
    }),
    step: text("Current step, such as user, channel or message"),
    last_err: Type.Union([Type.String(), Type.Null()], {
      description: "Last error; null if there was none",
    }),
    try_count: count("Number of attempts"),
  },
  {
    title: "MigrationResult",
    description: "State of the data migration",
    examples: [{ status: "running", step: "message", last_err: null, try_count: 1 }],
  },
);

const NODE_EXAMPLE = {
  id: "n1",
  address: "chat1.example.com:5200",
  tcp_address: "chat1.example.com:5100",
  version: "0.1.0",
  uptime: 61,
  sessions: 2,
  load: 0.02,
  draining: 0,
};

export const nodesBody = Type.Array(
  Type.Object(
    {
      id: text("Node id"),
      address: text("Address at which clients reach the node; empty if none is configured"),
      tcp_address: text(
        "Address at which clients reach the node by WKProto over TCP; empty if none is configured",
      ),
      version: text("Version of the product"),
      uptime: count("Seconds since the start"),
      sessions: count("Number of sessions"),
      load: Type.Number({
        minimum: 0,
        maximum: 1,
        description: "Moving average of the fraction of one core that the process uses",
      }),
      draining: flag("1: the node is shutting down and accepts no sessions"),
    },
    { title: "Node", description: "A node of the cluster", examples: [NODE_EXAMPLE] },
  ),
  {
    title: "NodeList",
    description: "Nodes that are alive, beginning with the node that replies",
    examples: [[NODE_EXAMPLE]],
  },
);

const addresses = {
  tcp_addr: Type.String({
    description: "Address (host:port) for WKProto over TCP; empty if none is configured",
  }),
  ws_addr: Type.String({
    description:
      "Address at which clients connect to the node, if that address does not begin with wss://. Otherwise empty",
  }),
  wss_addr: Type.String({
    description:
      "Address at which clients connect to the node, if that address begins with wss://. Otherwise empty",
  }),
};

const ADDRESS_EXAMPLE = {
  tcp_addr: "chat1.example.com:5100",
  ws_addr: "ws://chat1.example.com:5200",
  wss_addr: "",
};

export const routeBody = Type.Object(addresses, {
  title: "Route",
  description: "Addresses to which a client should connect. They may belong to different nodes",
  examples: [ADDRESS_EXAMPLE],
});

export const signedUrlBody = Type.Object(
  {
    url: Type.String({
      description:
        "The URL, with the origin of the request. Any other origin at which this cluster can be reached also works",
    }),
    expires_at: Type.Integer({ description: "Time at which the URL expires, in Unix seconds" }),
  },
  {
    title: "SignedUrl",
    description: "A URL whose bearer needs no other credential",
    examples: [
      {
        url: "https://chat.example.com/v1/stream/answers/42?sig=1790000000.read..bXK4",
        expires_at: 1_790_000_000,
      },
    ],
  },
);

export const rotatedBody = Type.Object(
  {
    status: Type.Literal("ok", { description: "Always ok" }),
    earlier_valid_until: Type.Integer({
      description: "Latest time at which a URL signed with an earlier key expires, in Unix seconds",
    }),
  },
  {
    title: "KeyRotation",
    description: "Result of rotating the signing key",
    examples: [{ status: "ok", earlier_valid_until: 1_790_086_400 }],
  },
);

export const routeBatchBody = Type.Array(
  Type.Object({
    uids: Type.Array(uid, { description: "Users who should connect to these addresses" }),
    ...addresses,
  }),
  {
    title: "RouteList",
    description: "One record for each set of addresses, with the users who should connect to them",
    examples: [[{ uids: ["alice", "bob"], ...ADDRESS_EXAMPLE }]],
  },
);
