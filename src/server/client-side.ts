// Creates the parts of a node that serve clients: the delivery to its sessions, and the gateway
// that accepts client connections. Keeps no state.

import type { LocalSession } from "../api/connections.ts";
import { MAX_ID_LENGTH } from "../broker/model.ts";
import { createSessions } from "../broker/sessions.ts";
import { JSONRPC_FORMS } from "../compat/wukongim/jsonrpc-view.ts";
import { createWkproto } from "../compat/wukongim/wkproto/wkproto.ts";
import type { Config } from "../config/schema.ts";
import { CatchUps, type ReadLimits } from "../gateway/catch-up.ts";
import type { ClientContext } from "../gateway/client.ts";
import { ClosedSessions, endMessage } from "../gateway/closed-sessions.ts";
import { createGateway, type Gateway } from "../gateway/endpoint.ts";
import { CredentialExpiry } from "../gateway/expiry.ts";
import { FanOutTurns } from "../gateway/fan-out-turns.ts";
import { FrameTurns } from "../gateway/frame-turns.ts";
import { Groups } from "../gateway/groups.ts";
import { Hub } from "../gateway/hub.ts";
import { OpeningTurns } from "../gateway/opening-turns.ts";
import type { OperationPorts } from "../gateway/operations.ts";
import { GreetingBytes } from "../gateway/rates.ts";
import { createHistoryTurns } from "../gateway/reads.ts";
import { SessionResync } from "../gateway/resync.ts";
import { PresenceWatch } from "../gateway/watch.ts";
import { Deadlines } from "../lib/deadlines.ts";
import { PacedSteps } from "../lib/paced-steps.ts";
import { createJsonRpcProtocol } from "../protocol/jsonrpc/jsonrpc.ts";
import { createNativeProtocol } from "../protocol/native/native.ts";
import type { Protocol } from "../protocol/protocol.ts";
import type { TopicPublisher } from "../transport/types.ts";
import type { LocalFacts } from "./control-plane.ts";
import { gatedSockets } from "./gate.ts";
import { errorLog, hasData, type Node } from "./node.ts";

/**
 * Maximum number of payload bytes in one page of missed messages, history or conversations that a
 * client reads over a socket.
 */
const PAGE_BYTES = 131_072;
const PAGE_MESSAGES = 200;
/** Approximate size of a message in a frame, without its payload. */
const MESSAGE_OVERHEAD_BYTES = 256;
const MAX_PRESENCE_UIDS = 1000;
const MAX_WATCHED_UIDS = 200;
const MAX_COMMAND_ACKS = 1000;

const US_PER_MS = 1000;

const RETRY_MS = 1000;
/**
 * Maximum time in one turn of the event loop for removing sessions whose connections have closed.
 */
const MAX_LEAVING_MS = 3;

interface Delivery {
  readonly hub: Hub;
  readonly groups: Groups;
  readonly catchUps: CatchUps;
  readonly resync: SessionResync;
  readonly watch: PresenceWatch;
}

/** Creates the delivery. The caller sets `topics.publisher` after it has created the listeners. */
export function createDelivery(
  node: Node,
  topics: { readonly publisher?: TopicPublisher },
): Delivery {
  const { store, cluster, directory, interest, followers, logCursors, metrics } = node;
  const { client } = node.config;
  const onError = errorLog(node, "gateway");
  const limits = readLimits(client);
  const watch = new PresenceWatch({
    cluster: interest,
    directory,
    retryMs: RETRY_MS,
    offlineDelayMs: node.config.presence.offlineDelayMs,
    charge: (uid, work) => node.rates.chargeKnown(uid, work),
    onError,
  });
  const fanOuts = new FanOutTurns(onError);
  const groups = new Groups(interest, fanOuts);
  const catchUps = new CatchUps({
    store,
    cluster,
    directory,
    groups,
    limits: { ...limits, maxBufferedBytes: client.maxBufferedBytes },
    metrics: metrics.gateway,
    onError,
  });
  const resync = new SessionResync({
    store,
    cluster,
    groups,
    catchUps,
    metrics: metrics.gateway,
    limits,
    retryMs: RETRY_MS,
    onError,
  });
  const hub = new Hub({
    groups,
    fanOuts,
    publisher: {
      publish: (topic, frame) => topics.publisher?.publish(topic, frame),
    },
    catchUps,
    resync,
    watch,
    cluster: interest,
    metrics: metrics.gateway,
  });
  directory.onEvent(
    (event) => {
      hub.deliver(event);
      followers.onEvent(event);
      logCursors.onEvent(event);
    },
    async (channelId, lastSeq) => {
      followers.recheckGroup(channelId);
      logCursors.recheckGroup(channelId);
      await hub.judge(channelId, lastSeq);
    },
  );
  metrics.families.fanouts.of().from(() => hub.stats.fanouts);
  metrics.families.deliveries.of().from(() => hub.stats.deliveries);
  return { hub, groups, catchUps, resync, watch };
}

export function createNodeGateway(
  node: Node,
  delivery: Delivery,
  push: OperationPorts["push"],
): Gateway & { readonly facts: LocalFacts } {
  const context = clientContext(node, delivery, push);
  const gateway = createGateway(context, node.config.client);
  const isOpen = () => hasData(node) && !node.imports.isUnderway;
  const endpoint = gatedSockets(gateway.endpoint, isOpen);
  node.endClients = gateway.endAll;
  const facts = localFacts(node, delivery, context);
  return { ...gateway, endpoint, facts };
}

function protocolsOf({ client, messages, protocol }: Config): readonly Protocol[] {
  const limits = {
    maxIdLength: MAX_ID_LENGTH,
    maxPayloadBytes: messages.maxPayloadBytes,
    maxResumePoints: client.maxResumeChannels,
    maxPresenceUids: MAX_PRESENCE_UIDS,
    maxWatchedUids: MAX_WATCHED_UIDS,
    maxCommandAcks: MAX_COMMAND_ACKS,
  };
  return [
    createWkproto({ ...limits, maxPacketBytes: client.maxFrameBytes }, protocol.wkproto),
    createJsonRpcProtocol(limits, JSONRPC_FORMS),
    createNativeProtocol(limits), // last, because it accepts every first frame
  ];
}

interface NodeClients extends ClientContext {
  readonly closedSessions: ClosedSessions;
}

function clientContext(node: Node, delivery: Delivery, push: OperationPorts["push"]): NodeClients {
  const { config, credentials, drivers, store, cluster, directory, metrics } = node;
  const { client, messages, auth } = config;
  const { hub, groups, catchUps, resync, watch } = delivery;
  const sessions = createSessions({ directory, credentials, store });
  const expiry = new CredentialExpiry({
    sessions,
    tokens: node.tokens,
    directory,
    clock: drivers.clock,
    toleranceS: auth.jwt.clockToleranceS,
    legacyGraceS: auth.jwt.legacyGraceS,
    connectHook: node.hooks?.connect,
    rightsChanged: (session, former) => resync.applyRights(session, former),
  });
  const clientLimits = {
    maxFrameBytes: client.maxFrameBytes,
    maxPayloadBytes: messages.maxPayloadBytes,
    idleTimeoutS: client.idleTimeoutS,
    maxFramesPerSecond: client.maxFramesPerSecond,
  };
  let sessionCount = 0;
  return {
    clients: new Set(),
    protocols: protocolsOf(config),
    loginDeadlines: new Deadlines(client.authTimeoutMs, (waiting) => waiting.end("auth_timeout")),
    opening: {
      hub,
      groups,
      catchUps,
      resync,
      metrics: metrics.gateway,
      store,
      cluster,
      directory,
      sessions,
      connectHook: node.hooks?.connect,
      expiry,
      tokens: node.tokens,
      rates: node.rates,
      greetings: new GreetingBytes(),
      nodeId: cluster.nodeId,
      clock: drivers.clock,
      clientLimits,
      limits: readLimits(client),
      openings: new OpeningTurns(),
      maxHeldBytes: client.maxBufferedBytes,
      resendAfterMs: client.resendAfterS * 1000,
      maxSessionsPerUser: client.maxConnectionsPerUser,
      nextSessionId() {
        sessionCount += 1;
        return `${cluster.nodeId}-${sessionCount.toString(36)}`;
      },
    },
    operations: {
      messages: node.messages,
      expiry,
      nodeId: cluster.nodeId,
      clientLimits,
      clientEvents: node.clientEvents,
      streams: node.streams,
      conversations: node.conversations,
      channels: node.channels,
      store,
      cluster,
      directory,
      catchUps,
      watch,
      hub,
      push,
      turns: createHistoryTurns(),
      clock: drivers.clock,
      metrics: metrics.gateway,
      maxHistoryBytes: maxPageBytes(client),
    },
    limits: {
      maxInFlightOperations: client.maxInFlightSends,
    },
    turns: new FrameTurns(),
    leaving: new PacedSteps(MAX_LEAVING_MS),
    closedSessions: new ClosedSessions(client.keepClosed),
    onError: errorLog(node, "gateway"),
  };
}

function readLimits(client: Config["client"]): ReadLimits {
  const pageBytes = maxPageBytes(client);
  return {
    pageMessages: Math.min(PAGE_MESSAGES, Math.floor(pageBytes / MESSAGE_OVERHEAD_BYTES)),
    pageBytes,
    maxUnreadBytes: client.maxBufferedBytes / 4,
  };
}

/**
 * Returns the maximum size of a page. A page must fit into the send buffer of a client on a slow
 * connection.
 */
function maxPageBytes({ maxBufferedBytes }: Config["client"]): number {
  return Math.min(PAGE_BYTES, maxBufferedBytes / 4);
}

function localFacts(
  { directory }: Node,
  { hub }: Delivery,
  { clients, closedSessions }: NodeClients,
): LocalFacts {
  return {
    *closedSessions() {
      for (const closed of closedSessions) yield { ...closed, message: endMessage(closed.reason) };
    },
    *sessions(): Iterable<LocalSession> {
      for (const session of hub.sessions()) {
        const { uid, sessionId, connection, codec } = session;
        yield {
          uid,
          connection() {
            const entered = directory.local(sessionId);
            return entered === undefined
              ? undefined
              : {
                  session: entered.session,
                  sinceMs: Math.floor(entered.since / US_PER_MS),
                  address: connection.remoteAddress,
                  listener: connection.listener,
                  format: codec.format,
                  version: codec.version,
                  isForeground: session.isForeground,
                  pendingBytes: () => connection.bufferedBytes(),
                };
          },
        };
      }
    },
    vitals: () => ({
      connections: clients.size,
      deliveries: hub.stats.deliveries,
    }),
  };
}
