// While a node starts, it serves only health checks, metrics and the result of a migration. While
// it waits for its store, it serves only health checks. All other calls are rejected with 503, and
// sockets are closed.

import { errorReply } from "../api/errors.ts";
import { CLOSE_REASONS } from "../broker/errors.ts";
import type {
  Connection,
  ConnectionHandler,
  HttpEndpoint,
  HttpRoute,
  SocketEndpoint,
} from "../transport/types.ts";
import { hasData, type Node, WAITING } from "./node.ts";

const ALWAYS: ReadonlySet<string> = new Set(["/healthz", "/readyz", "/health"]);
const WHILE_STARTING: ReadonlySet<string> = new Set(["/metrics", "/migrate/result"]);
const RETRY_AFTER_S = 5;
const REFUSAL = {
  message: "The node is starting. GET /migrate/result reports whether its data is being moved",
  retryAfterS: RETRY_AFTER_S,
} as const;
const WAITING_REFUSAL = { message: WAITING, retryAfterS: RETRY_AFTER_S } as const;

export function gatedHttp(endpoint: HttpEndpoint, node: Pick<Node, "status">): HttpEndpoint {
  const routes = endpoint.routes.map((route) => {
    if (ALWAYS.has(route.path)) return route;
    const isServed = () =>
      hasData(node) || (node.status === "starting" && WHILE_STARTING.has(route.path));
    const refusal = () => (node.status === "waiting" ? WAITING_REFUSAL : REFUSAL);
    const gated: HttpRoute = {
      ...route,
      admit: (request) =>
        isServed() ? route.admit?.(request) : errorReply("unavailable", refusal()),
    };
    return gated;
  });
  return { ...endpoint, routes };
}

/** Closes sockets until the node is open. The close code asks the client to reconnect later. */
export function gatedSockets(endpoint: SocketEndpoint, isOpen: () => boolean): SocketEndpoint {
  return {
    ...endpoint,
    open: (connection, upgrade) =>
      isOpen() ? endpoint.open(connection, upgrade) : closeSoon(connection),
  };
}

function closeSoon(connection: Connection): ConnectionHandler {
  const { code, message } = CLOSE_REASONS.unavailable;
  // The connection opens only after this function has returned.
  setImmediate(() => connection.end(code, message));
  return { received() {}, pinged() {}, drained() {}, lagging() {}, closed() {} };
}
