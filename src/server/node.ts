// Creates the parts of a node that its sockets, HTTP calls and listeners share: store, cluster,
// broker operations and metrics. State: the status of the node.

import { randomBytes } from "node:crypto";
import { totalmem } from "node:os";
import { setTimeout as pause } from "node:timers/promises";
import { messageJson } from "../api/messages.ts";
import type { Jwt } from "../auth/jwt.ts";
import { acceptsJwts } from "../auth/options.ts";
import { ChannelActivity } from "../broker/channel-activity.ts";
import { type ChannelLogs, createChannelLogs } from "../broker/channel-logs.ts";
import { type Channels, createChannels } from "../broker/channels.ts";
import { type ClientEvents, createClientEvents } from "../broker/client-events.ts";
import { type Conversations, createConversations } from "../broker/conversations.ts";
import type { Credentials } from "../broker/credentials.ts";
import { BrokerError } from "../broker/errors.ts";
import { EventDemandWatch } from "../broker/event-demand.ts";
import { Events } from "../broker/events.ts";
import { Imports, type LineResult } from "../broker/imports.ts";
import { type Interest, shareInterest } from "../broker/interest.ts";
import { createLogCursors, type LogCursors } from "../broker/log-cursors.ts";
import { createLogs, type Logs } from "../broker/logs.ts";
import { createMessages, type Messages } from "../broker/messages.ts";
import type { Cluster, Store, Throttle } from "../broker/ports.ts";
import { SessionDirectory } from "../broker/session-directory.ts";
import { createSignedUrls, type SignedUrls } from "../broker/signed-urls.ts";
import { createStreamFollowers, type StreamFollowers } from "../broker/stream-followers.ts";
import { createStreams, type Streams } from "../broker/streams.ts";
import { SystemAccounts } from "../broker/system-accounts.ts";
import { TokenGate } from "../broker/token-gate.ts";
import type { Config } from "../config/schema.ts";
import { UserRates, type WorkLimits } from "../gateway/rates.ts";
import type { Hooks } from "../hooks/hooks.ts";
import type { Migration } from "../migrate/migration.ts";
import { type Logger, roomLogger } from "../observe/logger.ts";
import { createMetrics, type Metrics } from "../observe/metrics.ts";
import type { LoggedError } from "../observe/newest-errors.ts";
import type { Driver } from "../transport/driver.ts";
import { createNodeCredentials } from "./credentials.ts";
import type { DriverPorts, Drivers } from "./drivers.ts";

const STORED_BURST_S = 10;

const LOCAL_QUIET_MS = 200;

const MAX_DEBT_S = 5;

export interface ServerDeps {
  readonly logger: Logger;
  readonly droppedLogLines: () => number;
  readonly newestErrors: () => readonly LoggedError[];
  readonly version: string;
  readonly transport: Driver;
  /** The sources of each configured value, by key. Absent if they are not known. */
  readonly configPlaces?: ReadonlyMap<string, readonly string[]>;
  /**
   * True if a new embedded store may be created when the database is lost. What remains of the old
   * store is moved aside.
   */
  readonly newStore?: boolean;
  /** Shows a generated password to the operator. It must not be logged. */
  announcePassword(username: string, password: string): void;
  /** Called when the node must stop at once, because another process moves or owns its data. */
  onUnfit(error: unknown): void;
}

export interface Node extends ServerDeps {
  readonly config: Config;
  readonly metrics: Metrics;
  /** Time at which the node was created (`performance.now()`). */
  readonly steadyStartMs: number;
  readonly drivers: Pick<Drivers, "clock" | "reach" | "reason" | "isKnownOutage" | "close">;
  /**
   * The migration that must finish before the store is started. `undefined` with the embedded
   * store.
   */
  readonly migration: Migration | undefined;
  readonly cluster: Cluster;
  readonly store: Store;
  readonly directory: SessionDirectory;
  readonly throttle: Throttle;
  readonly systemAccounts: SystemAccounts;
  readonly credentials: Credentials;
  /** `undefined` if clients do not authenticate with JWTs. */
  readonly jwt: Jwt | undefined;
  /**
   * Limits how often clients' tokens (on sockets and for HTTP streams) and URL signatures can be
   * guessed.
   */
  readonly tokens: TokenGate;
  /** Rate limits of users, for frames and for HTTP requests to streams. */
  readonly rates: UserRates;
  /**
   * Counts of recent messages and events that were sent through this node, by channel. Used for
   * the list of busiest channels.
   */
  readonly activity: ChannelActivity;
  readonly hooks: Hooks | undefined;
  readonly messages: Messages;
  readonly clientEvents: ClientEvents;
  readonly events: Events;
  readonly demand: EventDemandWatch;
  readonly streams: Streams;
  readonly followers: StreamFollowers;
  readonly logCursors: LogCursors;
  readonly logs: Logs;
  readonly channelLogs: ChannelLogs;
  readonly signedUrls: SignedUrls;
  readonly conversations: Conversations;
  readonly channels: Channels;
  readonly interest: Interest;
  readonly imports: Imports;
  /** Closes the sessions of all clients. Set by the gateway. */
  endClients: () => Promise<void>;
  /** Returns the event types that the webhooks use. Set by the webhooks. */
  webhookTypes: () => Promise<readonly (readonly string[])[]>;
  /** `waiting` means that the node cannot use its store yet. */
  status: "stopped" | "waiting" | "starting" | "ready" | "draining" | "closed";
}

export async function createNode(config: Config, deps: ServerDeps): Promise<Node> {
  const steadyStartMs = performance.now();
  const nodeId = config.node.id || randomBytes(4).toString("hex");
  const metrics = createMetrics({ version: deps.version, nodeId });
  metrics.families.transport.of(deps.transport.name, deps.transport.library).set(1);
  metrics.families.memoryLimit.of().set(memoryLimit());
  metrics.families.logLinesDropped.of().from(deps.droppedLogLines);
  const logger = deps.logger.child({ node: nodeId });
  const drivers = await createDrivers({
    config,
    logger,
    metrics,
    about: {
      nodeId,
      clientAddress: config.cluster.clientAddress,
      tcpAddress: config.cluster.wkprotoAddress,
      version: deps.version,
      startedAtMs: Date.now(),
      isDraining: () => node.status === "draining",
      sessions: () => node.directory.size,
      importPhase: () => node.imports.adopted,
    },
    onNewIncarnation: () => void node.migration?.assertNoneBeganMeanwhile().catch(deps.onUnfit),
    onLost: deps.onUnfit,
    newStore: deps.newStore ?? false,
  });
  const { store, cluster, throttle, clock, lookBackMs } = drivers;
  const onError = errorLog({ logger, drivers }, "broker");
  const systemAccounts = new SystemAccounts({ store, onError });
  const isSystem = systemAccounts.has;
  const backendMayImpersonate =
    config.messages.backendMayImpersonate || config.api.dialect === "wukongim";
  const content = {
    maxPayloadBytes: config.messages.maxPayloadBytes,
    contentValidation: config.content.validation,
  };
  const activity = new ChannelActivity();
  const hooks = await createNodeHooks(config, { logger, metrics });
  const messages = createMessages(store, {
    ...config.messages,
    ...content,
    backendMayImpersonate,
    isSystem,
    activity,
    hook: hooks?.send,
    isImporting: () => node.imports.isUnderway,
  });
  const streams = createStreams({
    store,
    publisher: cluster,
    clock,
    nodeId,
    activity,
    onError,
    friendsOnly: config.messages.friendsOnly,
    backendMayImpersonate,
    isSystem,
    limits: config.streams,
    content,
  });
  const clientEvents = createClientEvents({
    store,
    publisher: cluster,
    clock,
    nodeId,
    friendsOnly: config.messages.friendsOnly,
    isSystem,
  });
  const interest = shareInterest(cluster);
  const followers = createStreamFollowers({
    store,
    onError,
    interest: interest.owner(),
    maxFollowers: config.api.maxFollowers,
    maxFollowersPerUser: config.client.maxConnectionsPerUser,
  });
  const logCursors = createLogCursors({
    store,
    onError,
    interest: interest.owner(),
    maxCursors: config.api.maxFollowers,
    maxCursorsPerUser: config.client.maxConnectionsPerUser,
  });
  metrics.families.logReaders.of().from(() => logCursors.size);
  const producerGaps = metrics.families.logProducerGaps.of();
  const logs = createLogs({
    store,
    cursors: logCursors,
    onGap: () => producerGaps.add(),
  });
  const channelLogs = createChannelLogs({
    ...{ store, logs, activity, backendMayImpersonate, isSystem },
    friendsOnly: config.messages.friendsOnly,
  });
  const tokens = new TokenGate({
    throttle,
    clock: () => performance.now(),
    limits: { attempts: config.auth.tokenAttempts, windowS: config.auth.tokenWindowS },
  });
  const jwt = await createNodeJwt(config, { logger, metrics, store, clock });
  const node: Node = {
    ...deps,
    logger,
    config,
    metrics,
    steadyStartMs,
    drivers,
    cluster,
    store,
    throttle,
    systemAccounts,
    activity,
    events: new Events({
      store,
      toJson: (message) => messageJson(message, undefined),
      onRead: (types) => node.demand.note(types),
    }),
    demand: new EventDemandWatch({
      ...{ store, clock, onError },
      webhookTypes: () => node.webhookTypes(),
      onDemand: (kind, isWritten) => metrics.families.eventsDemand.of(kind).set(isWritten ? 1 : 0),
    }),
    credentials: createNodeCredentials(config, { verifier: jwt?.verifier, store, logger }),
    jwt,
    hooks,
    messages,
    clientEvents,
    streams,
    followers,
    logCursors,
    logs,
    channelLogs,
    signedUrls: createSignedUrls({ store, tokens, clock }),
    interest: interest.owner(),
    directory: new SessionDirectory({ store, cluster, onError }),
    tokens,
    rates: new UserRates(workLimits(config.client)),
    migration: await createMigration(config, logger, deps.onUnfit),
    conversations: createConversations({ store, publisher: cluster, clock, lookBackMs }),
    channels: createChannels({ store, publisher: cluster }),
    imports: new Imports({
      store,
      cluster,
      async quiesce() {
        await node.endClients();
        await pause(quietMs(config));
      },
      onError,
      onLines: (results) => countLines(metrics, results),
    }),
    endClients: async () => {},
    webhookTypes: async () => [],
    status: "stopped",
  };
  metrics.families.importOpen.of().from(() => (node.imports.isUnderway ? 1 : 0));
  return node;
}

function memoryLimit(): number {
  const limit = process.constrainedMemory(); // 0 or a huge number if there is no limit
  return limit > 0 ? Math.min(limit, totalmem()) : totalmem();
}

/**
 * Returns the number of milliseconds after which a call that is in progress now can no longer store
 * anything. Calls that may wait longer, for a body or a hook, are refused while an import is open.
 */
function quietMs({ redis }: Config): number {
  return redis.url === "" ? LOCAL_QUIET_MS : redis.timeoutMs;
}

function countLines({ families }: Metrics, results: readonly LineResult[]): void {
  for (const result of results)
    families.importLines.of(typeof result === "string" ? result : "refused").add();
}

async function createDrivers(ports: DriverPorts): Promise<Drivers> {
  if (ports.config.redis.url === "") {
    const { createEmbeddedDrivers } = await import("./embedded-drivers.ts");
    return createEmbeddedDrivers(ports);
  }
  const { createRedisDrivers } = await import("./redis-drivers.ts");
  return createRedisDrivers(ports);
}

async function createNodeJwt(
  { auth }: Config,
  ports: Pick<Node, "logger" | "metrics" | "store"> & Pick<Drivers, "clock">,
): Promise<Jwt | undefined> {
  if (!acceptsJwts(auth.clients)) return undefined;
  const { logger, metrics, store, clock } = ports;
  const log = roomLogger(logger, "auth");
  const { createJwt } = await import("../auth/jwt.ts");
  const jwt = await createJwt(auth.jwt, {
    clock,
    store,
    onKeysChanged: () => log.info("The JWT issuer has changed its keys"),
    onKeyFailure(err) {
      metrics.families.jwksFailures.of().add();
      log.warn(
        { err },
        "Could not read the JWT issuer's keys, or could not store them; keys that were read earlier stay valid for auth.jwt.jwksMaxStaleS",
      );
    },
    onRefused(reason, detail) {
      metrics.families.tokensRefused.of(reason).add();
      log.debug({ reason, detail }, "Refused a JWT");
    },
  });
  metrics.families.jwksAge.of().from(() => jwt.keyAgeS);
  return jwt;
}

const HOOK_LOG_MS = 10_000;

async function createNodeHooks(
  { hooks: settings, messages: { maxPayloadBytes } }: Config,
  { logger, metrics: { families } }: Pick<Node, "logger" | "metrics">,
): Promise<Hooks | undefined> {
  if (settings.connect.url === "" && settings.send.url === "") return undefined;
  const log = roomLogger(logger, "events");
  const { createHooks } = await import("../hooks/hooks.ts");
  let loggedMs = Number.NEGATIVE_INFINITY;
  const hooks = createHooks(settings, {
    clock: Date.now,
    maxPayloadBytes,
    onOutcome(hook, outcome, ms) {
      families.hookRequests.of(hook, outcome).add();
      if (ms !== undefined) families.hookDuration.of(hook).observe(ms / 1000);
    },
    onFailure(hook, outcome, detail) {
      const nowMs = performance.now();
      const fields = { hook, outcome, detail };
      if (nowMs - loggedMs < HOOK_LOG_MS) return log.debug(fields, "A hook failed");
      loggedMs = nowMs;
      log.warn(fields, "A hook failed; further failures are logged at most once every 10 seconds");
    },
    onOpened(hook) {
      const { onFailure } = settings[hook];
      log.error(
        { hook, onFailure },
        "A hook failed too often and will not be called for 5 seconds",
      );
    },
  });
  for (const [hook, caller] of hooks.callers) {
    families.hookPending.of(hook).from(() => caller.pending);
    families.hookCircuitOpen.of(hook).from(() => (caller.circuit === "open" ? 1 : 0));
  }
  return hooks;
}

async function createMigration(
  config: Config,
  logger: Logger,
  onLost: (error: unknown) => void,
): Promise<Migration | undefined> {
  if (config.redis.url === "") return undefined;
  const { nodeMigration } = await import("./migration.ts");
  return nodeMigration(config, logger, onLost);
}

function workLimits(client: Config["client"]): WorkLimits {
  const { maxFramesPerSecond: perSecond, frameBurst: burst } = client;
  const { userRateFactor: factor, maxStoredBytesPerSecond: bytes } = client;
  const { maxEventsPerSecond: events } = client;
  return {
    connection: { perSecond, burst },
    user: {
      perSecond: perSecond * factor,
      burst: burst * factor,
      maxDebt: perSecond * factor * MAX_DEBT_S,
    },
    stored: { perSecond: bytes, burst: bytes * STORED_BURST_S },
    events: { perSecond: events, burst: events },
  };
}

/**
 * Returns a function that logs errors under the given room. It omits errors that result from a
 * known outage.
 */
export function errorLog(
  { logger, drivers }: Pick<Node, "logger" | "drivers">,
  room: string,
): (error: unknown, message: string) => void {
  const log = roomLogger(logger, room);
  return (error, message) => {
    if (!drivers.isKnownOutage(error)) log.error({ err: error }, message);
  };
}

/**
 * Returns false while the node starts, which includes waiting for its store and migrating its data.
 */
export function hasData({ status }: Pick<Node, "status">): boolean {
  return status !== "starting" && status !== "waiting";
}

const IMPORTING = "An import is open. Close it with POST /admin/import/close";

/** Reason why a waiting node is not ready. Omits the cause, which may name internal addresses. */
export const WAITING = "The node waits for its store. The node's log contains the reason";

export async function readiness(
  node: Node,
): Promise<{ readonly ready: boolean; readonly reason: string }> {
  if (node.status === "waiting") return { ready: false, reason: WAITING };
  if (node.status !== "ready") return { ready: false, reason: `The node is ${node.status}` };
  if (node.imports.isUnderway) return { ready: false, reason: IMPORTING };
  try {
    await node.store.ping();
    await node.cluster.ping();
    await node.cluster.barrier(); // checks that publications arrive
    return { ready: true, reason: "" };
  } catch (error) {
    if (!(error instanceof BrokerError)) throw error;
    return { ready: false, reason: error.message };
  }
}
