// One node, wired: which part gets which, in what order they start and stop. Holds no rule of its own. Stops in reverse order of start:
// stop taking, let clients go, finish what is under way, flush, close.

import { randomBytes } from "node:crypto";
import { setTimeout as pause } from "node:timers/promises";
import { createHttpEndpoint } from "./api/endpoint.ts";
import { measuredManagers, measuredMessages } from "./api/measured.ts";
import { credentialRule } from "./api/protected-mode.ts";
import { createChannels } from "./broker/channels.ts";
import { BrokerError } from "./broker/errors.ts";
import { createManagers, type Managers } from "./broker/managers.ts";
import { createMessages, type Messages } from "./broker/messages.ts";
import { MAX_ID_LENGTH } from "./broker/model.ts";
import { createSessions } from "./broker/sessions.ts";
import { createUsers } from "./broker/users.ts";
import { LocalThrottle, SingleNode } from "./cluster/single.ts";
import type { Config } from "./config/schema.ts";
import type { ClientContext } from "./gateway/client.ts";
import { createGateway, type Gateway } from "./gateway/endpoint.ts";
import { Hub } from "./gateway/hub.ts";
import {
  type Address,
  isLoopback,
  parseAddress,
  sameAddress,
} from "./lib/address.ts";
import { type Logger, roomLogger } from "./observe/logger.ts";
import { createMetrics, type Metrics } from "./observe/metrics.ts";
import { createNativeProtocol } from "./protocol/native/native.ts";
import { NATIVE_VERSION } from "./protocol/native/ops.ts";
import {
  createEmbeddedStore,
  type EmbeddedStore,
} from "./store/embedded/store.ts";
import { createListener } from "./transport/listener.ts";
import type {
  HttpEndpoint,
  Listener,
  TlsFiles,
  TopicPublisher,
} from "./transport/types.ts";

/** The share of the drain time over which clients are told to go; the rest is for calls under way. */
const DRAIN_SHARE = 0.8;
/** Payload bytes of one resume run and of one history reply on a socket. */
const RUN_BYTES = 131_072;
/** About what a message takes in a frame beside its payload. */
const MESSAGE_OVERHEAD_BYTES = 256;
const MAX_PRESENCE_UIDS = 1000;

export interface ServerDeps {
  readonly logger: Logger;
  readonly version: string;
  /** Shows the operator a password that was just made; it must not reach the log. */
  announcePassword(username: string, password: string): void;
}

export interface Server {
  /** Opens the store, then the listeners. Rejects with a sentence when something is in the way. */
  start(): Promise<{ readonly apiPort: number; readonly clientPort: number }>;
  /** Drains and stops; a start under way gets to its end first. Safe to call twice. */
  close(): Promise<void>;
}

type Started = Awaited<ReturnType<Server["start"]>>;

/** What every part of a node may need of it. */
interface Node extends ServerDeps {
  readonly config: Config;
  readonly metrics: Metrics;
  readonly cluster: SingleNode;
  readonly store: EmbeddedStore;
  readonly messages: Messages;
  status: "stopped" | "starting" | "ready" | "draining" | "closed";
}

export function createServer(config: Config, deps: ServerDeps): Server {
  const node = createNode(config, deps);
  const managers = createNodeManagers(node);
  const topics: { publisher?: TopicPublisher } = {};
  const hub = createHub(node, topics);
  const gateway = createNodeGateway(node, hub);
  const listeners = createListeners(node, {
    http: createApi(node, managers),
    sockets: gateway.endpoint,
  });
  topics.publisher = listeners.client;
  const all = [...new Set([listeners.api, listeners.client])];
  let starting: Promise<Started> | undefined;
  let closing: Promise<void> | undefined;

  async function open(): Promise<Started> {
    node.status = "starting";
    await node.store.start();
    await managers.start();
    await node.cluster.start();
    const apiPort = await startListener(listeners.api, "api");
    const clientPort =
      listeners.client === listeners.api
        ? apiPort
        : await startListener(listeners.client, "client");
    node.status = "ready";
    return { apiPort, clientPort };
  }

  async function shut(): Promise<void> {
    await starting?.catch(() => undefined); // start's caller hears of it
    await stop(node, gateway, all);
  }

  return {
    start() {
      starting = open();
      return starting;
    },

    close() {
      if (closing === undefined) closing = shut();
      return closing;
    },
  };
}

/** The port it got. What is in its way is told with the part of the configuration to look at. */
async function startListener(
  listener: Listener,
  section: "api" | "client",
): Promise<number> {
  try {
    return await listener.start();
  } catch (cause) {
    const words = cause instanceof Error ? cause.message : String(cause);
    throw new Error(`${words}; see ${section} in the configuration`, { cause });
  }
}

async function stop(
  node: Node,
  gateway: Gateway,
  listeners: readonly Listener[],
): Promise<void> {
  const wasReady = node.status === "ready";
  node.status = "draining";
  if (wasReady) {
    await pause(node.config.drain.noticeMs);
    await gateway.drain(node.config.drain.timeoutMs * DRAIN_SHARE);
  }
  for (const listener of listeners) listener.stopAccepting();
  await node.store.close();
  for (const listener of listeners) listener.close();
  await node.cluster.close();
  node.status = "closed";
}

function createNode(config: Config, deps: ServerDeps): Node {
  const nodeId = config.node.id || randomBytes(4).toString("hex");
  const cluster = new SingleNode(nodeId);
  const metrics = createMetrics(deps);
  const logger = deps.logger.child({ node: nodeId });
  const log = roomLogger(logger, "store");
  const store = createEmbeddedStore({
    ...config.store,
    publisher: cluster,
    clock: Date.now,
    onProblem: (error, what) => log.error({ err: error }, what),
  });
  exposeStats(store, metrics);
  const messages = createMessages(store, {
    ...config.messages,
    contentValidation: config.content.validation,
  });
  const status = "stopped";
  return { ...deps, logger, config, metrics, cluster, store, messages, status };
}

function exposeStats(store: EmbeddedStore, { families }: Metrics): void {
  families.messagesDuplicate.of().from(() => store.stats().duplicates);
  families.storeAppends.of().from(() => store.stats().appends);
  families.storeCheckpoints.of().from(() => store.stats().checkpoints);
  families.storeTailRecords.of().from(() => store.stats().tailRecords);
  families.storeTailBytes.of().from(() => store.stats().tailBytes);
  families.storeJournalBytes.of().from(() => store.stats().journalBytes);
}

function createNodeManagers(node: Node): Managers {
  const { auth, managers, admin } = node.config;
  return createManagers({
    store: node.store,
    throttle: new LocalThrottle(Date.now),
    accounts: managers,
    adminPassword: admin.password,
    clock: Date.now,
    limits: {
      tokenTtlS: auth.tokenTtlS,
      attempts: auth.loginAttempts,
      windowS: auth.loginWindowS,
    },
    announcePassword: node.announcePassword,
  });
}

/** The listener the hub publishes on is made after the hub, and holds what the hub delivers to. */
function createHub(
  { cluster, metrics }: Node,
  topics: { readonly publisher?: TopicPublisher },
): Hub {
  const publisher: TopicPublisher = {
    publish: (topic, frame) => topics.publisher?.publish(topic, frame),
  };
  const hub = new Hub({ cluster, publisher });
  cluster.onEvent(hub.deliver);
  metrics.families.fanouts.of().from(() => hub.stats.fanouts);
  metrics.families.deliveries.of().from(() => hub.stats.deliveries);
  return hub;
}

function createApi(node: Node, managers: Managers): HttpEndpoint {
  const { config, store, cluster, metrics } = node;
  const ports = { store, directory: cluster, publisher: cluster };
  const { host } = addressOf(config.api.listen);
  return createHttpEndpoint({
    users: createUsers(ports),
    channels: createChannels(ports),
    messages: measuredMessages(node.messages, metrics.api),
    managers: measuredManagers(managers, metrics.api),
    migration: () => ({
      status: "migrated",
      step: "",
      lastErr: null,
      tryCount: 0,
    }),
    readiness: () => readiness(node),
    metrics: metrics.registry,
    log: roomLogger(node.logger, "api"),
    observe: metrics.api.request,
    settings: {
      requiresCredential: credentialRule({
        listensBeyondLoopback: !isLoopback(host),
        staticToken: config.api.token,
        authApi: config.auth.api,
      }),
      staticToken: config.api.token,
      maxBodyBytes: config.api.maxBodyBytes,
      maxSubscribersPerCall: config.api.maxSubscribersPerCall,
      maxUidsPerPresenceCall: config.api.maxUidsPerPresenceCall,
      version: node.version,
    },
  });
}

async function readiness(
  node: Node,
): Promise<{ readonly ready: boolean; readonly reason: string }> {
  if (node.status !== "ready")
    return { ready: false, reason: `The node is ${node.status}` };
  try {
    await node.store.ping();
    await node.cluster.ping();
    return { ready: true, reason: "" };
  } catch (error) {
    if (!(error instanceof BrokerError)) throw error;
    return { ready: false, reason: error.message };
  }
}

function createNodeGateway(node: Node, hub: Hub): Gateway {
  const { client, messages } = node.config;
  const protocol = createNativeProtocol({
    maxIdLength: MAX_ID_LENGTH,
    maxPayloadBytes: messages.maxPayloadBytes,
    maxResumePoints: client.maxResumeChannels,
    maxPresenceUids: MAX_PRESENCE_UIDS,
  });
  return createGateway(clientContext(node, hub), protocol, client);
}

function clientContext(node: Node, hub: Hub): ClientContext {
  const { config, store, cluster, metrics, logger } = node;
  const { client, messages, auth } = config;
  const ports = { store, directory: cluster, publisher: cluster };
  const log = roomLogger(logger, "gateway");
  let sessionCount = 0;
  return {
    clients: new Set(),
    opening: {
      hub,
      metrics: metrics.gateway,
      store,
      cluster,
      sessions: createSessions(ports, auth.clients),
      nodeId: cluster.nodeId,
      clock: Date.now,
      protocolVersion: NATIVE_VERSION,
      told: {
        maxFrameBytes: client.maxFrameBytes,
        maxPayloadBytes: messages.maxPayloadBytes,
        idleTimeoutS: client.idleTimeoutS,
        maxFramesPerSecond: client.maxFramesPerSecond,
      },
      limits: {
        pageMessages: Math.min(
          client.resumePageMessages,
          Math.floor(runBytes(client) / MESSAGE_OVERHEAD_BYTES),
        ),
        pageBytes: runBytes(client),
        maxUnreadBytes: client.maxBufferedBytes / 4,
      },
      maxHeldBytes: client.maxBufferedBytes,
      maxSessionsPerUser: client.maxConnectionsPerUser,
      nextSessionId() {
        sessionCount += 1;
        return `${cluster.nodeId}-${sessionCount.toString(36)}`;
      },
    },
    operations: {
      messages: node.messages,
      store,
      directory: cluster,
      clock: Date.now,
      metrics: metrics.gateway,
      maxHistoryBytes: runBytes(client),
    },
    limits: {
      authTimeoutMs: client.authTimeoutMs,
      maxFramesPerSecond: client.maxFramesPerSecond,
      frameBurst: client.frameBurst,
      maxInFlightOperations: client.maxInFlightSends,
    },
    onBug: (error, what) => log.error({ err: error }, what),
  };
}

/** Equal addresses: one listener serves both. */
function createListeners(
  { config, logger }: Node,
  endpoints: {
    readonly http: HttpEndpoint;
    readonly sockets: Gateway["endpoint"];
  },
): { readonly api: Listener; readonly client: Listener } {
  const { http, sockets } = endpoints;
  const log = roomLogger(logger, "transport");
  const onError = (error: unknown, where: string) =>
    log.error({ err: error }, where);
  const apiAddress = addressOf(config.api.listen);
  const clientAddress = addressOf(config.client.listen);
  const apiTls = tlsFiles(config.api.tls);
  if (sameAddress(apiAddress, clientAddress)) {
    const both = createListener({
      ...apiAddress,
      tls: apiTls,
      http,
      sockets,
      onError,
    });
    return { api: both, client: both };
  }
  const tls = tlsFiles(config.client.tls);
  return {
    api: createListener({
      ...apiAddress,
      tls: apiTls,
      http,
      sockets: undefined,
      onError,
    }),
    client: createListener({
      ...clientAddress,
      tls,
      http: undefined,
      sockets,
      onError,
    }),
  };
}

/** A run that a slow link leaves unread must not by itself make a slow reader of the client. */
function runBytes({ maxBufferedBytes }: Config["client"]): number {
  return Math.min(RUN_BYTES, maxBufferedBytes / 4);
}

function addressOf(text: string): Address {
  const address = parseAddress(text);
  if (address === undefined) throw new Error(`${text} is no address`); // config/ has checked it
  return address;
}

function tlsFiles(tls: Config["api"]["tls"]): TlsFiles | undefined {
  if (tls.certFile === "") return undefined;
  return {
    certFile: tls.certFile,
    keyFile: tls.keyFile,
    caFile: tls.caFile || undefined,
    passphrase: tls.passphrase || undefined,
  };
}
