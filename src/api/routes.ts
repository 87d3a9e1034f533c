// The route table of the control plane. The listener and the OpenAPI document are created from it.

import type { Channels } from "../broker/channels.ts";
import type { Managers } from "../broker/managers.ts";
import type { Messages } from "../broker/messages.ts";
import type { Clock, NodeRegistry } from "../broker/ports.ts";
import type { Streams } from "../broker/streams.ts";
import type { Users } from "../broker/users.ts";
import type { Webhooks } from "../broker/webhook-ports.ts";
import {
  type BusiestPorts,
  busiestQuery,
  channelQueries,
  createBusiest,
  createChannelReads,
} from "./channel-reads.ts";
import { channelBodies, createChannelCalls, createListCalls, LISTS } from "./channels.ts";
import { createClusterCalls, routeBatchBody, routeQuery } from "./cluster.ts";
import {
  type ConnectionPorts,
  connzQuery,
  createConnectionCalls,
  kickBody,
} from "./connections.ts";
import {
  createDurableStreamRoutes,
  createSignRoutes,
  type DurableStreamPorts,
} from "./durable-streams/routes.ts";
import { createEventRoutes, type EventRoutePorts } from "./event-reads.ts";
import {
  cancelBody,
  createCancel,
  createPostEvent,
  eventBody,
  eventQuery,
  refuseUntyped,
} from "./events.ts";
import {
  createImportCalls,
  type ImportLimits,
  type ImportUseCases,
  importLine,
  importQuery,
  NDJSON,
} from "./imports.ts";
import { createManagerCalls, loginBody } from "./managers.ts";
import { createSendBatch, sendBatchBody } from "./message-batch.ts";
import { MessagePages } from "./message-pages.ts";
import { createHistory, createSend, historyQuery, sendBody } from "./messages.ts";
import { createReaders, type ReadersPorts, readersQuery } from "./readers.ts";
import * as replies from "./reply-schemas.ts";
import {
  type ApiRoute,
  DONE,
  linesRoute,
  plainRoute,
  postQueryRoute,
  postRoute,
  queryRoute,
} from "./route.ts";
import { createExplainRefusal, SEND_REFUSALS } from "./send-refusals.ts";
import { createStreamRoute, type StreamRoutePorts } from "./streams.ts";
import { createSystemCalls, type SystemPorts } from "./system.ts";
import { createUserCalls, devicesQuery, type SystemUids, userBodies } from "./users.ts";
import { createWebhookRoutes } from "./webhooks.ts";

interface ChannelRoutePorts extends BusiestPorts, ReadersPorts {
  readonly channels: Channels;
}

export interface RoutePorts
  extends StreamRoutePorts,
    DurableStreamPorts,
    EventRoutePorts,
    SystemPorts,
    ConnectionPorts,
    ChannelRoutePorts {
  readonly users: Users;
  readonly systemAccounts: SystemUids;
  readonly messages: Messages;
  readonly streams: Pick<Streams, "post" | "read" | "cancel">;
  readonly managers: Managers;
  readonly cluster: NodeRegistry;
  readonly clock: Clock;
  readonly imports: ImportUseCases;
  readonly importLimits: ImportLimits;
  readonly webhooks: Webhooks;
}

export function createRoutes(ports: RoutePorts, maxSubscribers: number): readonly ApiRoute[] {
  return [
    ...userRoutes(ports),
    ...channelRoutes(ports, maxSubscribers),
    ...messageRoutes(ports, maxSubscribers),
    eventRoute(ports),
    cancelRoute(ports),
    ...createEventRoutes(ports),
    createStreamRoute(ports, "all"),
    ...createDurableStreamRoutes(ports),
    ...createSignRoutes(ports.signedUrls, ports.clock),
    ...createWebhookRoutes(ports.webhooks),
    ...managerRoutes(ports.managers),
    ...clusterRoutes(ports),
    ...connectionRoutes(ports),
    ...systemRoutes(ports),
    ...importRoutes(ports, maxSubscribers),
  ];
}

function userRoutes(ports: RoutePorts): readonly ApiRoute[] {
  const users = createUserCalls(ports.users, ports.systemAccounts);
  return [
    postRoute({
      path: "/user/token",
      operation: "setUserToken",
      access: ["users:write"],
      tag: "users",
      summary: "Sets a user's token for a device type",
      body: userBodies.token,
      success: DONE,
      errors: ["bad_id", "reserved_uid"],
      handle: users.setToken,
    }),
    postRoute({
      path: "/user/device_quit",
      operation: "logOutDevices",
      access: ["users:write"],
      tag: "users",
      summary: "Logs out a user's devices: revokes their tokens and ends their sessions",
      body: userBodies.deviceQuit,
      success: DONE,
      errors: ["bad_id", "reserved_uid"],
      handle: users.quitDevice,
    }),
    postRoute({
      path: "/user/onlinestatus",
      operation: "getOnlineStatus",
      access: ["users:write", "system:read"],
      tag: "users",
      summary: "Returns the online status of several users",
      body: userBodies.onlineStatus,
      success: { description: "One record for each user", body: replies.presenceBody },
      errors: ["bad_id"],
      handle: users.onlineStatus,
    }),
    queryRoute({
      path: "/user/devices",
      operation: "listDevices",
      access: ["users:write", "system:read"],
      tag: "users",
      summary: "Lists a user's registered device types and live sessions",
      query: devicesQuery,
      success: { description: "Device types and sessions", body: replies.devicesBody },
      errors: ["bad_id"],
      handle: users.devices,
    }),
    plainRoute({
      method: "GET",
      path: "/user/systemuids",
      operation: "listSystemAccounts",
      access: ["users:write", "system:read"],
      tag: "users",
      summary: "Lists the system accounts",
      success: { description: "Uids of the system accounts", body: replies.systemUidsBody },
      errors: ["unavailable"],
      handle: users.systemUids,
    }),
    postRoute({
      path: "/user/systemuids_add",
      operation: "addSystemAccounts",
      access: ["users:write"],
      tag: "users",
      summary: "Turns users into system accounts, which are exempt from the rules for sending",
      body: userBodies.systemUids,
      success: DONE,
      errors: ["bad_id", "reserved_uid", "too_large"],
      handle: users.addSystemUids,
    }),
    postRoute({
      path: "/user/systemuids_remove",
      operation: "removeSystemAccounts",
      access: ["users:write"],
      tag: "users",
      summary: "Makes system accounts normal users again",
      body: userBodies.systemUids,
      success: DONE,
      errors: ["bad_id", "reserved_uid"],
      handle: users.removeSystemUids,
    }),
  ];
}

function channelRoutes(ports: ChannelRoutePorts, maxSubscribers: number): readonly ApiRoute[] {
  const { channels: useCases } = ports;
  const channels = createChannelCalls(useCases);
  const bodies = channelBodies(maxSubscribers);
  return [
    postRoute({
      path: "/channel",
      operation: "createChannel",
      access: ["channels:write"],
      tag: "channels",
      summary: "Creates a channel. With disband 1, disbands a channel that already exists",
      body: bodies.create,
      success: DONE,
      errors: ["bad_id", "channel_exists"],
      handle: channels.create,
    }),
    postRoute({
      path: "/channel/info",
      operation: "updateChannel",
      access: ["channels:write"],
      tag: "channels",
      summary: "Changes the flags that the body contains",
      body: bodies.update,
      success: DONE,
      errors: ["bad_id", "channel_not_found"],
      handle: channels.update,
    }),
    postRoute({
      path: "/channel/subscriber_add",
      operation: "addSubscribers",
      access: ["channels:write"],
      tag: "channels",
      summary: "Adds subscribers to a channel",
      body: bodies.addSubscribers,
      success: DONE,
      errors: ["bad_id", "channel_not_found", "channel_disbanded"],
      handle: channels.addSubscribers,
    }),
    postRoute({
      path: "/channel/subscriber_remove",
      operation: "removeSubscribers",
      access: ["channels:write"],
      tag: "channels",
      summary:
        "Removes all users in the body from the subscribers, or nobody if one of them is not a subscriber",
      body: bodies.removeSubscribers,
      success: DONE,
      errors: ["bad_id", "channel_not_found", "not_in_channel", "channel_disbanded"],
      handle: channels.removeSubscribers,
    }),
    postRoute({
      path: "/channel/subscriber_remove_all",
      operation: "removeAllSubscribers",
      access: ["channels:write"],
      tag: "channels",
      summary: "Removes all subscribers, including temporary ones",
      body: bodies.target,
      success: DONE,
      errors: ["bad_id", "channel_not_found", "channel_disbanded"],
      handle: channels.removeAllSubscribers,
    }),
    postRoute({
      path: "/channel/delete",
      operation: "deleteChannel",
      access: ["channels:write"],
      tag: "channels",
      summary: "Disbands a group permanently",
      body: bodies.target,
      success: DONE,
      errors: ["bad_id", "channel_not_found"],
      handle: channels.remove,
    }),
    ...listRoutes(useCases, bodies),
    ...channelReadRoutes(ports, maxSubscribers),
  ];
}

function channelReadRoutes(ports: ChannelRoutePorts, maxSubscribers: number): readonly ApiRoute[] {
  const reads = createChannelReads(ports.channels, maxSubscribers);
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
      operation: "getChannelState",
      summary: "Returns a channel's flags and user counts",
      query: queries.state,
      success: { description: "State of the channel", body: replies.channelBody },
      errors: ["bad_id", "channel_not_found"],
      handle: reads.state,
    }),
    queryRoute({
      ...common,
      path: "/channel/members",
      operation: "listChannelMembers",
      summary: "Lists the subscribers of a channel, or the users on one of its lists",
      query: queries.members,
      success: { description: "One page", body: replies.uidsBody },
      handle: reads.members,
    }),
    queryRoute({
      ...common,
      path: "/channel/whitelist",
      operation: "getWhitelist",
      summary: "Lists the whitelist's first users, at most `api.maxSubscribersPerCall` of them",
      query: queries.allowed,
      success: { description: "Users on the whitelist", body: replies.whitelistBody },
      handle: reads.allowed,
    }),
    queryRoute({
      ...common,
      path: "/channel/readers",
      operation: "listReaders",
      access: ["messages:write"],
      summary: "Lists which members of a channel have read a message, in pages of 100",
      query: readersQuery,
      success: { description: "One page", body: replies.readersBody },
      handle: createReaders(ports),
    }),
    queryRoute({
      ...common,
      path: "/channels/busiest",
      operation: "listBusiestChannels",
      access: ["system:read"],
      summary:
        "Lists the channels that received the most messages and events through this node in the last 15 minutes",
      query: busiestQuery,
      success: { description: "Channels, busiest first", body: replies.busiestBody },
      errors: [],
      handle: createBusiest(ports),
    }),
    queryRoute({
      ...common,
      path: "/user/channels",
      operation: "listUserChannels",
      tag: "users",
      summary: "Lists a user's groups",
      query: queries.groups,
      success: { description: "One page", body: replies.channelsBody },
      handle: reads.groups,
    }),
  ];
}

const LIST_MEANINGS = {
  blacklist: "which lists the users who may not send to the channel",
  whitelist: "which lists the only users who may send to a group. An empty whitelist has no effect",
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
    const name = wire === "blacklist" ? "Blacklist" : "Whitelist";
    return [
      postRoute({
        ...common,
        path: `/channel/${wire}_add`,
        operation: `addTo${name}`,
        summary: `Adds users to the ${wire}, ${meaning}`,
        body: bodies.listed,
        handle: list.add,
      }),
      postRoute({
        ...common,
        path: `/channel/${wire}_set`,
        operation: `set${name}`,
        summary: `Replaces the ${wire}, ${meaning}`,
        body: bodies.list,
        handle: list.set,
      }),
      postRoute({
        ...common,
        path: `/channel/${wire}_remove`,
        operation: `removeFrom${name}`,
        summary: `Removes users from the ${wire}. Users who are not on it are ignored`,
        body: bodies.listed,
        handle: list.remove,
      }),
      postRoute({
        ...common,
        path: `/channel/${wire}_remove_all`,
        operation: `clear${name}`,
        summary: `Removes all users from the ${wire}`,
        body: bodies.target,
        handle: list.clear,
      }),
    ];
  });
}

function messageRoutes(
  { messages, channels }: Pick<RoutePorts, "messages" | "channels">,
  maxSubscribers: number,
): readonly ApiRoute[] {
  const send = createSend(messages, createExplainRefusal(channels));
  return [
    postRoute({
      path: "/message/send",
      operation: "sendMessage",
      access: ["messages:write"],
      tag: "messages",
      summary: "Sends a message. If the message is stored, it is durable when the call returns",
      body: sendBody(maxSubscribers),
      success: { description: "The message is durable", body: replies.sentBody },
      errors: ["bad_id", "bad_payload", "too_large", "client_msg_no_reused", ...SEND_REFUSALS],
      forbidding: ["channel_not_found"],
      handle: send,
    }),
    postRoute({
      path: "/message/sendbatch",
      operation: "sendMessageToUsers",
      access: ["messages:write"],
      tag: "messages",
      summary: "Sends a message to each of several users as a personal message",
      body: sendBatchBody(maxSubscribers),
      success: {
        description: "The message was sent to all users who are not in fail_uids",
        body: replies.sentBatchBody,
      },
      errors: ["bad_id", "bad_payload", "too_large"],
      handle: createSendBatch(messages),
    }),
    queryRoute({
      path: "/channel/messages",
      operation: "listMessages",
      access: ["messages:write"],
      tag: "messages",
      summary: "Returns a range of a channel's history",
      query: historyQuery,
      success: { description: "One page", body: replies.historyBody },
      errors: ["bad_id"],
      handle: createHistory(messages, new MessagePages()),
    }),
  ];
}

function eventRoute({ streams, channels }: Pick<RoutePorts, "streams" | "channels">): ApiRoute {
  return postQueryRoute({
    path: "/event",
    operation: "sendEvent",
    access: ["events:write"],
    tag: "streams",
    summary:
      "Sends an event: streaming text, a tool call, or a custom event. An event of a stream is durable when the call returns",
    body: eventBody,
    query: eventQuery,
    success: { description: "The event was accepted", body: replies.eventBody },
    errors: [
      "event_type_empty",
      "stream_running",
      "stream_not_found",
      "stream_closed",
      "client_msg_no_reused",
      "bad_id",
      "too_large",
      ...SEND_REFUSALS,
    ],
    forbidding: ["channel_not_found"],
    precheck: refuseUntyped,
    handle: createPostEvent(streams, createExplainRefusal(channels)),
  });
}

function cancelRoute({ streams }: Pick<RoutePorts, "streams">): ApiRoute {
  return postRoute({
    path: "/stream/cancel",
    operation: "cancelStream",
    access: ["events:write"],
    tag: "streams",
    summary:
      "Cancels the active stream with this client_msg_no. A stream that has ended does not change",
    body: cancelBody,
    success: { description: "State of the stream", body: replies.eventBody },
    errors: ["bad_id", "stream_unknown", ...SEND_REFUSALS],
    handle: createCancel(streams),
  });
}

function managerRoutes(useCases: Managers): readonly ApiRoute[] {
  const managers = createManagerCalls(useCases);
  return [
    postRoute({
      path: "/manager/login",
      operation: "login",
      access: "login",
      tag: "managers",
      summary: "Returns an access token for a username and a password",
      body: loginBody,
      success: { description: "Access token and account", body: replies.loginBody },
      errors: ["bad_credentials", "too_many_attempts"],
      handle: managers.login,
    }),
    plainRoute({
      method: "POST",
      path: "/manager/logout",
      operation: "logout",
      access: "bearer",
      tag: "managers",
      summary: "Revokes the access token that authenticates the call",
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
      operation: "listNodes",
      summary: "Lists the cluster's live nodes",
      success: { description: "Nodes of the cluster", body: replies.nodesBody },
      errors: ["unavailable"],
      handle: cluster.nodes,
    }),
    queryRoute({
      ...common,
      path: "/route",
      operation: "getRoute",
      summary:
        "Returns the addresses to which a client should connect. Chooses among the least loaded nodes",
      query: routeQuery,
      success: { description: "Addresses for the client", body: replies.routeBody },
      errors: ["bad_id", "unavailable"],
      handle: cluster.route,
    }),
    postRoute({
      ...common,
      path: "/route/batch",
      operation: "getRoutes",
      summary: "Returns the addresses to which several clients should connect",
      body: routeBatchBody,
      success: {
        description: "Sets of addresses, each with the users who should connect to them",
        body: replies.routeBatchBody,
      },
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
      operation: "kickSession",
      access: ["users:write"],
      tag: "users",
      summary: "Ends a session on any node",
      body: kickBody,
      success: DONE,
      errors: ["bad_id"],
      handle: connections.kick,
    }),
    queryRoute({
      path: "/connz",
      operation: "listSessions",
      access: ["system:read"],
      tag: "system",
      summary: "Lists this node's sessions",
      query: connzQuery,
      success: { description: "One page", body: replies.connzBody },
      errors: [],
      handle: connections.connz,
    }),
  ];
}

function importRoutes(
  { imports, importLimits }: Pick<RoutePorts, "imports" | "importLimits">,
  maxUids: number,
): readonly ApiRoute[] {
  const calls = createImportCalls(imports, importLimits, maxUids);
  const common = {
    access: ["system:write"],
    tag: "system",
    success: { description: "State of the import", body: replies.importBody },
    errors: ["unavailable", "too_late"],
  } as const;
  return [
    plainRoute({
      ...common,
      method: "POST",
      path: "/admin/import/open",
      operation: "openImport",
      summary:
        "Opens the import of another server's data into an empty store. Returns when no node serves clients any longer",
      edgeErrors: ["import_refused", "import_closed"],
      handle: calls.open,
    }),
    linesRoute({
      ...common,
      path: "/admin/import",
      operation: "importLines",
      summary: "Stores lines of an open import. Returns when they are durable",
      body: importLine(maxUids),
      bodyType: NDJSON,
      success: { description: "Result of importing the lines", body: replies.importedBody },
      edgeErrors: ["import_closed"],
      handle: calls.store,
    }),
    plainRoute({
      ...common,
      method: "POST",
      path: "/admin/import/close",
      operation: "closeImport",
      summary: "Closes the import permanently. The nodes then serve clients",
      edgeErrors: ["import_closed"],
      handle: calls.close,
    }),
    queryRoute({
      ...common,
      path: "/admin/import",
      operation: "getImport",
      summary:
        "Returns the state of the import and, if the query names a channel, the checksum of its messages",
      query: importQuery,
      handle: calls.state,
    }),
  ];
}

function systemRoutes(ports: SystemPorts): readonly ApiRoute[] {
  const system = createSystemCalls(ports);
  return [
    plainRoute({
      method: "GET",
      path: "/",
      operation: "getIndex",
      access: "public",
      tag: "system",
      summary:
        "Describes this API, and returns the addresses of the documentation and of the client listener",
      success: {
        description: "Addresses of the documentation and of the client listener",
        body: replies.indexBody,
        redirect: "Redirect to the demo or the console, if the Accept header contains text/html",
      },
      errors: [],
      edgeErrors: ["not_websocket"],
      headers: ["accept"],
      handle: system.index,
    }),
    plainRoute({
      method: "GET",
      path: "/migrate/result",
      operation: "getMigrationResult",
      access: ["system:read"],
      tag: "system",
      summary: "Returns the state of the data migration",
      success: { description: "State of the migration", body: replies.migrationBody },
      errors: [],
      handle: system.migration,
    }),
    plainRoute({
      method: "GET",
      path: "/healthz",
      operation: "checkLiveness",
      access: "public",
      tag: "system",
      summary: "Succeeds if the process is alive",
      success: { description: "The process is alive", body: replies.statusBody },
      errors: [],
      handle: system.healthz,
    }),
    plainRoute({
      method: "GET",
      path: "/readyz",
      operation: "checkReadiness",
      access: "public",
      tag: "system",
      summary: "Succeeds if the node is ready for work",
      success: { description: "The node is ready", body: replies.statusBody },
      errors: ["unavailable"],
      handle: system.readyz,
    }),
    plainRoute({
      method: "GET",
      path: "/health",
      operation: "checkHealth",
      access: "credential",
      tag: "system",
      summary: "Succeeds if the node is ready for work, as /readyz does",
      success: { description: "The node is ready", body: replies.statusBody },
      errors: ["unavailable"],
      handle: system.health,
    }),
    plainRoute({
      method: "GET",
      path: "/varz",
      operation: "getStatistics",
      access: ["system:read"],
      tag: "system",
      summary: "Returns the identity and the current statistics of this process",
      success: { description: "Figures of the process", body: replies.varzBody },
      errors: [],
      handle: system.varz,
    }),
    plainRoute({
      method: "GET",
      path: "/admin/config",
      operation: "getConfiguration",
      access: ["system:read"],
      tag: "system",
      summary: "Returns the effective configuration of this node, without secrets",
      success: { description: "Settings of this node", body: replies.configBody },
      errors: [],
      handle: system.config,
    }),
    plainRoute({
      method: "GET",
      path: "/admin/errors",
      operation: "listErrors",
      access: ["system:read"],
      tag: "system",
      summary: "Returns the newest warnings and errors of this node, without secrets",
      success: { description: "Warnings and errors, newest first", body: replies.errorsBody },
      errors: [],
      handle: system.errors,
    }),
    plainRoute({
      method: "GET",
      path: "/metrics",
      operation: "getMetrics",
      access: ["system:read"],
      tag: "system",
      summary: "Returns the metrics in the Prometheus text format",
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
