// The route table of the control plane. Each row has a method, a path, an access rule, the schemas
// of its input and replies, and a handler. The listener and the OpenAPI document are made from this
// table.

import type { Channels } from "../broker/channels.ts";
import type { Conversations } from "../broker/conversations.ts";
import type { Inboxes } from "../broker/inboxes.ts";
import type { Managers } from "../broker/managers.ts";
import type { Messages } from "../broker/messages.ts";
import type { Clock, NodeRegistry } from "../broker/ports.ts";
import type { Streams } from "../broker/streams.ts";
import type { Users } from "../broker/users.ts";
import { channelQueries, createChannelReads } from "./channel-reads.ts";
import { channelBodies, createChannelCalls, createListCalls, LISTS } from "./channels.ts";
import { createClusterCalls, routeBatchBody, routeQuery } from "./cluster.ts";
import {
  type ConnectionPorts,
  connzQuery,
  createConnectionCalls,
  kickBody,
} from "./connections.ts";
import { conversationBodies, createConversationCalls } from "./conversations.ts";
import { createPostEvent, eventBody, eventQuery, refuseUntyped } from "./events.ts";
import { createManagerCalls, loginBody } from "./managers.ts";
import { createSendBatch, sendBatchBody } from "./message-batch.ts";
import { createSyncCalls, maxSeqQuery, syncBodies } from "./message-sync.ts";
import { createMessageCalls, historyQuery, sendBody } from "./messages.ts";
import * as replies from "./reply-schemas.ts";
import { type ApiRoute, plainRoute, postQueryRoute, postRoute, queryRoute } from "./route.ts";
import { createStreamRoute, type StreamRoutePorts } from "./streams.ts";
import { createSystemCalls, type SystemPorts } from "./system.ts";
import { createUserCalls, devicesQuery, type SystemUids, userBodies } from "./users.ts";

/** Use cases that the rows call. */
export interface RoutePorts extends StreamRoutePorts, SystemPorts, ConnectionPorts {
  readonly users: Users;
  readonly systemAccounts: SystemUids;
  readonly channels: Channels;
  readonly messages: Messages;
  readonly inboxes: Inboxes;
  readonly streams: Pick<Streams, "post" | "read">;
  readonly conversations: Conversations;
  readonly managers: Managers;
  readonly cluster: NodeRegistry;
  readonly clock: Clock;
}

const DONE = { description: "Done", body: replies.statusBody };

const SEND_REFUSALS = [
  "channel_banned",
  "send_banned",
  "not_subscriber",
  "stranger_refused",
  "denylisted",
  "not_allowlisted",
  "channel_disbanded",
] as const;

/** Creates all rows except `/openapi.json`, which is made from the other rows. */
export function createRoutes(ports: RoutePorts, maxSubscribers: number): readonly ApiRoute[] {
  return [
    ...userRoutes(ports),
    ...channelRoutes(ports.channels, maxSubscribers),
    ...messageRoutes(ports.messages, maxSubscribers),
    ...syncRoutes(ports),
    eventRoute(ports.streams),
    createStreamRoute(ports, "all"),
    ...conversationRoutes(ports),
    ...managerRoutes(ports.managers),
    ...clusterRoutes(ports),
    ...connectionRoutes(ports),
    ...systemRoutes(ports),
  ];
}

function userRoutes(ports: RoutePorts): readonly ApiRoute[] {
  const users = createUserCalls(ports.users, ports.systemAccounts);
  return [
    postRoute({
      path: "/user/token",
      access: ["users:write"],
      tag: "users",
      summary: "Registers or refreshes the token of a user's device class",
      body: userBodies.token,
      success: DONE,
      errors: ["bad_id", "reserved_uid"],
      handle: users.setToken,
    }),
    postRoute({
      path: "/user/device_quit",
      access: ["users:write"],
      tag: "users",
      summary: "Makes a user's tokens worthless and ends the sessions",
      body: userBodies.deviceQuit,
      success: DONE,
      errors: ["bad_id", "reserved_uid"],
      handle: users.quitDevice,
    }),
    postRoute({
      path: "/user/onlinestatus",
      access: ["users:write", "system:read"],
      tag: "users",
      summary: "Tells the online status of many users",
      body: userBodies.onlineStatus,
      success: { description: "Records", body: replies.presenceBody },
      errors: ["bad_id"],
      handle: users.onlineStatus,
    }),
    queryRoute({
      path: "/user/devices",
      access: ["users:write", "system:read"],
      tag: "users",
      summary: "Lists a user's device classes and live sessions",
      query: devicesQuery,
      success: { description: "Both", body: replies.devicesBody },
      errors: ["bad_id"],
      handle: users.devices,
    }),
    plainRoute({
      method: "GET",
      path: "/user/systemuids",
      access: ["users:write", "system:read"],
      tag: "users",
      summary: "Lists the system accounts",
      success: { description: "Their uids", body: replies.systemUidsBody },
      errors: ["unavailable"],
      handle: users.systemUids,
    }),
    postRoute({
      path: "/user/systemuids_add",
      access: ["users:write"],
      tag: "users",
      summary: "Exempts users from the rules of sending",
      body: userBodies.systemUids,
      success: DONE,
      errors: ["bad_id", "reserved_uid", "too_large"],
      handle: users.addSystemUids,
    }),
    postRoute({
      path: "/user/systemuids_remove",
      access: ["users:write"],
      tag: "users",
      summary: "Makes system accounts ordinary users again",
      body: userBodies.systemUids,
      success: DONE,
      errors: ["bad_id", "reserved_uid"],
      handle: users.removeSystemUids,
    }),
  ];
}

function channelRoutes(useCases: Channels, maxSubscribers: number): readonly ApiRoute[] {
  const channels = createChannelCalls(useCases);
  const bodies = channelBodies(maxSubscribers);
  return [
    postRoute({
      path: "/channel",
      access: ["channels:write"],
      tag: "channels",
      summary: "Creates a channel; with disband 1 disbands one that exists already",
      body: bodies.create,
      success: DONE,
      errors: ["bad_id", "channel_exists"],
      handle: channels.create,
    }),
    postRoute({
      path: "/channel/info",
      access: ["channels:write"],
      tag: "channels",
      summary: "Changes the flags that are given",
      body: bodies.update,
      success: DONE,
      errors: ["bad_id", "channel_not_found"],
      handle: channels.update,
    }),
    postRoute({
      path: "/channel/subscriber_add",
      access: ["channels:write"],
      tag: "channels",
      summary: "Adds subscribers",
      body: bodies.addSubscribers,
      success: DONE,
      errors: ["bad_id", "channel_not_found", "channel_disbanded"],
      handle: channels.addSubscribers,
    }),
    postRoute({
      path: "/channel/subscriber_remove",
      access: ["channels:write"],
      tag: "channels",
      summary: "Removes subscribers, all that are named or none",
      body: bodies.removeSubscribers,
      success: DONE,
      errors: ["bad_id", "channel_not_found", "not_in_channel", "channel_disbanded"],
      handle: channels.removeSubscribers,
    }),
    postRoute({
      path: "/channel/subscriber_remove_all",
      access: ["channels:write"],
      tag: "channels",
      summary: "Removes all subscribers, temporary ones too",
      body: bodies.target,
      success: DONE,
      errors: ["bad_id", "channel_not_found", "channel_disbanded"],
      handle: channels.removeAllSubscribers,
    }),
    postRoute({
      path: "/channel/delete",
      access: ["channels:write"],
      tag: "channels",
      summary: "Disbands a group",
      body: bodies.target,
      success: DONE,
      errors: ["bad_id", "channel_not_found"],
      handle: channels.remove,
    }),
    ...listRoutes(useCases, bodies),
    ...channelReadRoutes(useCases, maxSubscribers),
  ];
}

function channelReadRoutes(useCases: Channels, maxSubscribers: number): readonly ApiRoute[] {
  const reads = createChannelReads(useCases, maxSubscribers);
  const queries = channelQueries(maxSubscribers);
  const common = {
    access: ["channels:write", "system:read"],
    tag: "channels",
    errors: ["bad_id"],
  } as const;
  return [
    queryRoute({
      ...common,
      path: "/channel/state",
      summary: "Reads a channel: its flags and how many users are in it",
      query: queries.state,
      success: { description: "The channel", body: replies.channelBody },
      errors: ["bad_id", "channel_not_found"],
      handle: reads.state,
    }),
    queryRoute({
      ...common,
      path: "/channel/members",
      summary: "Lists the subscribers of a channel, or the users on a list",
      query: queries.members,
      success: { description: "A page", body: replies.uidsBody },
      handle: reads.members,
    }),
    queryRoute({
      ...common,
      path: "/channel/whitelist",
      summary: "Lists the first users on the whitelist, as many as one call names",
      query: queries.allowed,
      success: { description: "Users", body: replies.whitelistBody },
      handle: reads.allowed,
    }),
    queryRoute({
      ...common,
      path: "/user/channels",
      tag: "users",
      summary: "Lists the groups a user is in",
      query: queries.groups,
      success: { description: "A page", body: replies.channelsBody },
      handle: reads.groups,
    }),
  ];
}

/** Meaning of each list, for the OpenAPI document. */
const LIST_MEANINGS = {
  blacklist: "the users who may not send",
  whitelist: "the users who alone may send",
} as const satisfies Record<keyof typeof LISTS, string>;

function listRoutes(
  useCases: Channels,
  bodies: ReturnType<typeof channelBodies>,
): readonly ApiRoute[] {
  const common = {
    access: ["channels:write"],
    tag: "channels",
    success: DONE,
    errors: ["bad_id", "channel_not_found", "channel_disbanded"],
  } as const;
  return (["blacklist", "whitelist"] as const).flatMap((wire) => {
    const list = createListCalls(useCases, LISTS[wire]);
    const meaning = LIST_MEANINGS[wire];
    return [
      postRoute({
        ...common,
        path: `/channel/${wire}_add`,
        summary: `Adds to the ${wire}, ${meaning}`,
        body: bodies.listed,
        handle: list.add,
      }),
      postRoute({
        ...common,
        path: `/channel/${wire}_set`,
        summary: `Replaces the ${wire}, ${meaning}`,
        body: bodies.list,
        handle: list.set,
      }),
      postRoute({
        ...common,
        path: `/channel/${wire}_remove`,
        summary: `Removes from the ${wire}; users not on it are left out`,
        body: bodies.listed,
        handle: list.remove,
      }),
      postRoute({
        ...common,
        path: `/channel/${wire}_remove_all`,
        summary: `Clears the ${wire}`,
        body: bodies.target,
        handle: list.clear,
      }),
    ];
  });
}

function messageRoutes(useCases: Messages, maxSubscribers: number): readonly ApiRoute[] {
  const messages = createMessageCalls(useCases);
  return [
    postRoute({
      path: "/message/send",
      access: ["messages:write"],
      tag: "messages",
      summary: "Sends a message; answers once it is durable",
      body: sendBody(maxSubscribers),
      success: { description: "Accepted and durable", body: replies.sentBody },
      errors: ["bad_id", "bad_payload", "too_large", ...SEND_REFUSALS],
      handle: messages.send,
    }),
    postRoute({
      path: "/message/sendbatch",
      access: ["messages:write"],
      tag: "messages",
      summary: "Sends one personal message to each of many users",
      body: sendBatchBody(maxSubscribers),
      success: { description: "Sent", body: replies.sentBatchBody },
      errors: ["bad_id", "bad_payload", "too_large"],
      handle: createSendBatch(useCases),
    }),
    queryRoute({
      path: "/channel/messages",
      access: ["messages:write"],
      tag: "messages",
      summary: "Reads a range of a channel's history",
      query: historyQuery,
      success: { description: "A page", body: replies.historyBody },
      errors: ["bad_id"],
      handle: messages.history,
    }),
  ];
}

function syncRoutes({ messages, inboxes }: RoutePorts): readonly ApiRoute[] {
  const sync = createSyncCalls(messages, inboxes);
  const common = {
    access: ["messages:write"],
    tag: "messages",
    errors: ["bad_id"],
  } as const;
  const page = { description: "Messages", body: replies.syncedPageBody };
  return [
    postRoute({
      ...common,
      path: "/channel/messagesync",
      summary: "Reads messages around a position of a channel's history",
      body: syncBodies.messages,
      success: page,
      handle: sync.messages,
    }),
    postRoute({
      ...common,
      path: "/messages",
      summary: "Reads single messages of a channel",
      body: syncBodies.find,
      success: page,
      handle: sync.find,
    }),
    queryRoute({
      ...common,
      path: "/channel/max_message_seq",
      summary: "Tells the newest sequence number of a channel",
      query: maxSeqQuery,
      success: { description: "The number", body: replies.maxSeqBody },
      handle: sync.maxSeq,
    }),
    postRoute({
      ...common,
      path: "/message/sync",
      summary: "Lists a user's commands that were not acknowledged",
      body: syncBodies.commands,
      success: { description: "Commands", body: replies.commandsBody },
      handle: sync.commands,
    }),
    postRoute({
      ...common,
      path: "/message/syncack",
      summary: "Acknowledges a user's commands through a sequence number",
      body: syncBodies.commandsRead,
      success: DONE,
      handle: sync.commandsRead,
    }),
  ];
}

function eventRoute(streams: Pick<Streams, "post">): ApiRoute {
  return postQueryRoute({
    path: "/event",
    access: ["events:write"],
    tag: "streams",
    summary:
      "Sends an event: streaming text, a tool call, or one of your own; answers once it is durable",
    body: eventBody,
    query: eventQuery,
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
    precheck: refuseUntyped,
    handle: createPostEvent(streams),
  });
}

function conversationRoutes(ports: RoutePorts): readonly ApiRoute[] {
  const conversations = createConversationCalls(ports.conversations, ports.messages);
  const common = {
    access: ["messages:write"],
    tag: "conversations",
  } as const;
  return [
    postRoute({
      ...common,
      path: "/conversation/sync",
      summary: "Lists a user's conversations, newest message first",
      body: conversationBodies.sync,
      success: { description: "A page", body: replies.conversationsBody },
      errors: ["bad_id"],
      handle: conversations.sync,
    }),
    postRoute({
      ...common,
      path: "/conversations/clearUnread",
      summary: "Makes everything in a conversation count as read",
      body: conversationBodies.target,
      success: DONE,
      errors: ["bad_id", "not_in_channel"],
      handle: conversations.clearUnread,
    }),
    postRoute({
      ...common,
      path: "/conversations/setUnread",
      summary: "Makes the newest so many messages count as unread",
      body: conversationBodies.unread,
      success: DONE,
      errors: ["bad_id", "not_in_channel"],
      handle: conversations.setUnread,
    }),
    postRoute({
      ...common,
      path: "/conversations/delete",
      summary: "Hides a conversation and all it holds until a new message",
      body: conversationBodies.target,
      success: DONE,
      errors: ["bad_id", "not_in_channel"],
      handle: conversations.remove,
    }),
  ];
}

function managerRoutes(useCases: Managers): readonly ApiRoute[] {
  const managers = createManagerCalls(useCases);
  return [
    postRoute({
      path: "/manager/login",
      access: "login",
      tag: "managers",
      summary: "Exchanges username and password for an access token",
      body: loginBody,
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

function clusterRoutes(ports: RoutePorts): readonly ApiRoute[] {
  const cluster = createClusterCalls(ports.cluster, ports.clock);
  const common = { access: ["system:read"], tag: "cluster" } as const;
  return [
    plainRoute({
      ...common,
      method: "GET",
      path: "/cluster/nodes",
      summary: "Lists the nodes that live",
      success: { description: "Nodes", body: replies.nodesBody },
      errors: ["unavailable"],
      handle: cluster.nodes,
    }),
    queryRoute({
      ...common,
      path: "/route",
      summary: "Tells where a client should connect: the least loaded node",
      query: routeQuery,
      success: { description: "Addresses", body: replies.routeBody },
      errors: ["bad_id", "unavailable"],
      handle: cluster.route,
    }),
    postRoute({
      ...common,
      path: "/route/batch",
      summary: "Tells where many clients should connect",
      body: routeBatchBody,
      success: { description: "Addresses", body: replies.routeBatchBody },
      errors: ["bad_id", "unavailable"],
      handle: cluster.routeBatch,
    }),
  ];
}

function connectionRoutes(ports: ConnectionPorts): readonly ApiRoute[] {
  const connections = createConnectionCalls(ports);
  return [
    postRoute({
      path: "/conn/kick",
      access: ["users:write"],
      tag: "users",
      summary: "Ends a session, on whichever node it is",
      body: kickBody,
      success: DONE,
      errors: ["bad_id"],
      handle: connections.kick,
    }),
    queryRoute({
      path: "/connz",
      access: ["system:read"],
      tag: "system",
      summary: "Lists the sessions of this node",
      query: connzQuery,
      success: { description: "A page", body: replies.connzBody },
      errors: [],
      handle: connections.connz,
    }),
  ];
}

function systemRoutes(ports: SystemPorts): readonly ApiRoute[] {
  const system = createSystemCalls(ports);
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
      path: "/health",
      access: "credential",
      tag: "system",
      summary: "Tells whether the node takes work now, as /readyz does",
      success: { description: "Ready", body: replies.statusBody },
      errors: ["unavailable"],
      handle: system.health,
    }),
    plainRoute({
      method: "GET",
      path: "/varz",
      access: ["system:read"],
      tag: "system",
      summary: "Tells what this process is and does",
      success: { description: "Figures", body: replies.varzBody },
      errors: [],
      handle: system.varz,
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
