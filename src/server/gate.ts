// What a node answers before its data is there: whether it lives, how the move stands, its metrics; everything else is told to come again later. State:
// none but whether it is open, which is asked each time.

import { errorReply } from "../api/errors.ts";
import { CLOSE_REASONS } from "../broker/errors.ts";
import type {
  Connection,
  ConnectionHandler,
  HttpEndpoint,
  SocketEndpoint,
} from "../transport/types.ts";

const ALWAYS: ReadonlySet<string> = new Set([
  ...["/healthz", "/readyz", "/metrics", "/migrate/result"],
]);
const RETRY_AFTER_S = 5;
/** A token of a manager may be right or wrong: it is not 401 yet. */
const UNJUDGED = {
  message:
    "Managers' tokens cannot be checked while the node's data is being moved; the static token of api.token can",
  retryAfterS: RETRY_AFTER_S,
} as const;
const NOT_JUDGED: ReadonlySet<number> = new Set([401, 503]);
const REFUSAL = {
  message:
    "The node's data is being moved; GET /migrate/result says how far it is",
  retryAfterS: RETRY_AFTER_S,
} as const;

/** The endpoint, closed but for a few paths until `isOpen`. */
export function gatedHttp(
  endpoint: HttpEndpoint,
  isOpen: () => boolean,
): HttpEndpoint {
  const routes = endpoint.routes.map((route) =>
    ALWAYS.has(route.path)
      ? withoutManagers(route, isOpen)
      : {
          ...route,
          handle: (request: Parameters<typeof route.handle>[0]) =>
            isOpen()
              ? route.handle(request)
              : errorReply("unavailable", REFUSAL),
        },
  );
  return { ...endpoint, routes };
}

type Route = HttpEndpoint["routes"][number];

/** The route; until `isOpen` who is not let in is told to come again later. `/readyz` says itself why it is 503. */
function withoutManagers(route: Route, isOpen: () => boolean): Route {
  if (route.path !== "/migrate/result" && route.path !== "/metrics")
    return route;
  return {
    ...route,
    async handle(request) {
      const reply = await route.handle(request);
      return !isOpen() && NOT_JUDGED.has(reply.status)
        ? errorReply("unavailable", UNJUDGED)
        : reply;
    },
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
