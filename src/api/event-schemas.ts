// Event types, each with the condition under which it is written, the schema of its `data`, and an
// example. The OpenAPI document, the client for backends and the list in docs/events.md are
// generated from this table.

import { type TObject, type TSchema, Type } from "typebox";
import {
  EVENT_NAMES,
  type EventName,
  MAX_EVENT_COMMANDS,
  MAX_EVENT_UIDS,
} from "../broker/event-ports.ts";
import { channelType, deviceFlag, deviceLevel, flag, sendBan } from "./fields.ts";
import { count, MESSAGE_EXAMPLE, message, text } from "./reply-schemas.ts";

interface EventKind {
  /** Clause that completes "written when …". */
  readonly when: string;
  readonly data: TSchema;
  readonly example: Readonly<Record<string, unknown>>;
}

const channelKey = text(
  "Channel to which the event belongs: `2:<group>`, `1:<uid>@<uid>`, or `1:<uid>` for a user's channel record",
);
const uid = text("User id");
const gone = Type.Literal(1, { description: "1: the message has expired or was removed" });
const streamState = Type.Enum(["closed", "cancelled", "interrupted"], {
  type: "string",
  description:
    "How the stream ended. `closed`: by its producer. `cancelled`: by a viewer, its producer or the forced start of another stream. `interrupted`: its producer sent no event for longer than the idle timeout",
});
const uids = Type.Array(uid, {
  maxItems: MAX_EVENT_UIDS,
  description: "Ids of the users whom the event concerns",
});

const CHANNEL = {
  channel_id: text(
    "Channel id. If the event concerns the flags or lists of one user (channel_type 1), the uid of that user",
  ),
  channel_type: channelType,
};
const CHANNEL_EXAMPLE = { channel_id: "lobby", channel_type: 2 };

const FLAGS = {
  ban: flag("1: only the system and system accounts may send"),
  disband: flag("1: the channel is disbanded"),
  send_ban: sendBan,
  allow_stranger: flag("1: strangers may send to the user"),
  large: flag("1: a super-large group"),
  client_events: flag("1: clients may send events to the channel"),
};

function channelData(fields: Record<string, TSchema>): TObject {
  return Type.Object({ ...CHANNEL, ...fields, channel_key: channelKey });
}

const changedFlags = Object.fromEntries(
  Object.entries(FLAGS).map(([name, schema]) => [name, Type.Optional(schema)]),
);

const memberData = channelData({
  uids,
  temp_subscriber: flag("1: temporary members"),
});

const goneMessage = {
  message_id: count("Id of the message"),
  message_idstr: text("The same id as a string"),
  message_seq: count("Sequence number of the message"),
  gone,
};

/** Fields of an event that contains one page of the users who need a push for a message. */
const page = {
  uids,
  page: count(
    "Position of this event among the `message.unreached` events about the message, starting at 1",
  ),
  pages: count("Number of `message.unreached` events about the message"),
};

const storedMessage = {
  ...message.properties,
  stream: Type.Optional(
    Type.Object(
      { state: Type.Literal("active", { description: "The message has begun the stream" }) },
      {
        description:
          "Present if the message has a stream. The event `stream.ended` contains the text of the stream",
      },
    ),
  ),
};

const sessionData = {
  uid,
  device_flag: deviceFlag("Type of the device"),
  device_id: text("Id of the device, chosen by the client"),
  conn_id: count("Id of the session as a number, as in /connz"),
  device_online_count: count(
    "Number of the user's sessions on devices of this type after this session began or ended",
  ),
  total_online_count: count(
    "Total number of the user's sessions after this session began or ended",
  ),
};
const SESSION_EXAMPLE = {
  conn_id: 4_142_501_573_165_057,
  ...{ device_online_count: 1, total_online_count: 2 },
};

const EVENTS = {
  "message.stored": {
    when: "a message was stored",
    data: Type.Union([
      Type.Object({ ...storedMessage, channel_key: channelKey }),
      Type.Object({ ...goneMessage, channel_key: channelKey }),
    ]),
    example: { ...MESSAGE_EXAMPLE, channel_key: "2:lobby" },
  },
  "message.unreached": {
    when: `users needed a push for a message, while \`push.enabled\` is true (docs/push.md). A message with more than ${MAX_EVENT_UIDS} such users produces several events`,
    data: Type.Union([
      Type.Object({ ...storedMessage, ...page, channel_key: channelKey }),
      Type.Object({ ...goneMessage, ...page, channel_key: channelKey }),
    ]),
    example: {
      ...MESSAGE_EXAMPLE,
      ...{ uids: ["alice"], page: 1, pages: 1, channel_key: "2:lobby" },
    },
  },
  "channel.created": {
    when: "a channel was created",
    data: channelData(FLAGS),
    example: {
      ...CHANNEL_EXAMPLE,
      ...{ ban: 0, disband: 0, send_ban: 0, allow_stranger: 0, large: 0, client_events: 1 },
      channel_key: "2:lobby",
    },
  },
  "channel.updated": {
    when: "flags of a channel changed. `data` contains the changed flags",
    data: channelData(changedFlags),
    example: { ...CHANNEL_EXAMPLE, ban: 1, channel_key: "2:lobby" },
  },
  "channel.deleted": {
    when: "a channel was disbanded. `data` contains the changed flags",
    data: channelData({ ...changedFlags, disband: FLAGS.disband }),
    example: { ...CHANNEL_EXAMPLE, disband: 1, channel_key: "2:lobby" },
  },
  "channel.members_added": {
    when: `users became members. A call with more than ${MAX_EVENT_UIDS} users produces several events`,
    data: memberData,
    example: {
      ...CHANNEL_EXAMPLE,
      ...{ uids: ["alice", "bob"], temp_subscriber: 0, channel_key: "2:lobby" },
    },
  },
  "channel.members_removed": {
    when: `users lost their permanent or temporary membership. A call with more than ${MAX_EVENT_UIDS} users produces several events`,
    data: memberData,
    example: {
      ...CHANNEL_EXAMPLE,
      ...{ uids: ["bob"], temp_subscriber: 0, channel_key: "2:lobby" },
    },
  },
  "stream.ended": {
    when: "a stream ended. `text` has at most 64 KiB, and `truncated` is 1 if the stream has more",
    data: Type.Union([
      Type.Object({
        ...CHANNEL,
        client_msg_no: text("client_msg_no of the stream"),
        message_seq: count("Sequence number of the stream's message"),
        state: streamState,
        text: text("Text of the stream"),
        truncated: flag("1: the stream has more text than `text`"),
        channel_key: channelKey,
      }),
      Type.Object({
        client_msg_no: text("client_msg_no of the stream"),
        message_seq: count("Sequence number of the stream's message"),
        state: streamState,
        gone,
        channel_key: channelKey,
      }),
    ]),
    example: {
      ...CHANNEL_EXAMPLE,
      ...{ client_msg_no: "answer", message_seq: 2, state: "closed", text: "It is noon." },
      ...{ truncated: 0, channel_key: "2:lobby" },
    },
  },
  "user.token_changed": {
    when: "the token or the level of a device was set or changed, or the device was logged out",
    data: Type.Object({
      uid,
      device_flag: deviceFlag("Type of the device"),
      device_level: deviceLevel("Level of the device"),
    }),
    example: { uid: "alice", device_flag: 0, device_level: 1 },
  },
  "session.kicked": {
    when: "the server ended a user's session with the reason `kicked`, `token_changed`, `logged_out` or `banned`",
    data: Type.Object({
      uid,
      device_flag: deviceFlag("Type of the device"),
      device_id: text("Id of the device, chosen by the client"),
      reason: text(
        "Reason why the session was ended: `kicked`, `token_changed`, `logged_out` or `banned`",
      ),
    }),
    example: { uid: "alice", device_flag: 0, device_id: "phone", reason: "kicked" },
  },
  "user.online": {
    when: "a user who was offline has logged in",
    data: Type.Object({ uid, device_flag: deviceFlag("Type of the device that logged in") }),
    example: { uid: "alice", device_flag: 0 },
  },
  "user.offline": {
    when: "a user who was online has had no session for `events.presenceDelayMs`",
    data: Type.Object({
      uid,
      device_flag: deviceFlag("Type of the device whose session ended last"),
    }),
    example: { uid: "alice", device_flag: 0 },
  },
  "session.opened": {
    when: "a user's session has begun, but only while an enabled webhook or a reader requests events of this type",
    data: Type.Object(sessionData),
    example: { uid: "alice", device_flag: 0, device_id: "phone", ...SESSION_EXAMPLE },
  },
  "session.closed": {
    when: "a user's session has ended, but only while an enabled webhook or a reader requests events of this type",
    data: Type.Object({
      ...sessionData,
      reason: Type.Optional(
        text(
          "Reason why the session was ended, such as `kicked`. Absent if only its connection ended, for example because the client closed it",
        ),
      ),
    }),
    example: {
      ...{ uid: "alice", device_flag: 0, device_id: "phone", ...SESSION_EXAMPLE },
      ...{ device_online_count: 0, total_online_count: 0, reason: "kicked" },
    },
  },
  "command.sent": {
    when: "a command was sent, but only while an enabled webhook or a reader requests events of this type",
    data: Type.Object({ ...message.properties, channel_key: channelKey }),
    example: {
      ...{ ...MESSAGE_EXAMPLE, message_seq: 0 },
      ...{ header: { no_persist: 0, red_dot: 0, sync_once: 1 }, channel_key: "2:lobby" },
    },
  },
  "command.expired": {
    when: `commands have expired in the inbox of a user who had not acknowledged them. More than ${MAX_EVENT_COMMANDS} commands are split over several events`,
    data: Type.Object({
      uid,
      command_ids: Type.Array(count("`message_id` of a command"), {
        ...{ maxItems: MAX_EVENT_COMMANDS, description: "Ids of the expired commands" },
      }),
    }),
    example: { uid: "alice", command_ids: [4_398_046_511_105] },
  },
  "feed.gap": {
    when: "a reader or a webhook reaches a position at which the feed has lost events",
    data: Type.Object({
      from: count("Number of the first lost event in its partition"),
      to: count("Number of the last lost event"),
      count: count("Number of lost events"),
      types: Type.Optional(
        Type.Array(text("Event type"), {
          description: "Types that the lost events may have. Absent if they may have any type",
        }),
      ),
    }),
    example: { from: 12, to: 20, count: 9 },
  },
} satisfies Record<EventName, EventKind>;

interface EventSchema extends TSchema {
  readonly title: string;
  readonly description: string;
}

/** Schemas of the events of each type, in the form in which readers and webhooks receive them. */
export const EVENT_SCHEMAS: ReadonlyMap<EventName, EventSchema> = new Map(
  EVENT_NAMES.map((name) => [name, schemaOf(name)]),
);

export const EVENT_EXAMPLE = exampleOf("message.stored");

export const eventBody = Type.Union([...EVENT_SCHEMAS.values()], {
  title: "FeedEvent",
  description: "Event of the feed",
  examples: [EVENT_EXAMPLE],
});

function schemaOf(name: EventName): EventSchema {
  const fields = {
    id: text("Unique id of the event"),
    type: Type.Literal(name, { description: "Type of the event" }),
    timestamp: Type.String({
      format: "date-time",
      description: "Time of the event, RFC 3339 in UTC",
    }),
    data: { ...EVENTS[name].data, description: "Fields of the event" },
  };
  const title = titleOf(name);
  const description = `Written when ${EVENTS[name].when}`;
  return Object.assign(Type.Object(fields, { examples: [exampleOf(name)] }), {
    title,
    description,
  });
}

function exampleOf(type: EventName) {
  const [id, timestamp] = ["16-000000000001-374903424614400", "2026-11-26T20:31:55.123Z"];
  return { id, type, timestamp, data: EVENTS[type].example };
}

/** Returns the schema name of an event type, such as `MessageStoredEvent`. */
function titleOf(name: EventName): string {
  const words = name.split(/[._]/);
  return `${words.map((word) => `${word[0]?.toUpperCase()}${word.slice(1)}`).join("")}Event`;
}

const LIST = /(?<=<!-- types of events -->\n)[\s\S]*(?=<!-- end -->)/;

/** Returns docs/events.md with the current list of types. */
export function withEventList(page: string): string {
  const rows = EVENT_NAMES.map((name) => `| \`${name}\` | ${EVENTS[name].when} |`);
  const table = ["| Type | Written when |", "|---|---|", ...rows].join("\n");
  const examples = EVENT_NAMES.map((name) => {
    const data = JSON.stringify(EVENTS[name].example, null, 2);
    return `\`data\` of \`${name}\`:\n\n\`\`\`json\n${data}\n\`\`\``;
  });
  return page.replace(LIST, () => `\n${table}\n\n${examples.join("\n\n")}\n\n`);
}
