// Where client sockets come in: which upgrades are accepted, which protocol a connection speaks,
// and how all of them leave when the node goes. State: how many connections are open, and whether
// the node is draining.

import { CLOSE_REASONS } from "../broker/errors.ts";
import { type Codec, FrameError, type Protocol } from "../protocol/protocol.ts";
import type { Connection, ConnectionHandler, SocketEndpoint, Upgrade } from "../transport/types.ts";
import { lagBytesOf } from "./catch-up.ts";
import { Client, type ClientContext } from "./client.ts";
import { isOriginAllowed } from "./origins.ts";

interface GatewayOptions {
  readonly maxFrameBytes: number;
  readonly maxBufferedBytes: number;
  readonly idleTimeoutS: number;
  /**
   * Exact origins or `*.host` patterns; empty: any. Only browsers send one, so a missing origin is
   * accepted.
   */
  readonly allowedOrigins: readonly string[];
  /** 0 = no limit. */
  readonly maxConnections: number;
}

export interface Gateway {
  readonly endpoint: SocketEndpoint;
  /**
   * Refuses new connections and ends all sessions with a reconnect code, spread evenly over
   * `spreadMs`.
   */
  drain(spreadMs: number): Promise<void>;
}

const DRAIN_STEP_MS = 50;

/** `protocols`: the first that a client chose, or that its first frame is of, is spoken. */
export function createGateway(
  context: ClientContext,
  protocols: readonly Protocol[],
  options: GatewayOptions,
): Gateway {
  const { clients } = context;
  let isDraining = false;

  function accept(upgrade: Upgrade): ReturnType<SocketEndpoint["accept"]> {
    if (isDraining) return { status: 503 };
    if (options.maxConnections > 0 && clients.size >= options.maxConnections)
      return { status: 503 };
    if (!isOriginAllowed(upgrade.origin, options.allowedOrigins)) return { status: 403 };
    if (upgrade.subprotocols.length === 0) return { subprotocol: undefined };
    const chosen = chosenBy(upgrade);
    return chosen === undefined ? { status: 400 } : { subprotocol: chosen.name };
  }

  function chosenBy({ subprotocols }: Upgrade): Protocol | undefined {
    return protocols.find(({ name }) => subprotocols.includes(name));
  }

  function open(connection: Connection, upgrade: Upgrade): ConnectionHandler {
    const codec = chosenBy(upgrade)?.open() ?? choose;
    return new Client(connection, codec, context);
  }

  function choose(data: Uint8Array, isText: boolean): Codec {
    const spoken = protocols.find((one) => one.speaks(data, isText));
    if (spoken !== undefined) return spoken.open();
    const problem = "No protocol begins with this frame";
    throw new FrameError("malformed_frame", 0, problem, true);
  }

  return {
    endpoint: {
      maxFrameBytes: options.maxFrameBytes,
      maxBufferedBytes: options.maxBufferedBytes,
      lagBytes: lagBytesOf(options.maxBufferedBytes),
      idleTimeoutS: options.idleTimeoutS,
      slowReader: CLOSE_REASONS.slow_reader,
      accept,
      open,
    },

    async drain(spreadMs) {
      isDraining = true;
      const count = clients.size;
      const startMs = performance.now();
      while (clients.size > 0) {
        const nextMs = performance.now() - startMs + DRAIN_STEP_MS;
        const staying = Math.max(0, Math.floor(count * (1 - nextMs / spreadMs)));
        for (const client of take(clients, clients.size - staying)) client.end("draining");
        if (clients.size > 0) await new Promise((resolve) => setTimeout(resolve, DRAIN_STEP_MS));
      }
    },
  };
}

function take<T>(from: ReadonlySet<T>, count: number): readonly T[] {
  const taken: T[] = [];
  for (const one of from) {
    if (taken.length >= count) break;
    taken.push(one);
  }
  return taken;
}
