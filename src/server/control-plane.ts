// Creates the HTTP parts of a node: the manager accounts, the endpoint for backends and the
// endpoint for stream viewers. Keeps no state.

import { readFile } from "node:fs/promises";
import type { ClosedConnection, LocalSession } from "../api/connections.ts";
import { REPLY_BYTES } from "../api/durable-streams/read.ts";
import type { DurableStreamPorts } from "../api/durable-streams/routes.ts";
import { createHttpEndpoint, createViewerEndpoint } from "../api/endpoint.ts";
import { measuredManagers, measuredMessages, measuredStreams } from "../api/measured.ts";
import { type DemoSite, frontPage, pageRoutes } from "../api/pages.ts";
import type { ApiLog } from "../api/serve.ts";
import { createViewers, type Viewers } from "../api/viewers.ts";
import { createInboxes } from "../broker/inboxes.ts";
import { createManagers, type Managers } from "../broker/managers.ts";
import { createUsers } from "../broker/users.ts";
import type { Webhooks } from "../broker/webhook-ports.ts";
import { createWukongimHttp } from "../compat/wukongim/http.ts";
import { shownSettings } from "../config/summary.ts";
import { isOriginAllowed } from "../gateway/origins.ts";
import { createReadBudget } from "../gateway/rates.ts";
import { parseAddress } from "../lib/address.ts";
import { roomLogger } from "../observe/logger.ts";
import type { HttpEndpoint } from "../transport/types.ts";
import { requiresCredential } from "./credentials.ts";
import { maxStreamBytes } from "./drivers.ts";
import { gatedHttp } from "./gate.ts";
import { type Node, readiness } from "./node.ts";

export function createNodeManagers(node: Node): Managers {
  const { auth, managers, admin } = node.config;
  const { migration, store } = node;
  return createManagers({
    store: {
      ...store,
      accessTokenOwner: (hash) =>
        migration === undefined || migration.isOver
          ? store.accessTokenOwner(hash)
          : migration.accessTokenOwner(hash),
    },
    throttle: node.throttle,
    accounts: managers,
    adminPassword: admin.password,
    clock: node.drivers.clock,
    limits: {
      tokenTtlS: auth.tokenTtlS,
      attempts: auth.loginAttempts,
      windowS: auth.loginWindowS,
    },
    announcePassword: node.announcePassword,
  });
}

const NO_PLACES: ReadonlyMap<string, readonly string[]> = new Map();

const NOTHING_TO_MOVE = {
  status: "migrated",
  step: "",
  lastErr: null,
  tryCount: 0,
} as const;

export interface LocalFacts {
  sessions(): Iterable<LocalSession>;
  closedSessions(): Iterable<ClosedConnection>;
  vitals(): { readonly connections: number; readonly deliveries: number };
}

/** Creates the endpoint for backends. `clientPort` returns the port of the client listener. */
export function createApi(
  node: Node,
  managers: Managers,
  local: LocalFacts & { clientPort(): number; readonly webhooks: Webhooks },
): HttpEndpoint {
  const { config, store, cluster, directory, metrics } = node;
  const ports = { store, directory, publisher: cluster };
  const users = createUsers(ports);
  const messages = measuredMessages(node.messages, metrics.api);
  const { channels, conversations } = node;
  const { clock } = node.drivers;
  const demo = demoSite(node.config, local.clientPort);
  const hasConsole = config.api.console === "on";
  const inboxes = createInboxes(store);
  const streams = measuredStreams(node.streams, metrics.api);
  const wukongim = createWukongimHttp(
    { users, channels, messages, inboxes, conversations, streams, clock },
    config.api,
  );
  const endpoint = createHttpEndpoint({
    ...wukongim,
    users,
    systemAccounts: node.systemAccounts,
    channels,
    conversations,
    messages,
    streams,
    followers: node.followers,
    ...durableStreamPorts(node),
    viewers: viewersOf(node),
    managers: measuredManagers(managers, metrics.api),
    events: node.events,
    cluster,
    clock,
    nodeId: cluster.nodeId,
    activity: node.activity,
    newestErrors: node.newestErrors,
    shownSettings: () => shownSettings({ config, places: node.configPlaces ?? NO_PLACES }),
    localSessions: local.sessions,
    closedSessions: local.closedSessions,
    vitals: () => ({
      ...local.vitals(),
      ...{ nodeId: cluster.nodeId, version: node.version },
      clientAddress: config.cluster.clientAddress,
      tcpAddress: config.cluster.wkprotoAddress,
      uptimeMs: performance.now() - node.steadyStartMs,
      sessions: directory.size,
    }),
    clientsConnectTo: clientsConnectTo(node.config),
    frontPage: frontPage({ demo, hasConsole }),
    migration: () => node.migration?.state ?? NOTHING_TO_MOVE,
    imports: node.imports,
    webhooks: local.webhooks,
    importLimits: {
      maxPayloadBytes: config.messages.maxPayloadBytes,
      retentionS: config.store.retentionS,
      maxChannelMessages: config.store.maxChannelMessages,
    },
    readiness: () => readiness(node),
    metrics: {
      contentType: metrics.page.contentType,
      async metrics() {
        const { ready } = await readiness(node);
        metrics.families.ready.of().set(ready ? 1 : 0);
        return metrics.page.metrics();
      },
    },
    log: apiLog(node),
    requestCounter: metrics.api.requestCounter,
    settings: { ...settingsOf(node), requiresCredential: requiresCredential(config) },
  });
  const pages = pageRoutes({ readFile: readBuiltPage, demo, hasConsole });
  return gatedHttp({ ...endpoint, routes: [...endpoint.routes, ...pages] }, node);
}

/**
 * Folder into which the build writes the pages. A node that runs from its source files uses the
 * same folder.
 */
const BUILT_PAGES = new URL("../../dist/pages/", import.meta.url);

function readBuiltPage(path: string): Promise<Uint8Array> {
  return readFile(new URL(path, BUILT_PAGES));
}

/**
 * Hosts by which a page on this machine reaches a listener. The keys are hosts to which listeners
 * are bound.
 */
const LOCAL_NAMES: ReadonlyMap<string, string> = new Map([
  ["0.0.0.0", "127.0.0.1"],
  ["::", "localhost"],
  ["::1", "localhost"], // a Content-Security-Policy cannot name an IPv6 address
]);

/** Returns the settings of the demo, or `undefined` if the node is not in protected mode. */
function demoSite(config: Node["config"], clientPort: () => number): DemoSite | undefined {
  if (requiresCredential(config)) return undefined;
  const { api, client, cluster } = config;
  const { host = "" } = parseAddress(client.listen) ?? {};
  const scheme = client.tls.certFile === "" ? "ws" : "wss";
  const configured = withScheme(cluster.clientAddress, scheme);
  return {
    clientUrl: () =>
      URL.canParse(configured)
        ? configured
        : `${scheme}://${LOCAL_NAMES.get(host) ?? host}:${clientPort()}`,
    allowsOrigin: (origin) => isOriginAllowed(origin, client.allowedOrigins),
    scheme: api.tls.certFile === "" ? "http://" : "https://",
  };
}

function withScheme(address: string, scheme: string): string {
  return address === "" || address.includes("://") ? address : `${scheme}://${address}`;
}

function clientsConnectTo({ cluster, client }: Node["config"]): string {
  if (cluster.clientAddress !== "") return cluster.clientAddress;
  const port = parseAddress(client.listen)?.port ?? 0;
  return port === 0 ? "the address in client.listen" : `port ${port} (client.listen)`;
}

function settingsOf({ config, version }: Node) {
  const { api, auth } = config;
  return {
    staticToken: api.token,
    guessLimits: { attempts: auth.tokenAttempts, windowS: auth.tokenWindowS },
    maxBodyBytes: api.maxBodyBytes,
    maxSubscribersPerCall: api.maxSubscribersPerCall,
    version,
  };
}

function durableStreamPorts(node: Node): Omit<DurableStreamPorts, "viewers"> {
  const { logs, channelLogs, logCursors, signedUrls, rates, config } = node;
  const { allowedOrigins } = config.client;
  return {
    bearerBudget: createReadBudget(rates, REPLY_BYTES, () => performance.now()),
    ...{ logs, channelLogs, logCursors, signedUrls, longPollMs: config.streams.longPollMs },
    admitsPage: (origin) => allowedOrigins.length > 0 && isOriginAllowed(origin, allowedOrigins),
  };
}

export function createViewerApi(node: Node, managers: Managers): HttpEndpoint {
  const endpoint = createViewerEndpoint({
    streams: node.streams,
    followers: node.followers,
    ...durableStreamPorts(node),
    channels: node.channels,
    managers,
    settings: settingsOf(node),
    viewers: viewersOf(node),
    log: apiLog(node),
    requestCounter: node.metrics.api.requestCounter,
  });
  return gatedHttp(endpoint, node);
}

/**
 * Returns the API's log. It omits errors that result from an outage that has already been logged.
 */
function apiLog({ logger, drivers }: Node): ApiLog {
  const log = roomLogger(logger, "api");
  return {
    error(fields, message) {
      if (!drivers.isKnownOutage(fields.err)) log.error(fields, message);
    },
    warn(fields, message) {
      if (!drivers.isKnownOutage(fields.err)) log.warn(fields, message);
    },
  };
}

function viewersOf({ store, config, credentials, tokens, rates, hooks, drivers }: Node): Viewers {
  const { allowedOrigins } = config.client;
  return createViewers({
    store,
    tokens,
    budget: createReadBudget(rates, maxStreamBytes(config), () => performance.now()),
    credentials,
    clock: drivers.clock,
    connectHook: hooks?.connect,
    allowsOrigin: (origin) => isOriginAllowed(origin, allowedOrigins),
  });
}
