// What a node answers before its data is there: whether it lives, how the move stands, its metrics; everything else is told to come again later. State:
// none but whether it is open, which is asked each time.

import { errorReply } from "../api/errors.ts";
import { CLOSE_REASONS } from "../broker/errors.ts";
import type { Managers } from "../broker/managers.ts";
import type {
  Connection,
  ConnectionHandler,
  HttpEndpoint,
  HttpRoute,
  SocketEndpoint,
} from "../transport/types.ts";

const ALWAYS: ReadonlySet<string> = new Set([
  ...["/healthz", "/readyz", "/metrics", "/migrate/result"],
]);
const RETRY_AFTER_S = 5;
const REFUSAL = {
  message:
    "The node is starting; GET /migrate/result says whether it waits for its data to be moved",
  retryAfterS: RETRY_AFTER_S,
} as const;

/** The endpoint, closed but for a few paths until `isOpen`. */
export function gatedHttp(
  endpoint: HttpEndpoint,
  isOpen: () => boolean,
): HttpEndpoint {
  const routes = endpoint.routes.map((route) => {
    if (ALWAYS.has(route.path)) return route;
    const gated: HttpRoute = {
      ...route,
      admit: (request) =>
        isOpen() ? route.admit?.(request) : errorReply("unavailable", REFUSAL),
    };
    return gated;
  });
  return { ...endpoint, routes };
}

/** The managers; until `isOpen` whose an access token is, is asked of `early`. */
export function gatedManagers(
  managers: Managers,
  early: Pick<Managers, "authenticate">,
  isOpen: () => boolean,
): Managers {
  return {
    start: () => managers.start(),
    login: (...credentials) => managers.login(...credentials),
    logout: (token) => managers.logout(token),
    authenticate: (token) => (isOpen() ? managers : early).authenticate(token),
  };
}

/** The endpoint; until `isOpen` sockets are told to come again after a pause. */
export function gatedSockets(
  endpoint: SocketEndpoint,
  isOpen: () => boolean,
): SocketEndpoint {
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
