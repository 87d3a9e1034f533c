// While a node starts, it serves only health checks, metrics and the status of a migration. While
// it waits for its store, it serves only health checks. While an import is open, it serves the
// import, logins and calls that only read. Other calls are rejected with 503, and sockets are
// closed.

import { STREAMS_PATH } from "../api/durable-streams/path.ts";
import { edgeReply, errorReply } from "../api/errors.ts";
import { presentsToken } from "../api/stream-request.ts";
import { CLOSE_REASONS } from "../broker/errors.ts";
import type {
  Connection,
  ConnectionHandler,
  HttpEndpoint,
  HttpRequest,
  HttpRoute,
  SocketEndpoint,
} from "../transport/types.ts";
import { hasData, type Node, WAITING } from "./node.ts";

const ALWAYS: ReadonlySet<string> = new Set(["/healthz", "/readyz", "/health"]);
const WHILE_STARTING: ReadonlySet<string> = new Set(["/metrics", "/migrate/result"]);
/**
 * Calls that are served while an import is open, in addition to GET calls for backends: the import
 * itself, login and logout, and calls that only read.
 */
const WHILE_IMPORTING: ReadonlySet<string> = new Set([
  "/admin/import",
  "/admin/import/open",
  "/admin/import/close",
  "/manager/login",
  "/manager/logout",
  "/user/onlinestatus",
  "/channel/messagesync",
  "/messages",
  "/message",
  "/message/sync",
  "/message/eventsync",
  "/conversation/sync",
  "/conversation/channels",
  "/conversation/syncByChannels",
]);
/**
 * Matches the paths of GET calls that are intended for clients. These calls are refused while an
 * import is open.
 */
const FOR_CLIENTS = /^\/(stream|route)\b/;
const RETRY_AFTER_S = 5;
const RETRY_LATER = { "retry-after": `${RETRY_AFTER_S}` };
const REFUSAL = {
  message: "The node is starting. GET /migrate/result reports whether its data is being moved",
  retryAfterS: RETRY_AFTER_S,
} as const;
const WAITING_REFUSAL = { message: WAITING, retryAfterS: RETRY_AFTER_S } as const;

export function gatedHttp(
  endpoint: HttpEndpoint,
  node: Pick<Node, "status" | "imports">,
): HttpEndpoint {
  const routes = endpoint.routes.map((route) => {
    if (ALWAYS.has(route.path)) return route;
    const isServed = () =>
      hasData(node) || (node.status === "starting" && WHILE_STARTING.has(route.path));
    const refusal = () => (node.status === "waiting" ? WAITING_REFUSAL : REFUSAL);
    const isOnlyRead = route.method === "GET" && !FOR_CLIENTS.test(route.path);
    const isImportCall = isOnlyRead || WHILE_IMPORTING.has(route.path);
    const isForClient = route.path === STREAMS_PATH ? isFromClient : () => false;
    const refusalReply = (request: HttpRequest) => {
      if (!isServed()) return errorReply("unavailable", refusal());
      if (node.imports.isUnderway && (!isImportCall || isForClient(request)))
        return edgeReply("importing", RETRY_LATER);
      return undefined;
    };
    const gated: HttpRoute = {
      ...route,
      admit: (request) => refusalReply(request) ?? route.admit?.(request),
      // An import may have been opened while the body arrived.
      handle: (request) => refusalReply(request) ?? route.handle(request),
    };
    return gated;
  });
  return { ...endpoint, routes };
}

/** Returns true if the request has a client token or a signed URL, and therefore comes from a client. */
function isFromClient(request: HttpRequest): boolean {
  return presentsToken(request) || new URLSearchParams(request.query).has("sig");
}

/**
 * Closes new sockets while the node does not accept clients. The close code makes clients reconnect
 * later.
 */
export function gatedSockets(endpoint: SocketEndpoint, isOpen: () => boolean): SocketEndpoint {
  return {
    ...endpoint,
    open: (connection, upgrade) =>
      isOpen() ? endpoint.open(connection, upgrade) : closeSoon(connection),
  };
}

function closeSoon(connection: Connection): ConnectionHandler {
  const { code, message } = CLOSE_REASONS.unavailable;
  // The connection is opened after this function has returned.
  setImmediate(() => connection.end(code, message));
  return { received() {}, pinged() {}, drained() {}, lagging() {}, closed() {} };
}
