// One node: the order in which its parts start and stop. It stops in reverse order: refuse new
// work, let clients go, finish calls under way, flush, close. The parts are made in server/.

import { setTimeout as pause } from "node:timers/promises";
import type { Config } from "./config/schema.ts";
import type { Gateway } from "./gateway/endpoint.ts";
import { createHub, createNodeGateway } from "./server/client-side.ts";
import { createApi, createNodeManagers, createViewerApi } from "./server/control-plane.ts";
import { createListeners, startListener } from "./server/listeners.ts";
import { createNode, type Node, type ServerDeps } from "./server/node.ts";
import type { Listener, TopicPublisher } from "./transport/types.ts";

/**
 * The share of the drain time in which clients are disconnected; the rest is for calls under way.
 */
const DRAIN_SHARE = 0.8;
/** Replies leave at the end of a turn of the loop. */
const FAREWELL_MS = 5;

interface Server {
  /** Opens the store, then the listeners. Rejects with a message for the operator. */
  start(): Promise<{ readonly apiPort: number; readonly clientPort: number }>;
  /** Drains and stops, after a start under way. Safe to call twice. */
  close(): Promise<void>;
}

type Started = Awaited<ReturnType<Server["start"]>>;

export function createServer(config: Config, deps: ServerDeps): Server {
  const node = createNode(config, deps);
  const managers = createNodeManagers(node);
  const topics: { publisher?: TopicPublisher } = {};
  const hub = createHub(node, topics);
  const gateway = createNodeGateway(node, hub);
  const listeners = createListeners(node, {
    http: createApi(node, managers, gateway.facts),
    viewers: createViewerApi(node),
    sockets: gateway.endpoint,
  });
  topics.publisher = listeners.client;
  const all = [...new Set([listeners.api, listeners.client])];
  let starting: Promise<Started> | undefined;
  let closing: Promise<void> | undefined;

  async function open(): Promise<Started> {
    node.status = "starting";
    const { managers: accounts, admin } = config;
    if (accounts.length > 0 || admin.password !== "") await managers.start(); // needs no store
    const early = await moved();
    await node.store.start();
    await join();
    await node.systemAccounts.start();
    const ports = early ?? (await listen()); // it answers 503 until the node is ready
    await managers.start(); // may generate and show a password: after all that may fail
    node.streams.start();
    node.status = "ready";
    return ports;
  }

  /**
   * The node joins before it checks again for a move of data, and before it writes lasting data.
   */
  async function join(): Promise<void> {
    await node.cluster.start();
    try {
      await node.migration?.assertNoneBegan();
    } catch (error) {
      await node.cluster.close();
      throw error;
    }
  }

  /** If data must be moved first: serves the progress, and resolves when all is moved. */
  async function moved(): Promise<Started | undefined> {
    const { migration, logger } = node;
    if (migration === undefined || !(await migration.isPending())) return undefined;
    const ports = await listen();
    logger.info(ports, "The node waits until its data has been moved");
    await migration.run();
    return ports;
  }

  async function listen(): Promise<Started> {
    const apiPort = await startListener(listeners.api, "api");
    const clientPort =
      listeners.client === listeners.api
        ? apiPort
        : await startListener(listeners.client, "client");
    return { apiPort, clientPort };
  }

  async function shut(): Promise<void> {
    node.migration?.close();
    await starting?.catch(() => undefined); // start() rejects with it
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

async function stop(node: Node, gateway: Gateway, listeners: readonly Listener[]): Promise<void> {
  const wasReady = node.status === "ready";
  node.status = "draining";
  if (wasReady) {
    await pause(node.config.drain.noticeMs);
    await gateway.drain(node.config.drain.timeoutMs * DRAIN_SHARE);
  }
  for (const listener of listeners) listener.stopAccepting();
  node.followers.close();
  await node.streams.close();
  await node.systemAccounts.close();
  await node.store.close();
  await pause(FAREWELL_MS); // the last replies leave
  for (const listener of listeners) listener.close();
  await node.cluster.close();
  await node.drivers.close();
  node.status = "closed";
}
