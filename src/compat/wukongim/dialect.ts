// The dialect for backends written for WuKongIM: success is `{"status":200}`, errors are
// `{msg,status}`, one call creates or changes a channel, and bodies are parsed as tolerantly as in
// WuKongIM (dialect-bodies.ts). docs/http.md describes all differences. Keeps no state.

import { type Static, type TSchema, Type } from "typebox";
import { channelBodies, createChannelCalls, createListCalls, LISTS } from "../../api/channels.ts";
import type { Dialect } from "../../api/dialect.ts";
import { errorReply, HTTP_STATUS } from "../../api/errors.ts";
import { deviceFlag, flag } from "../../api/fields.ts";
import { batchUids, createSendBatch, sendBatchBody } from "../../api/message-batch.ts";
import { createSend, sendBody } from "../../api/messages.ts";
import { jsonReply, okReply } from "../../api/reply.ts";
import * as replies from "../../api/reply-schemas.ts";
import { type ApiRoute, type Outcome, postRoute, type RouteReply } from "../../api/route.ts";
import { createExplainRefusal, type ExplainRefusal, hasCode } from "../../api/send-refusals.ts";
import { tokenReply, userBodies } from "../../api/users.ts";
import type { Channels } from "../../broker/channels.ts";
import type { ErrorCode } from "../../broker/errors.ts";
import type { Messages } from "../../broker/messages.ts";
import { GROUP_CHANNEL, isId, PERSON_CHANNEL, SECONDARY_DEVICE } from "../../broker/model.ts";
import type { Clock } from "../../broker/ports.ts";
import type { Streams } from "../../broker/streams.ts";
import type { Users } from "../../broker/users.ts";
import type { HttpReply } from "../../transport/types.ts";
import { createBodyAdapter } from "./dialect-bodies.ts";
import { messageEventRows } from "./message-event-routes.ts";
import { createMessageEventCalls, type MessageEventCalls } from "./message-events.ts";

export interface WukongimPorts {
  readonly users: Users;
  readonly messages: Messages;
  readonly channels: Channels;
  readonly streams: Pick<Streams, "post" | "read">;
  readonly clock: Clock;
}

export function createWukongimDialect(ports: WukongimPorts, maxSubscribers: number): Dialect {
  return {
    rows(table) {
      const explain = createExplainRefusal(ports.channels);
      const events = createMessageEventCalls({ ...ports, explain });
      const ownRows = [
        ...channelRows(ports, maxSubscribers, table),
        tokenRow(ports, table),
        sendRow({ ...ports, explain, events }, maxSubscribers, table),
        sendBatchRow(ports, maxSubscribers, table),
        onlineStatusRow(ports.users, table),
      ];
      const ownOf = (row: ApiRoute) =>
        ownRows.find(({ path }) => path === row.path) ?? tolerantRow(row);
      return [...table.map(ownOf), ...messageEventRows(events)].map(withOwnBody);
    },
    adaptOf: ({ method, path, body }) =>
      method === "POST" ? createBodyAdapter(path, body) : undefined,
    reply: (reply, row) =>
      reply.status >= 400
        ? errorReplyOf(reply)
        : (SUCCESSES.get(row?.path ?? "")?.(reply, ports.clock()) ?? successReply(reply, row)),
    errorBody,
    statusOf,
  };
}

// --- Replies -------------------------------------------------------------------------------------

/**
 * HTTP statuses that this dialect keeps in replies about the broker's errors. All other statuses
 * become 400.
 */
const KEPT_STATUSES: ReadonlySet<number> = new Set([400, 401, 429, 500, 503]);

function statusOf(code: ErrorCode): number {
  const status = HTTP_STATUS[code];
  return KEPT_STATUSES.has(status) ? status : 400;
}

/** Converts an error reply. HTTP-level errors, such as an unknown path, keep their status. */
function errorReplyOf({ status, headers = {}, body }: HttpReply): HttpReply {
  const { error, code } = JSON.parse(String(body)); // written by errors.ts
  if (code === "unauthorized") return { status, headers, body: "" };
  const isBrokerError = code in HTTP_STATUS && status !== 413;
  return {
    status: isBrokerError ? statusOf(code) : status,
    headers,
    // If a permission is missing, the HTTP status is 400 but the status in the body is 403.
    body: JSON.stringify({
      msg: error,
      status: isBrokerError && code !== "forbidden" ? statusOf(code) : status,
    }),
  };
}

const TABLE_SUCCESS = '{"status":"ok"';
const SUCCESS = '{"status":200';

function successReply(reply: HttpReply, row: ApiRoute | undefined): HttpReply {
  const { body } = reply;
  return row?.method === "POST" && typeof body === "string" && body.startsWith(TABLE_SUCCESS)
    ? { ...reply, body: SUCCESS + body.slice(TABLE_SUCCESS.length) }
    : reply;
}

type Shape = (reply: HttpReply, nowMs: number) => HttpReply;

const SUCCESSES: ReadonlyMap<string, Shape> = new Map<string, Shape>([
  ["/message/send", sentReply],
  [
    "/manager/login",
    (reply, nowMs) => {
      const { token, expire, user } = JSON.parse(String(reply.body)); // written by managers.ts
      const { username, permissions } = user;
      const exp = Math.floor(nowMs / 1000) + expire;
      const permissionList = permissions.join(",");
      const body = { username, token, exp, permissions: permissionList };
      return { ...reply, body: JSON.stringify(body) };
    },
  ],
]);

/**
 * Converts the reply to a send. Some publicly available backends read the result at the top level,
 * and others under `data`, which exists only in the reply for a single message.
 */
function sentReply(reply: HttpReply): HttpReply {
  const json = String(reply.body); // a JSON object written by messages.ts or message-batch.ts
  const data = json.startsWith('{"message_id":') ? `,"data":${json}` : "";
  return { ...reply, body: `${SUCCESS},${json.slice(1, -1)}${data}}` };
}

const errorBody = Type.Object(
  {
    msg: Type.String({ description: "Error message in English" }),
    status: Type.Integer({
      description:
        "HTTP status of the error. If the credential lacks a permission, it is 403, although the reply itself has the HTTP status 400",
    }),
  },
  {
    title: "Error",
    description: "Reply to a call that failed",
    examples: [{ msg: "uid is required", status: 400 }],
  },
);

const status = Type.Literal(200, { description: "200: the call succeeded" });
const { repeated: _, ...sent } = replies.sentBody.properties;
/** Schemas of reply bodies in this dialect. The keys are the schemas in the route table. */
const BODIES: ReadonlyMap<TSchema | undefined, TSchema> = new Map<TSchema | undefined, TSchema>([
  [
    replies.statusBody,
    Type.Object(
      { status },
      { title: "Done", description: "Reply to a call that succeeded", examples: [{ status: 200 }] },
    ),
  ],
  [
    replies.sentBody,
    Type.Object(
      {
        status,
        message_id: Type.Optional(sent.message_id),
        message_seq: Type.Optional(sent.message_seq),
        client_msg_no: Type.Optional(sent.client_msg_no),
        fail_uids: Type.Optional(replies.sentBatchBody.properties.fail_uids),
        reason: Type.Optional(replies.sentBatchBody.properties.reason),
        data: Type.Optional(
          Type.Object(sent, {
            additionalProperties: false,
            description: "Ids of the message, repeated as in WuKongIM",
          }),
        ),
      },
      {
        title: "SentMessage",
        description:
          "Ids of the message, or `fail_uids` and `reason` for a command that was sent to subscribers and not to a channel",
      },
    ),
  ],
  [
    replies.eventBody,
    Type.Object(
      { status, stream: replies.eventBody.properties.stream },
      { title: "EventResult", description: "Reply to an event that was accepted" },
    ),
  ],
  [
    replies.loginBody,
    Type.Object(
      {
        username: Type.String({ description: "Name of the account" }),
        token: Type.String({ description: "Access token" }),
        exp: Type.Integer({ description: "Expiry time in Unix seconds" }),
        permissions: Type.String({ description: "Permissions, separated by commas" }),
      },
      { title: "Login", description: "An access token and its account" },
    ),
  ],
]);

function withOwnBody(row: ApiRoute): ApiRoute {
  const body = BODIES.get(row.success.body);
  return row.method === "GET" || body === undefined
    ? row
    : { ...row, success: { ...row.success, body } };
}

// --- Rows ----------------------------------------------------------------------------------------

/** Values of absent flags. `disband` is not listed because it cannot be undone. */
const NO_FLAGS = { ban: 0, send_ban: 0, allow_stranger: 0, large: 0 } as const;

/**
 * Status in the body of the reply to `/user/token` if the account is banned or disbanded. The HTTP
 * status is 200.
 */
const ACCOUNT_STATUS = { banned: 19, disbanded: 24 } as const;

function tokenRow(
  { users, channels }: Pick<WukongimPorts, "users" | "channels">,
  table: readonly ApiRoute[],
): ApiRoute {
  async function isDisbanded(uid: string): Promise<boolean> {
    try {
      return (await channels.state({ id: uid, type: PERSON_CHANNEL })).info.disband;
    } catch (error) {
      if (!hasCode(error, "channel_not_found")) throw error;
      return false;
    }
  }

  return postRoute({
    ...docsOf("/user/token", table),
    summary: "Sets a user's token for a device type, unless the account is banned or disbanded",
    success: {
      description: "200, or the reason why nothing was done: 19 banned, 24 disbanded",
      body: Type.Object(
        {
          status: Type.Enum([200, ...Object.values(ACCOUNT_STATUS)], {
            type: "integer",
            description: "200 the token was set, 19 the account is banned, 24 it is disbanded",
          }),
        },
        {
          title: "TokenResult",
          description: "Whether the token was set",
          examples: [{ status: 200 }],
        },
      ),
    },
    body: userBodies.token,
    async handle(body) {
      const { uid, token, device_flag: flag, device_level: level = SECONDARY_DEVICE } = body;
      if (await users.isBanned(uid)) return accountReply("banned");
      if (await isDisbanded(uid)) return accountReply("disbanded");
      await users.setToken({ uid, token, flag, level });
      return tokenReply(token);
    },
  });
}

function accountReply(state: keyof typeof ACCOUNT_STATUS): HttpReply {
  return jsonReply(JSON.stringify({ status: ACCOUNT_STATUS[state] }));
}

function channelRows(
  { channels, users }: Pick<WukongimPorts, "channels" | "users">,
  maxSubscribers: number,
  table: readonly ApiRoute[],
): readonly ApiRoute[] {
  const calls = createChannelCalls(channels);
  const bodies = channelBodies(maxSubscribers);
  const create = Type.Object(
    {
      ...bodies.create.properties,
      reset: Type.Optional(flag("1: these subscribers replace the existing ones")),
    },
    { title: "ChannelRequest", description: "Channel to create or change" },
  );

  /** Creates or changes a channel. For a personal channel, `ban` also bans the account. */
  async function upsert(body: Static<typeof create>): Promise<RouteReply> {
    const { channel_id: id, channel_type: type } = body;
    const isNew = await isCreated(body);
    if (!isNew) {
      await channels.addSubscribers({ id, type }, body.subscribers ?? [], {
        membership: "permanent",
        reset: body.reset === 1,
      }); // throws if the channel is disbanded
      await calls.update({ ...NO_FLAGS, ...body });
    }
    if (type === PERSON_CHANNEL) await updateBan(id, body.ban === 1);
    return okReply();
  }

  async function isCreated(body: Static<typeof create>): Promise<boolean> {
    try {
      await calls.create(body);
      return true;
    } catch (error) {
      if (!hasCode(error, "channel_exists")) throw error;
      return false;
    }
  }

  /** Sets or ends a ban. A repeated ban ends sessions that an earlier call may have left open. */
  async function updateBan(uid: string, isBanned: boolean): Promise<void> {
    if (isBanned || (await users.isBanned(uid))) await users.setBan(uid, isBanned);
  }

  async function withChannel(
    { channel_id, channel_type }: Static<typeof bodies.target>,
    call: () => Outcome,
  ) {
    try {
      return await call();
    } catch (error) {
      if (!hasCode(error, "channel_not_found")) throw error;
    }
    try {
      await calls.create({ channel_id, channel_type });
    } catch (error) {
      // Another call may have created the channel. The flags of that channel are not changed.
      if (!hasCode(error, "channel_exists")) throw error;
    }
    return call();
  }

  return [
    postRoute({
      ...docsOf("/channel", table),
      summary: "Creates or changes a channel. Absent flags except client_events become 0",
      body: create,
      handle: upsert,
    }),
    postRoute({
      ...docsOf("/channel/info", table),
      summary:
        "Sets the flags of a channel; absent flags except client_events become 0. Creates the channel if it does not exist",
      body: bodies.update,
      // Overrides `subscribers` and `reset`, which are unknown fields here but may be in the body.
      handle: (body) => upsert({ ...body, subscribers: [], reset: 0 }),
    }),
    postRoute({
      ...docsOf("/channel/subscriber_add", table),
      summary: "Adds subscribers. Creates the channel if it does not exist",
      body: bodies.addSubscribers,
      handle: ({ channel_type = GROUP_CHANNEL, ...body }) =>
        withChannel({ ...body, channel_type }, () =>
          calls.addSubscribers({ ...body, channel_type }),
        ),
    }),
    postRoute({
      ...docsOf("/channel/subscriber_remove", table),
      summary: "Removes subscribers. Users who are not subscribers are ignored",
      body: bodies.removeSubscribers,
      async handle({ channel_id: id, channel_type: type, ...body }) {
        const membership = body.temp_subscriber === 1 ? "temporary" : "permanent";
        try {
          const { subscribers } = body;
          await channels.removeSubscribers({ id, type }, subscribers, membership, "skip");
        } catch (error) {
          if (!hasCode(error, "channel_not_found")) throw error;
        }
        return okReply();
      },
    }),
    ...(["blacklist", "whitelist"] as const).flatMap((wire) => {
      const list = createListCalls(channels, LISTS[wire]);
      return [
        postRoute({
          ...docsOf(`/channel/${wire}_add`, table),
          summary: `Adds users to the ${wire}. Creates the channel if it does not exist`,
          body: bodies.listed,
          handle: (body) => withChannel(body, () => list.add(body)),
        }),
        postRoute({
          ...docsOf(`/channel/${wire}_set`, table),
          summary: `Replaces the ${wire}. Creates the channel if it does not exist`,
          body: bodies.list,
          handle: (body) => withChannel(body, () => list.set(body)),
        }),
      ];
    }),
  ];
}

/** Paths of calls that remove something. They succeed even if the channel does not exist. */
const REMOVALS: readonly string[] = [
  "/channel/delete",
  "/channel/subscriber_remove_all",
  ...Object.keys(LISTS).flatMap((wire) => [
    `/channel/${wire}_remove`,
    `/channel/${wire}_remove_all`,
  ]),
];

/** Errors that become successful replies, by path. */
const IGNORED_ERRORS: ReadonlyMap<string, ErrorCode> = new Map<string, ErrorCode>([
  ...REMOVALS.map((path) => [path, "channel_not_found"] as const),
  ["/conversations/clearUnread", "not_in_channel"],
  ["/conversations/setUnread", "not_in_channel"],
  ["/conversations/delete", "not_in_channel"],
]);

function tolerantRow(row: ApiRoute): ApiRoute {
  const ignored = IGNORED_ERRORS.get(row.path);
  if (ignored === undefined) return row;
  return {
    ...row,
    async run(...args) {
      try {
        return await row.run(...args);
      } catch (error) {
        if (!hasCode(error, ignored)) throw error;
        return okReply();
      }
    },
  };
}

interface SendPorts extends Pick<WukongimPorts, "messages"> {
  readonly explain: ExplainRefusal;
  readonly events: MessageEventCalls;
}

/**
 * Wraps `send` so that it behaves like WuKongIM: it does not refuse a reused client_msg_no and does
 * not report a retry.
 */
function asWukongim(messages: Pick<Messages, "send">): Pick<Messages, "send"> {
  return {
    async send(input) {
      return { ...(await messages.send({ ...input, allowsReuse: true })), repeated: false };
    },
  };
}

function sendBatchRow(
  { messages }: Pick<SendPorts, "messages">,
  maxSubscribers: number,
  table: readonly ApiRoute[],
): ApiRoute {
  return postRoute({
    ...docsOf("/message/sendbatch", table),
    summary: "Sends a message to each of several users as a personal message",
    body: sendBatchBody(maxSubscribers),
    handle: createSendBatch(asWukongim(messages)),
  });
}

/**
 * Creates the row of `/message/send`. A command without a channel is sent to each uid in
 * `subscribers`.
 */
function sendRow(
  { messages, explain, events }: SendPorts,
  maxSubscribers: number,
  table: readonly ApiRoute[],
): ApiRoute {
  const sender = asWukongim(messages);
  const send = createSend(sender, explain);
  const sendBatch = createSendBatch(sender);
  const { properties } = sendBody(maxSubscribers);
  const { channel_id, channel_type } = properties;
  return postRoute({
    ...docsOf("/message/send", table),
    summary: "Sends a message, or a command to users. Returns when it is durable",
    body: Type.Object(
      {
        ...properties,
        channel_id: Type.Optional(channel_id),
        channel_type: Type.Optional(channel_type),
        subscribers: Type.Optional(batchUids(maxSubscribers)),
        is_stream: Type.Optional(
          flag("1: the message begins a stream, to which POST /message/event adds text"),
        ),
      },
      { title: "SendRequest", description: "Message to send" },
    ),
    handle(body) {
      const { channel_id, channel_type, subscribers, is_stream: isStream } = body;
      if (channel_id !== undefined && channel_type !== undefined) {
        if (isStream === 1) return events.begin({ ...body, channel_id, channel_type });
        const valid = subscribers?.filter(isId) ?? [];
        // A list without a valid uid is passed on unchanged, so that it is rejected. If the list
        // were removed, all members would get the command.
        const recipients = valid.length > 0 ? { subscribers: valid } : {};
        return send({ ...body, ...recipients, channel_id, channel_type });
      }
      const isCommand = body.header?.sync_once === 1;
      if (channel_id === undefined && isCommand && subscribers !== undefined)
        return sendBatch({ ...body, subscribers });
      return errorReply("bad_request", {
        message:
          "channel_id and channel_type are required, unless the message is a command (header.sync_once 1) with subscribers",
      });
    },
  });
}

const onlineBody = Type.Array(
  Type.Object({
    uid: Type.String({ description: "User id" }),
    device_flag: deviceFlag("Type of the device"),
    online: Type.Literal(1, { description: "Always 1" }),
  }),
  { title: "OnlineStatusList", description: "One record for each live session" },
);

function onlineStatusRow(users: Pick<Users, "liveSessions">, table: readonly ApiRoute[]): ApiRoute {
  return postRoute({
    ...docsOf("/user/onlinestatus", table),
    summary: "Lists the live sessions of several users",
    body: userBodies.onlineStatus,
    success: { description: "Records", body: onlineBody },
    async handle(uids) {
      const sessions = await users.liveSessions([...new Set(uids)]);
      const records = sessions
        .flat()
        .map(({ uid, flag }) => ({ uid, device_flag: flag, online: 1 }));
      return jsonReply(JSON.stringify(records));
    },
  });
}

function docsOf(path: string, table: readonly ApiRoute[]) {
  const row = table.find((candidate) => candidate.path === path);
  if (row === undefined) throw new Error(`No row has the path ${path}`); // a missing row is a bug
  const { operation, access, tag, success, errors, forbidding = [] } = row;
  return { path, operation, access, tag, success, errors, forbidding };
}
