// One node: starts and stops its parts in the right order. To stop, it rejects new work,
// disconnects the clients, finishes the calls in progress, and closes the store and the cluster.

import { setTimeout as pause } from "node:timers/promises";
import type { Config } from "./config/schema.ts";
import type { Gateway } from "./gateway/endpoint.ts";
import { waitAtMost } from "./lib/wait-at-most.ts";
import { createDelivery, createNodeGateway } from "./server/client-side.ts";
import { createApi, createNodeManagers, createViewerApi } from "./server/control-plane.ts";
import { createOnlineSweep, EventFeedKeeper } from "./server/event-feed.ts";
import { createListeners, startListener } from "./server/listeners.ts";
import { createNode, type Node, type ServerDeps } from "./server/node.ts";
import { createNodePush, type NodePush } from "./server/push.ts";
import { waitForStore, whileStoreOpens } from "./server/store-wait.ts";
import { assertClock } from "./server/wall-clock.ts";
import { createNodeWebhooks } from "./server/webhooks.ts";
import type { Listener, TopicPublisher } from "./transport/types.ts";
import type { WebhookService } from "./webhooks/webhooks.ts";

/**
 * Fraction of the drain time for disconnecting clients. The rest is for finishing calls in
 * progress.
 */
const DRAIN_SHARE = 0.8;
const CLOSE_STORE_MS = 5000;
/** Time for sending the last replies, which are written at the end of an event-loop iteration. */
const LAST_REPLIES_MS = 5;

interface Server {
  /** Starts the node. Rejects with an error whose message is for the operator. */
  start(): Promise<{
    readonly apiPort: number;
    readonly clientPort: number;
    /** Port of `api.compatListen`. Absent if the setting is empty. */
    readonly apiCompatPort?: number;
    /** Port of `protocol.wkproto.listen`. Absent if the setting is empty. */
    readonly wkprotoPort?: number;
  }>;
  /** Drains and stops the node. First waits for a start in progress. Can be called twice. */
  close(): Promise<void>;
}

type ListenerPorts = Awaited<ReturnType<Server["start"]>>;
type ApiPorts = Pick<ListenerPorts, "apiPort" | "apiCompatPort">;

export async function createServer(config: Config, deps: ServerDeps): Promise<Server> {
  const node = await createNode(config, deps);
  const managers = createNodeManagers(node);
  const topics: { publisher?: TopicPublisher } = {};
  const delivery = createDelivery(node, topics);
  const push = createNodePush(node);
  const gateway = createNodeGateway(node, delivery, push?.signals);
  const bound = { clientPort: 0 };
  const webhooks = createNodeWebhooks(node);
  node.webhookTypes = () => webhooks.activeTypes();
  const onlineSweep = createOnlineSweep(node);
  const eventFeed = new EventFeedKeeper(node, () => webhooks.neededEvents());
  const facts = { ...gateway.facts, clientPort: () => bound.clientPort, webhooks };
  const listeners = await createListeners(node, {
    http: createApi(node, managers, facts),
    viewers: createViewerApi(node, managers),
    sockets: gateway.endpoint,
  });
  topics.publisher = listeners.publisher;
  const allListeners = [
    ...new Set([
      listeners.api,
      listeners.client,
      ...(listeners.compat === undefined ? [] : [listeners.compat]),
      ...(listeners.wkproto === undefined ? [] : [listeners.wkproto]),
    ]),
  ];
  const stopping = new AbortController();
  const waitPorts = { openApi, signal: stopping.signal };
  let openingApi: Promise<ApiPorts> | undefined;
  let starting: Promise<ListenerPorts> | undefined;
  let closing: Promise<void> | undefined;

  async function open(): Promise<ListenerPorts> {
    node.status = "starting";
    assertClock();
    node.metrics.eventLoop.start();
    const { managers: accounts, admin } = config;
    // Configured accounts can be loaded without the store.
    if (accounts.length > 0 || admin.password !== "") await managers.start();
    // If there is a data folder to move, the migration itself waits for Redis, without a time
    // limit.
    if (config.migrate.from === "") await waitForStore(node, waitPorts);
    const earlyPorts = await finishMigration();
    await waitForStore(node, waitPorts);
    await whileStoreOpens(node, waitPorts, (signal) => node.store.start(signal));
    await join();
    await node.imports.start();
    await eventFeed.start();
    await node.demand.start();
    await node.systemAccounts.start();
    await node.jwt?.start();
    // Until the node is ready, the listeners reject most calls with 503 (see server/gate.ts).
    const ports = earlyPorts ?? (await listen());
    // Without configured accounts, the managers start after the store and the listeners, so that a
    // generated password is not shown if one of these cannot be started.
    await managers.start();
    node.streams.start();
    await webhooks.start();
    await push?.start();
    onlineSweep.start();
    node.status = "ready";
    return ports;
  }

  /** Joins the cluster. If a migration has begun meanwhile, leaves the cluster again and throws. */
  async function join(): Promise<void> {
    await node.cluster.start();
    try {
      await node.migration?.assertNoneBegan();
    } catch (error) {
      await node.cluster.close();
      throw error;
    }
  }

  async function finishMigration(): Promise<ListenerPorts | undefined> {
    const { migration, logger } = node;
    if (migration === undefined) return undefined;
    if (!(await whileStoreOpens(node, waitPorts, () => migration.isPending()))) return undefined;
    const ports = await listen();
    logger.info(ports, "The node waits until its data has been migrated");
    await migration.run();
    return ports;
  }

  function openApi(): Promise<ApiPorts> {
    openingApi ??= startApi();
    return openingApi;
  }

  async function startApi(): Promise<ApiPorts> {
    const apiPort = await startListener(listeners.api, "api.listen");
    if (listeners.compat === undefined) return { apiPort };
    const apiCompatPort = await startListener(listeners.compat, "api.compatListen");
    return { apiPort, apiCompatPort };
  }

  async function listen(): Promise<ListenerPorts> {
    const apiPorts = await openApi();
    const clientPort =
      listeners.client === listeners.api
        ? apiPorts.apiPort
        : await startListener(listeners.client, "client.listen");
    bound.clientPort = clientPort;
    if (listeners.wkproto === undefined) return { ...apiPorts, clientPort };
    const tcpPort = await startListener(listeners.wkproto, "protocol.wkproto.listen");
    return { ...apiPorts, clientPort, wkprotoPort: tcpPort };
  }

  /**
   * Closes the store and throws `failure`. Without a clean close, the next start would check all
   * data.
   */
  async function closeStore(failure: unknown): Promise<never> {
    const closed = node.store.close().catch(() => undefined); // `failure` is reported
    await waitAtMost(closed, CLOSE_STORE_MS);
    throw failure;
  }

  async function closeNode(): Promise<void> {
    stopping.abort();
    node.migration?.close();
    await starting?.catch(() => undefined); // start() reports the error
    await Promise.all([eventFeed.close(), onlineSweep.close(), node.demand.close()]);
    await stop(node, { gateway, webhooks, push }, allListeners);
  }

  return {
    start() {
      starting = open().catch(closeStore);
      return starting;
    },

    close() {
      if (closing === undefined) closing = closeNode();
      return closing;
    },
  };
}

async function stop(
  node: Node,
  {
    gateway,
    webhooks,
    push,
  }: {
    readonly gateway: Gateway;
    readonly webhooks: WebhookService;
    readonly push: NodePush | undefined;
  },
  listeners: readonly Listener[],
): Promise<void> {
  const wasReady = node.status === "ready";
  node.status = "draining";
  if (wasReady) {
    await pause(node.config.drain.noticeMs);
    const spreadMs = (await hasSuccessor(node)) ? node.config.drain.timeoutMs * DRAIN_SHARE : 0;
    await gateway.drain(spreadMs);
  }
  for (const listener of listeners) listener.stopAccepting();
  node.followers.close();
  node.logCursors.close();
  node.events.close();
  await push?.close();
  await webhooks.close();
  await node.streams.close();
  await node.systemAccounts.close();
  await node.imports.close();
  node.jwt?.close();
  await node.hooks?.close();
  await node.store.close();
  await pause(LAST_REPLIES_MS);
  for (const listener of listeners) listener.close();
  await node.cluster.close();
  await node.drivers.close();
  node.metrics.eventLoop.stop();
  node.status = "closed";
}

/**
 * Returns true if another node can accept this node's clients, or if that is unknown. If the result
 * is false, the clients are disconnected all at once.
 */
async function hasSuccessor({ cluster }: Node): Promise<boolean> {
  try {
    const [, ...others] = await cluster.nodes();
    return others.some(({ isDraining }) => !isDraining);
  } catch {
    return true;
  }
}
