// What each call may send: the shapes that bodies and queries are checked against and the OpenAPI document is made from, so the two
// cannot disagree. State: none. Unknown fields pass and are ignored [decisions: Unknown body fields].

import { type Static, Type } from "typebox";
import { conversationBodies } from "./conversation-schemas.ts";
import {
  channelId,
  channelType,
  flag,
  id,
  LABEL_PATTERN,
  MAX_LOOKUP_UIDS,
  OPTIONAL_LABEL_PATTERN,
  personUid,
  uids,
} from "./fields.ts";
import { streamSchemas } from "./stream-schemas.ts";

const MAX_EXPIRE_S = 4_294_967_295;
const MAX_SEQ = Number.MAX_SAFE_INTEGER;
const MAX_HISTORY = 500;

const channelFlags = {
  ban: Type.Optional(flag("1: all members muted")),
  disband: Type.Optional(flag("1: disbands the channel; irreversible")),
  send_ban: Type.Optional(
    flag(
      "1: no member may send; the owner of a personal channel can receive only",
    ),
  ),
  allow_stranger: Type.Optional(
    flag("1: strangers may send; personal channels only"),
  ),
  large: Type.Optional(
    flag("1: a super-large group, for which nothing is kept per member"),
  ),
};

const header = Type.Object(
  {
    no_persist: Type.Optional(flag("1: not stored")),
    red_dot: Type.Optional(flag("1: counts as unread")),
    sync_once: Type.Optional(flag("1: a command (write diffusion)")),
  },
  { description: "What is to be done with the message; absent flags are 0" },
);

const LOBBY = { channel_id: "lobby", channel_type: 2 };

const sendBody = (maxSubscribers: number) =>
  Type.Object(
    {
      payload: Type.String({
        minLength: 1,
        contentEncoding: "base64",
        description: "Standard base64 of the JSON content",
      }),
      from_uid: id("Sender"),
      channel_id: channelId,
      channel_type: channelType,
      header: Type.Optional(header),
      client_msg_no: Type.Optional(
        Type.String({
          pattern: LABEL_PATTERN,
          description: "For deduplication; the server makes one when absent",
        }),
      ),
      stream_no: Type.Optional(
        Type.String({
          pattern: OPTIONAL_LABEL_PATTERN,
          description: "client_msg_no of the stream it belongs to",
        }),
      ),
      expire: Type.Optional(
        Type.Integer({
          minimum: 0,
          maximum: MAX_EXPIRE_S,
          default: 0,
          description: "Seconds until it leaves history; 0: never",
        }),
      ),
      subscribers: Type.Optional(
        Type.Array(id("user id"), {
          minItems: 1,
          maxItems: maxSubscribers,
          description: "Restricts who gets it; only for commands",
        }),
      ),
      tag_key: Type.Optional(
        Type.String({
          pattern: OPTIONAL_LABEL_PATTERN,
          description: "A label kept with the message",
        }),
      ),
    },
    {
      title: "SendRequest",
      examples: [
        {
          from_uid: "bob",
          ...LOBBY,
          client_msg_no: "first",
          payload: "eyJ0eXBlIjoxLCJjb250ZW50IjoiaGVsbG8ifQ==",
        },
      ],
    },
  );

const historyQuery = Type.Object({
  channel_id: channelId,
  channel_type: channelType,
  uid: Type.Optional(personUid),
  from_seq: Type.Optional(
    Type.Integer({
      minimum: 0,
      maximum: MAX_SEQ,
      default: 1,
      description: "First sequence number, inclusive",
    }),
  ),
  to_seq: Type.Optional(
    Type.Integer({
      minimum: 0,
      maximum: MAX_SEQ,
      default: 0,
      description: "Last sequence number, inclusive; 0: the newest",
    }),
  ),
  limit: Type.Optional(
    Type.Integer({
      minimum: 1,
      maximum: MAX_HISTORY,
      default: 50,
      description: "Most messages to return",
    }),
  ),
  order: Type.Optional(
    Type.Enum(["asc", "desc"], {
      type: "string",
      default: "asc",
      description: "desc: newest first; the limit then keeps the newest",
    }),
  ),
});

export interface BodyLimits {
  readonly maxSubscribersPerCall: number;
}

const userBodies = {
  userToken: Type.Object(
    {
      uid: id("User id"),
      token: Type.String({
        minLength: 1,
        maxLength: 4096,
        description: "The token the user's client will connect with",
      }),
      device_flag: Type.Enum([0, 1, 2], {
        type: "integer",
        description: "0 app, 1 web, 2 desktop",
      }),
      device_level: Type.Optional(flag("0 secondary device, 1 main device")),
    },
    {
      title: "UserTokenRequest",
      examples: [
        {
          uid: "alice",
          token: "alice-secret",
          device_flag: 1,
          device_level: 1,
        },
      ],
    },
  ),
  deviceQuit: Type.Object(
    {
      uid: id("User id"),
      device_flag: Type.Enum([-1, 0, 1, 2], {
        type: "integer",
        description: "0 app, 1 web, 2 desktop, -1 all three",
      }),
    },
    {
      title: "DeviceQuitRequest",
      examples: [{ uid: "alice", device_flag: -1 }],
    },
  ),
  onlineStatus: uids("Users to look up", MAX_LOOKUP_UIDS, {
    title: "OnlineStatusRequest",
    examples: [["alice", "bob"]],
  }),
};

const channelBodies = (max: number) => ({
  channel: Type.Object(
    {
      channel_id: channelId,
      channel_type: channelType,
      ...channelFlags,
      subscribers: Type.Optional(uids("Initial subscribers", max)),
    },
    {
      title: "ChannelRequest",
      examples: [{ ...LOBBY, subscribers: ["alice", "bob"] }],
    },
  ),
  channelInfo: Type.Object(
    {
      channel_id: channelId,
      channel_type: channelType,
      ...channelFlags,
    },
    { title: "ChannelInfoRequest", examples: [{ ...LOBBY, ban: 1 }] },
  ),
  subscriberAdd: Type.Object(
    {
      channel_id: channelId,
      channel_type: Type.Optional(channelType),
      subscribers: uids("Users to add; empty only with reset 1", max),
      reset: Type.Optional(flag("1: replaces the list")),
      temp_subscriber: Type.Optional(flag("1: temporary subscribers")),
    },
    {
      title: "SubscriberAddRequest",
      examples: [{ ...LOBBY, subscribers: ["carol"] }],
    },
  ),
  subscriberRemove: Type.Object(
    {
      channel_id: channelId,
      channel_type: channelType,
      subscribers: Type.Array(id("user id"), {
        minItems: 1,
        maxItems: max,
        description: "Users to remove, all or none",
      }),
      temp_subscriber: Type.Optional(
        flag("Which membership is removed: 0 permanent, 1 temporary"),
      ),
    },
    {
      title: "SubscriberRemoveRequest",
      examples: [{ ...LOBBY, subscribers: ["carol"] }],
    },
  ),
});

/** The schemas of all bodies and queries, with the configured limits in them. */
export function createSchemas(limits: BodyLimits) {
  return {
    ...userBodies,
    ...channelBodies(limits.maxSubscribersPerCall),
    send: sendBody(limits.maxSubscribersPerCall),
    history: historyQuery,
    ...streamSchemas,
    ...conversationBodies,
    login: Type.Object(
      {
        username: Type.String({ minLength: 1, maxLength: 128 }),
        password: Type.String({ minLength: 1, maxLength: 1024 }),
      },
      {
        title: "LoginRequest",
        examples: [{ username: "admin", password: "the-password" }],
      },
    ),
  };
}

export type Schemas = ReturnType<typeof createSchemas>;
/** A checked body or query by its name in the table of schemas. */
export type Body<Name extends keyof Schemas> = Static<Schemas[Name]>;
