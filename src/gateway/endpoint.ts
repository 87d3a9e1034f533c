// The entry point for client sockets: decides which upgrades are accepted and which protocol a
// connection uses, and closes all connections when the node stops.

import { CLOSE_REASONS } from "../broker/errors.ts";
import type { Protocol } from "../protocol/protocol.ts";
import type { Connection, ConnectionHandler, SocketEndpoint, Upgrade } from "../transport/types.ts";
import { lagBytesOf } from "./catch-up.ts";
import { Client, type ClientContext } from "./client.ts";
import { refusedHandshake } from "./closed-sessions.ts";
import { isOriginAllowed } from "./origins.ts";

interface GatewayOptions {
  readonly maxFrameBytes: number;
  readonly maxBufferedBytes: number;
  readonly maxBufferedBytesPerUser: number;
  readonly maxBufferedBytesTotal: number;
  readonly idleTimeoutS: number;
  readonly allowedOrigins: readonly string[];
  /** Maximum number of open connections. 0 means no limit. */
  readonly maxConnections: number;
}

export interface Gateway {
  readonly endpoint: SocketEndpoint;
  /**
   * Refuses new connections and ends all sessions, spread evenly over `spreadMs`. If `spreadMs` is
   * 0, the sessions end at once. A session with requests in progress ends when these requests have
   * been answered, or at the latest `REQUESTS_MS` after the end of `spreadMs`.
   */
  drain(spreadMs: number): Promise<void>;
  /** Ends all sessions at once. New connections are still accepted. */
  endAll(): Promise<void>;
}

/** Factor by which a frame may exceed `client.maxFrameBytes` and still get an error reply. */
const FRAME_TOLERANCE = 2;

const DRAIN_STEP_MS = 50;
const REQUESTS_MS = 2000;

/**
 * Creates the gateway. A connection uses the first protocol in `context.protocols` that its client
 * has offered or, if the client offers no subprotocol, that recognises its first frame.
 */
export function createGateway(context: ClientContext, options: GatewayOptions): Gateway {
  const { clients, protocols, leaving } = context;
  let isDraining = false;

  /** Returns true if no client is left, and the removal of all sessions has begun. */
  function isEmpty(): boolean {
    return clients.size === 0 && leaving.isIdle;
  }

  function accept(upgrade: Upgrade): ReturnType<SocketEndpoint["accept"]> {
    if (isDraining) return { status: 503 };
    if (options.maxConnections > 0 && clients.size >= options.maxConnections)
      return refuse(upgrade, "too_many_connections", 503);
    if (!isOriginAllowed(upgrade.origin, options.allowedOrigins))
      return refuse(upgrade, "origin_refused", 403);
    if (upgrade.subprotocols.length === 0) return { subprotocol: undefined };
    const chosen = chosenBy(upgrade);
    return chosen === undefined ? { status: 400 } : { subprotocol: chosen.name };
  }

  function refuse(
    upgrade: Upgrade,
    reason: "too_many_connections" | "origin_refused",
    status: number,
  ): { readonly status: number } {
    const nowMs = context.opening.clock();
    context.closedSessions.add(refusedHandshake(upgrade, { reason, status, nowMs }));
    return { status };
  }

  function chosenBy({ subprotocols }: Upgrade): Protocol | undefined {
    return protocols.find(({ name }) => subprotocols.includes(name));
  }

  function open(connection: Connection, upgrade: Upgrade): ConnectionHandler {
    return new Client(connection, chosenBy(upgrade)?.open(), context, upgrade);
  }

  return {
    endpoint: {
      headers: context.opening.connectHook?.headers ?? [],
      maxFrameBytes: options.maxFrameBytes * FRAME_TOLERANCE,
      maxBufferedBytes: options.maxBufferedBytes,
      maxBufferedBytesPerUser: options.maxBufferedBytesPerUser,
      maxBufferedBytesTotal: options.maxBufferedBytesTotal,
      lagBytes: lagBytesOf(options.maxBufferedBytes),
      idleTimeoutS: options.idleTimeoutS,
      slowReader: CLOSE_REASONS.slow_reader,
      accept,
      open,
    },

    async endAll() {
      for (const client of clients) client.end("unavailable");
      while (!isEmpty()) await new Promise((resolve) => setTimeout(resolve, DRAIN_STEP_MS));
    },

    async drain(spreadMs) {
      isDraining = true;
      const count = clients.size;
      const startMs = performance.now();
      while (!isEmpty()) {
        const passedMs = performance.now() - startMs;
        const share = spreadMs === 0 ? 1 : (passedMs + DRAIN_STEP_MS) / spreadMs;
        const remaining = Math.max(0, Math.floor(count * (1 - share)));
        for (const client of firstOf(clients, clients.size - remaining)) client.finish("draining");
        if (passedMs > spreadMs + REQUESTS_MS) for (const client of clients) client.end("draining");
        if (!isEmpty()) await new Promise((resolve) => setTimeout(resolve, DRAIN_STEP_MS));
      }
    },
  };
}

function firstOf<T>(items: ReadonlySet<T>, count: number): readonly T[] {
  const selected: T[] = [];
  for (const item of items) {
    if (selected.length >= count) break;
    selected.push(item);
  }
  return selected;
}
