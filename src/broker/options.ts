// Configuration schemas of the sections `messages`, `content`, `streams`, `events`, `push`, `logs`
// and `commands`. The settings reference is generated from them.

import { Type } from "typebox";

export const messagesOptions = Type.Object(
  {
    maxPayloadBytes: Type.Integer({
      default: 65_536,
      minimum: 1,
      maximum: 8_388_608,
      unit: "bytes",
      description:
        "Maximum size of a decoded payload. A message with a larger payload is rejected.",
    }),
    historyLimit: Type.Integer({
      default: 500,
      minimum: 1,
      maximum: 10_000,
      unit: "messages",
      description: "Maximum number of messages that one history request returns.",
    }),
    friendsOnly: Type.Boolean({
      default: false,
      description:
        "Whether a user who is not a system account receives personal messages, commands and events only from users on their own allowlist (`/channel/whitelist_add` with the user's uid and `channel_type` 1), from themselves, from system accounts and from the system. WuKongIM's `whitelistOffOfPerson` is the opposite: false there means true here.",
    }),
    backendMayImpersonate: Type.Boolean({
      default: false,
      description:
        "Whether a backend may send messages, commands and events to a group in the name of a user who is not a member of it. The other rules for sending always apply. With `api.dialect` = `wukongim`, this option has no effect: a backend always may, as with WuKongIM.",
    }),
  },
  { additionalProperties: false },
);

export const contentOptions = Type.Object(
  {
    validation: Type.Enum(["json", "strict", "opaque"], {
      default: "json",
      description:
        "Required content of a payload. `json`: a JSON object with an integer `type`. `strict`: in addition, valid fields of the known types. `opaque`: any bytes.",
    }),
  },
  { additionalProperties: false },
);

export const streamsOptions = Type.Object(
  {
    idleTimeoutMs: Type.Integer({
      default: 60_000,
      minimum: 100,
      maximum: 86_400_000,
      unit: "milliseconds",
      description:
        "Time without an event after which a stream ends as interrupted. Its text is kept.",
    }),
    maxDataBytes: Type.Integer({
      default: 65_536,
      minimum: 1,
      maximum: 1_048_576,
      unit: "bytes",
      description: "Maximum size of an event's data. A larger event is rejected.",
    }),
    maxStreamBytes: Type.Integer({
      default: 262_144,
      minimum: 1024,
      maximum: 16_777_216,
      unit: "bytes",
      description:
        "Maximum size of one stream, measured as the snapshot that is sent to a viewer who joins: text as JSON, tool calls and custom events with their ids and types. Further events are rejected. The limit is at most a quarter of `client.maxBufferedBytes`, even if it is set higher.",
    }),
    longPollMs: Type.Integer({
      default: 20_000,
      minimum: 100,
      maximum: 60_000,
      unit: "milliseconds",
      description:
        "Time after which a long poll of `/v1/stream/` without new data is answered with 204. Must be shorter than the timeouts of proxies.",
    }),
    maxActiveBytes: Type.Integer({
      default: 268_435_456,
      minimum: 1_048_576,
      maximum: 17_179_869_184,
      unit: "bytes",
      description:
        "Approximate limit on the memory used by this node's active streams. Above it, events are rejected with `overloaded`.",
    }),
  },
  { additionalProperties: false },
);

export const eventsOptions = Type.Object(
  {
    feed: Type.Enum(["store", "on", "off"], {
      default: "store",
      description:
        "Whether changes in the store write events for backends. The store keeps this state, so that all nodes agree. `store`: the state in the store is used; in a new store, the feed is off. `on` and `off`: a new store begins with this state, and a node does not start if its store has the other state. `jindou events on` and `jindou events off` change the state while nodes run.",
    }),
    retentionS: Type.Integer({
      default: 259_200,
      minimum: 60,
      description: "Age at which events are removed from the feed.",
    }),
    maxBytes: Type.Integer({
      default: 0,
      minimum: 0,
      unit: "bytes",
      description:
        "Size of the feed above which the oldest events are removed, whatever their age. 0 means 1 GiB in the embedded store, and 256 MiB in Redis. Session and command events use at most a quarter of this size.",
    }),
    presenceDelayMs: Type.Integer({
      default: 5000,
      minimum: 100,
      maximum: 600_000,
      unit: "milliseconds",
      description:
        "Time from the end of a user's last session until the `user.offline` event is written. No event is written for a user who returns earlier. After the embedded store starts, users have twice this time to return. Watching sessions are notified after `presence.offlineDelayMs`.",
    }),
  },
  { additionalProperties: false },
);

export const pushOptions = Type.Object(
  {
    enabled: Type.Boolean({
      default: false,
      description:
        "Whether the cluster decides which users need a push notification for a message (docs/push.md). If a stored message did not reach all its users, `message.unreached` events in the event feed name the users who were not reached. The event feed must be on. All nodes should have the same value.",
    }),
    afterMs: Type.Integer({
      default: 3000,
      minimum: 0,
      maximum: 3_600_000,
      unit: "milliseconds",
      description:
        "Time from storing a message to the push decision, during which clients can read or acknowledge it. With `api.dialect` = `wukongim`, an absent value means 0, as with WuKongIM.",
    }),
    maxMembers: Type.Integer({
      default: 5000,
      minimum: 1,
      maximum: 50_000,
      unit: "members",
      description:
        "Number of group members above which a `message.unreached` event can name only the first 1,000 users in the message's `mention.uids`. In groups with `large` = 1, only these users can be named, regardless of the number of members.",
    }),
  },
  { additionalProperties: false },
);

export const logsOptions = Type.Object(
  {
    maxBytes: Type.Integer({
      default: 16_777_216,
      minimum: 1024,
      maximum: 268_435_456,
      unit: "bytes",
      description:
        "Maximum size of one log (a Durable Stream), including at least 13 bytes for each append, and the bytes that a fork inherits. Further appends are rejected.",
    }),
    maxRecords: Type.Integer({
      default: 100_000,
      minimum: 1,
      maximum: 10_000_000,
      unit: "records",
      description:
        "Maximum number of records in one log: JSON messages, or appends if the log is not JSON. Further appends are rejected.",
    }),
    maxProducers: Type.Integer({
      default: 64,
      minimum: 1,
      maximum: 1000,
      unit: "producers",
      description:
        "Maximum number of producers that a log remembers to recognise retries. A further producer replaces the producer that has been silent for the longest time, if that time is longer than `store.dedupeWindowS`. Otherwise, the new producer is rejected.",
    }),
    maxOpen: Type.Integer({
      default: 100_000,
      minimum: 100,
      maximum: 10_000_000,
      unit: "logs",
      description:
        "Maximum number of logs whose heads (content type, end and state) a node with the embedded store keeps in memory. The heads of all other logs are read from the database when they are needed.",
    }),
    maxActiveBytes: Type.Integer({
      default: 268_435_456,
      minimum: 1_048_576,
      maximum: 17_179_869_184,
      unit: "bytes",
      description:
        "Maximum total size of this node's appends that have not yet been written to the embedded store's database or to Redis. Above it, appends are rejected with `overloaded`. In the embedded store, `store.maxMemtableBytes` limits them too.",
    }),
  },
  { additionalProperties: false },
);

export const commandsOptions = Type.Object(
  {
    maxInbox: Type.Integer({
      default: 1000,
      minimum: 1,
      maximum: 1_000_000,
      unit: "commands",
      description:
        "Maximum number of commands in one user's inbox. When the inbox is full, a new command replaces the oldest command of the sender who has the most commands in the inbox. All backends count as one sender, and a user's command never replaces a backend's command. One user's commands take up at most a tenth of another user's inbox. If that share is full, a further command to the owner of the inbox alone is rejected with `overloaded`, and a further command to several users replaces the sender's oldest command in the inbox.",
    }),
    expireS: Type.Integer({
      default: 604_800,
      minimum: 1,
      maximum: 315_360_000,
      unit: "seconds",
      description:
        "Time after which a command that no device has acknowledged is removed from the inbox. It is removed earlier if its own `expire` is shorter.",
    }),
  },
  { additionalProperties: false },
);
