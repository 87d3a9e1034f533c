// The one table of what the control plane serves: method, path, who may call, what it reads, what it answers, who does it.
// The listener and the OpenAPI document are both made from it. State: none.

import { type CallParts, type Calls, createCalls } from "./calls.ts";
import type { ClusterParts } from "./cluster.ts";
import { createClusterRoutes } from "./cluster-routes.ts";
import * as replies from "./reply-schemas.ts";
import {
  type ApiRoute,
  plainRoute,
  postQueryRoute,
  postRoute,
  queryRoute,
} from "./route.ts";
import { type BodyLimits, createSchemas, type Schemas } from "./schemas.ts";
import { createStreamRoute, type StreamRouteParts } from "./stream-route.ts";

/** Everything the rows call. */
export interface RouteParts extends CallParts, ClusterParts, StreamRouteParts {
  readonly streams: CallParts["streams"] & StreamRouteParts["streams"];
}

const DONE = { description: "Done", body: replies.statusBody };

const SEND_REFUSALS = [
  "channel_banned",
  "send_banned",
  "not_subscriber",
  "stranger_refused",
  "channel_disbanded",
] as const;

/** All rows but /openapi.json, which is made from them. */
export function createRoutes(
  parts: RouteParts,
  limits: BodyLimits,
): readonly ApiRoute[] {
  const calls = createCalls(parts);
  const schemas = createSchemas(limits);
  return [
    ...userRoutes(calls, schemas),
    ...channelRoutes(calls, schemas),
    ...messageRoutes(calls, schemas),
    eventRoute(calls, schemas),
    createStreamRoute(parts, "all"),
    ...conversationRoutes(calls, schemas),
    ...managerRoutes(calls, schemas),
    ...createClusterRoutes(parts),
    ...systemRoutes(calls),
  ];
}

function userRoutes({ users }: Calls, schemas: Schemas): readonly ApiRoute[] {
  return [
    postRoute({
      path: "/user/token",
      access: ["users:write"],
      tag: "users",
      summary: "Registers or refreshes the token of a user's device class",
      body: schemas.userToken,
      success: DONE,
      errors: ["bad_id", "reserved_uid"],
      handle: users.setToken,
    }),
    postRoute({
      path: "/user/device_quit",
      access: ["users:write"],
      tag: "users",
      summary: "Makes a user's tokens worthless and ends the sessions",
      body: schemas.deviceQuit,
      success: DONE,
      errors: ["bad_id", "reserved_uid"],
      handle: users.quitDevice,
    }),
    postRoute({
      path: "/user/onlinestatus",
      access: ["users:write", "system:read"],
      tag: "users",
      summary: "Tells the online status of many users",
      body: schemas.onlineStatus,
      success: { description: "Records", body: replies.presenceBody },
      errors: ["bad_id"],
      handle: users.onlineStatus,
    }),
  ];
}

function channelRoutes(
  { channels }: Calls,
  schemas: Schemas,
): readonly ApiRoute[] {
  return [
    postRoute({
      path: "/channel",
      access: ["channels:write"],
      tag: "channels",
      summary:
        "Creates a channel; with disband 1 disbands one that exists already",
      body: schemas.channel,
      success: DONE,
      errors: ["bad_id", "channel_exists"],
      handle: channels.create,
    }),
    postRoute({
      path: "/channel/info",
      access: ["channels:write"],
      tag: "channels",
      summary: "Changes the flags that are given",
      body: schemas.channelInfo,
      success: DONE,
      errors: ["bad_id", "channel_not_found"],
      handle: channels.update,
    }),
    postRoute({
      path: "/channel/subscriber_add",
      access: ["channels:write"],
      tag: "channels",
      summary: "Adds subscribers",
      body: schemas.subscriberAdd,
      success: DONE,
      errors: ["bad_id", "channel_not_found", "channel_disbanded"],
      handle: channels.addSubscribers,
    }),
    postRoute({
      path: "/channel/subscriber_remove",
      access: ["channels:write"],
      tag: "channels",
      summary: "Removes subscribers, all that are named or none",
      body: schemas.subscriberRemove,
      success: DONE,
      errors: [
        "bad_id",
        "channel_not_found",
        "not_in_channel",
        "channel_disbanded",
      ],
      handle: channels.removeSubscribers,
    }),
  ];
}

function messageRoutes(
  { messages }: Calls,
  schemas: Schemas,
): readonly ApiRoute[] {
  return [
    postRoute({
      path: "/message/send",
      access: ["messages:write"],
      tag: "messages",
      summary: "Sends a message; answers once it is durable",
      body: schemas.send,
      success: { description: "Accepted and durable", body: replies.sentBody },
      errors: ["bad_id", "bad_payload", "too_large", ...SEND_REFUSALS],
      handle: messages.send,
    }),
    queryRoute({
      path: "/channel/messages",
      access: ["messages:write"],
      tag: "messages",
      summary: "Reads a range of a channel's history",
      query: schemas.history,
      success: { description: "A page", body: replies.historyBody },
      errors: ["bad_id"],
      handle: messages.history,
    }),
  ];
}

function eventRoute({ events }: Calls, schemas: Schemas): ApiRoute {
  return postQueryRoute({
    path: "/event",
    access: ["events:write"],
    tag: "streams",
    summary:
      "Sends an event: streaming text, a tool call, or one of your own; answers once it is durable",
    body: schemas.event,
    query: schemas.eventQuery,
    success: { description: "Accepted", body: replies.eventBody },
    errors: [
      "event_type_empty",
      "stream_running",
      "stream_not_found",
      "stream_closed",
      "bad_id",
      "too_large",
      ...SEND_REFUSALS,
    ],
    first: events.refuseUntyped,
    handle: events.post,
  });
}

function conversationRoutes(
  { conversations }: Calls,
  schemas: Schemas,
): readonly ApiRoute[] {
  const common = {
    access: ["messages:write"],
    tag: "conversations",
  } as const;
  return [
    postRoute({
      ...common,
      path: "/conversation/sync",
      summary: "Lists a user's conversations, newest message first",
      body: schemas.conversationSync,
      success: { description: "A page", body: replies.conversationsBody },
      errors: ["bad_id"],
      handle: conversations.sync,
    }),
    postRoute({
      ...common,
      path: "/conversations/clearUnread",
      summary: "Makes everything in a conversation count as read",
      body: schemas.conversationTarget,
      success: DONE,
      errors: ["bad_id", "not_in_channel"],
      handle: conversations.clearUnread,
    }),
    postRoute({
      ...common,
      path: "/conversations/setUnread",
      summary: "Makes the newest so many messages count as unread",
      body: schemas.unread,
      success: DONE,
      errors: ["bad_id", "not_in_channel"],
      handle: conversations.setUnread,
    }),
    postRoute({
      ...common,
      path: "/conversations/delete",
      summary: "Hides a conversation and all it holds until a new message",
      body: schemas.conversationTarget,
      success: DONE,
      errors: ["bad_id", "not_in_channel"],
      handle: conversations.remove,
    }),
  ];
}

function managerRoutes(
  { managers }: Calls,
  schemas: Schemas,
): readonly ApiRoute[] {
  return [
    postRoute({
      path: "/manager/login",
      access: "login",
      tag: "managers",
      summary: "Exchanges username and password for an access token",
      body: schemas.login,
      success: { description: "Logged in", body: replies.loginBody },
      errors: ["bad_credentials", "too_many_attempts"],
      handle: managers.login,
    }),
    plainRoute({
      method: "POST",
      path: "/manager/logout",
      access: "bearer",
      tag: "managers",
      summary: "Revokes the access token the call is made with",
      success: DONE,
      errors: [],
      handle: managers.logout,
    }),
  ];
}

function systemRoutes({ system }: Calls): readonly ApiRoute[] {
  return [
    plainRoute({
      method: "GET",
      path: "/migrate/result",
      access: ["system:read"],
      tag: "system",
      summary: "Tells how a data migration stands",
      success: { description: "State", body: replies.migrationBody },
      errors: [],
      handle: system.migration,
    }),
    plainRoute({
      method: "GET",
      path: "/healthz",
      access: "public",
      tag: "system",
      summary: "Answers while the process lives",
      success: { description: "Alive", body: replies.statusBody },
      errors: [],
      handle: system.healthz,
    }),
    plainRoute({
      method: "GET",
      path: "/readyz",
      access: "public",
      tag: "system",
      summary: "Tells whether the node takes work now",
      success: { description: "Ready", body: replies.statusBody },
      errors: ["unavailable"],
      handle: system.readyz,
    }),
    plainRoute({
      method: "GET",
      path: "/metrics",
      access: ["system:read"],
      tag: "system",
      summary: "Metrics in Prometheus' text format",
      success: {
        description: "Metrics",
        body: undefined,
        contentType: "text/plain",
      },
      errors: [],
      handle: system.metrics,
    }),
  ];
}
