// What a node serves before its data is ready: health, metrics and the result of the move; all
// other calls get 503, and sockets are closed. No state.

import { errorReply } from "../api/errors.ts";
import { CLOSE_REASONS } from "../broker/errors.ts";
import type {
  Connection,
  ConnectionHandler,
  HttpEndpoint,
  HttpRoute,
  SocketEndpoint,
} from "../transport/types.ts";

const ALWAYS: ReadonlySet<string> = new Set([
  ...["/healthz", "/readyz", "/health", "/metrics", "/migrate/result"],
]);
const RETRY_AFTER_S = 5;
const REFUSAL = {
  message:
    "The node is starting; GET /migrate/result says whether it waits for its data to be moved",
  retryAfterS: RETRY_AFTER_S,
} as const;

/** The endpoint; until `isOpen` it serves only a few paths. */
export function gatedHttp(endpoint: HttpEndpoint, isOpen: () => boolean): HttpEndpoint {
  const routes = endpoint.routes.map((route) => {
    if (ALWAYS.has(route.path)) return route;
    const gated: HttpRoute = {
      ...route,
      admit: (request) => (isOpen() ? route.admit?.(request) : errorReply("unavailable", REFUSAL)),
    };
    return gated;
  });
  return { ...endpoint, routes };
}

/** The endpoint; until `isOpen` sockets are closed with a code to reconnect later. */
export function gatedSockets(endpoint: SocketEndpoint, isOpen: () => boolean): SocketEndpoint {
  return {
    ...endpoint,
    open: (connection, upgrade) =>
      isOpen() ? endpoint.open(connection, upgrade) : turnedAway(connection),
  };
}

function turnedAway(connection: Connection): ConnectionHandler {
  const { code, message } = CLOSE_REASONS.unavailable;
  setImmediate(() => connection.end(code, message)); // it is open when this returns
  return { received() {}, drained() {}, lagging() {}, closed() {} };
}
