// Creates the two HTTP endpoints. The control plane serves the route table, with the guard in front
// of each row. The listener for client sockets serves only the calls that read or write streams.

import type { ApiMetrics } from "../observe/metrics.ts";
import type { HttpEndpoint, HttpReply, HttpRequest, HttpRoute } from "../transport/types.ts";
import { type Dialect, JINDOU } from "./dialect.ts";
import { STREAM_REQUEST_HEADERS } from "./durable-streams/replies.ts";
import { createDurableStreamRoutes, type DurableStreamPorts } from "./durable-streams/routes.ts";
import { BODY_MEMORY_FULL, edgeReply, errorReply } from "./errors.ts";
import { CREDENTIAL_HEADERS, createGuard } from "./guard.ts";
import { notWebSocket, UPGRADE_HEADERS, wantsWebSocket } from "./misdirected.ts";
import { openApiRoute } from "./openapi.ts";
import { OPEN_TO_PAGES } from "./reply.ts";
import type { ApiRoute } from "./route.ts";
import { createRoutes, type RoutePorts } from "./routes.ts";
import { type ApiLog, createServe } from "./serve.ts";
import type { GuessLimits } from "./static-token.ts";
import { VIEWER_HEADERS } from "./stream-request.ts";
import { createStreamRoute, type StreamRoutePorts } from "./streams.ts";

export interface ApiSettings {
  /** True if calls need a credential (see `credentialRule` in protected-mode.ts). */
  readonly requiresCredential: boolean;
  readonly staticToken: string;
  readonly guessLimits: GuessLimits;
  readonly maxBodyBytes: number;
  readonly maxSubscribersPerCall: number;
  readonly version: string;
}

export interface ApiPorts extends RoutePorts {
  readonly settings: ApiSettings;
  readonly dialect: Dialect;
  readonly moreRows: readonly ApiRoute[];
  /** Counterparts of `moreRows` for calls that request the `jindou` dialect. */
  readonly plainMoreRows: readonly ApiRoute[];
  readonly log: ApiLog;
  readonly requestCounter?: ApiMetrics["requestCounter"];
}

/**
 * Creates the endpoint of the control plane. The caller must reject logins until the managers have
 * been started. Otherwise, logins with the right password would fail with `bad_credentials`.
 */
export function createHttpEndpoint(ports: ApiPorts): HttpEndpoint {
  const { settings, dialect, managers, log, requestCounter } = ports;
  const guard = createGuard({ ...settings, managers });
  const table = createRoutes(ports, settings.maxSubscribersPerCall);
  const routesOf = (spoken: Dialect, moreRows: readonly ApiRoute[]) => {
    const rows = spoken.rows([...table, ...moreRows]);
    const serve = createServe({ guard, dialect: spoken, log, requestCounter });
    return [...rows, openApiRoute(rows, settings, spoken)].map(serve);
  };
  const routes = routesOf(dialect, ports.moreRows);
  const chosenByCall = dialect === JINDOU ? [] : [DIALECT_HEADER];
  const dialectOf = (request: HttpRequest) => (wantsJindou(request) ? JINDOU : dialect);
  return {
    ...errorHandlers(dialect, dialectOf),
    notFound: (request) =>
      dialectOf(request).reply(
        wantsWebSocket(request) ? notWebSocket(ports.clientsConnectTo) : edgeReply("not_found"),
      ),
    routes: dialect === JINDOU ? routes : withJindou(routes, routesOf(JINDOU, ports.plainMoreRows)),
    headers: [
      ...CREDENTIAL_HEADERS,
      "content-type",
      "content-encoding",
      ...UPGRADE_HEADERS,
      ...chosenByCall,
    ],
    maxBodyBytes: settings.maxBodyBytes,
  };
}

/** Request header that selects the `jindou` dialect if its value is `jindou`. */
const DIALECT_HEADER = "jindou-dialect";

function wantsJindou({ headers }: HttpRequest): boolean {
  return headers[DIALECT_HEADER] === "jindou";
}

/**
 * Returns the routes. A route that has a counterpart in `plain` passes calls that request the
 * `jindou` dialect to the counterpart.
 */
function withJindou(routes: readonly HttpRoute[], plain: readonly HttpRoute[]): HttpRoute[] {
  return routes.map((route) => {
    const other = plain.find(({ method, path }) => method === route.method && path === route.path);
    if (other === undefined) return route;
    const routeOf = (request: HttpRequest) => (wantsJindou(request) ? other : route);
    return {
      ...route,
      admit: (request) => routeOf(request).admit?.(request),
      handle: (request) => routeOf(request).handle(request),
    };
  });
}

/** Creates the endpoint of the client listener, where every call needs a credential. */
export function createViewerEndpoint(
  ports: StreamRoutePorts &
    DurableStreamPorts &
    Pick<ApiPorts, "channels" | "managers" | "log" | "requestCounter"> & {
      readonly settings: Omit<ApiSettings, "requiresCredential">;
    },
): HttpEndpoint {
  const { settings, managers, log, requestCounter } = ports;
  const guard = createGuard({ ...settings, managers, requiresCredential: true });
  const serve = createServe({ guard, dialect: JINDOU, log, requestCounter });
  const routes = [createStreamRoute(ports, "viewers"), ...createDurableStreamRoutes(ports)];
  return {
    ...errorHandlers(JINDOU, () => JINDOU),
    routes: routes.map(serve),
    headers: CREDENTIAL_HEADERS,
    maxBodyBytes: settings.maxBodyBytes,
    notFound: () => SOCKETS_ONLY,
  };
}

function errorHandlers(
  { reply }: Pick<Dialect, "reply">,
  dialectOf: (request: HttpRequest) => Dialect,
) {
  return {
    wrongMethod: (request: HttpRequest, allow: string) =>
      dialectOf(request).reply(refuseMethod(request, allow)),
    tooLarge: (request: HttpRequest) => dialectOf(request).reply(edgeReply("body_too_large")),
    malformed: (message: string) => reply(errorReply("bad_request", { message })),
    headTooLarge: () => reply(edgeReply("head_too_large")),
    busy: () => reply(errorReply("overloaded", BODY_MEMORY_FULL)),
  };
}

const SOCKETS_ONLY: HttpReply = Object.freeze({
  status: 426,
  headers: Object.freeze({
    upgrade: "websocket",
    "content-type": "text/plain",
  }),
  body: "This address serves WebSocket connections of clients, and streams at /stream and /v1/stream. The HTTP API for backends is at api.listen.\n",
});

const preflight = (methods: string, headers: readonly string[]): HttpReply =>
  Object.freeze({
    status: 204,
    headers: Object.freeze({
      ...OPEN_TO_PAGES,
      "access-control-allow-methods": methods,
      // The wildcard allows the headers that tracing libraries add to every request.
      "access-control-allow-headers": ["*", ...headers].join(),
      "access-control-max-age": "86400",
      "cache-control": "no-store",
      "x-content-type-options": "nosniff",
    }),
    body: "",
  });

const VIEWER_PREFLIGHT = preflight("GET", ["last-event-id", ...VIEWER_HEADERS]);
/**
 * Reply to preflight requests under /v1/. Lists `authorization`, because the wildcard `*` does not
 * include it [Fetch: CORS protocol].
 */
const V1_PREFLIGHT = preflight("GET,HEAD,PUT,POST,DELETE", [
  "authorization",
  ...STREAM_REQUEST_HEADERS,
  ...VIEWER_HEADERS,
]);

/**
 * Rejects an unsupported method, but replies to preflight requests for streams. Without that reply,
 * a browser sends neither viewer headers nor Durable Streams headers.
 */
function refuseMethod({ method, path }: HttpRequest, allow: string): HttpReply {
  if (method === "OPTIONS" && path.startsWith("/stream/")) return VIEWER_PREFLIGHT;
  if (method === "OPTIONS" && path.startsWith("/v1/")) return V1_PREFLIGHT;
  return edgeReply("method_not_allowed", { allow });
}
