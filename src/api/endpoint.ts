// Creates the two HTTP endpoints. The control plane serves the route table, with the guard in front
// of each row. The listener for client sockets serves only streams for viewers.

import type { ApiMetrics } from "../observe/metrics.ts";
import type { HttpEndpoint, HttpReply, HttpRequest } from "../transport/types.ts";
import { type Dialect, JINDOU } from "./dialect.ts";
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
  readonly log: ApiLog;
  readonly observe?: ApiMetrics["request"];
}

/** Creates the endpoint of the control plane. The managers must be started before the listener. */
export function createHttpEndpoint(ports: ApiPorts): HttpEndpoint {
  const { settings, dialect, moreRows, managers, log, observe } = ports;
  const guard = createGuard({ ...settings, managers });
  const serve = createServe({ guard, dialect, log, observe });
  const routes = dialect.rows([
    ...createRoutes(ports, settings.maxSubscribersPerCall),
    ...moreRows,
  ]);
  return {
    ...errorHandlers(dialect),
    notFound: (request) =>
      dialect.reply(
        wantsWebSocket(request) ? notWebSocket(ports.clientsConnectTo) : edgeReply("not_found"),
      ),
    routes: [...routes, openApiRoute(routes, settings, dialect)].map(serve),
    headers: [...CREDENTIAL_HEADERS, "content-type", "content-encoding", ...UPGRADE_HEADERS],
    maxBodyBytes: settings.maxBodyBytes,
  };
}

export function createViewerEndpoint(
  ports: StreamRoutePorts & Pick<ApiPorts, "log" | "observe">,
): HttpEndpoint {
  const { log, observe } = ports;
  const guard = () => errorReply("unauthorized"); // never called: the row's `admit` checks viewers
  const serve = createServe({ guard, dialect: JINDOU, log, observe });
  return {
    ...errorHandlers(JINDOU),
    routes: [serve(createStreamRoute(ports, "viewers"))],
    headers: ["origin"],
    maxBodyBytes: 0,
    notFound: () => SOCKETS_ONLY,
  };
}

function errorHandlers({ reply }: Pick<Dialect, "reply">) {
  return {
    wrongMethod: (request: HttpRequest, allow: string) => reply(refuseMethod(request, allow)),
    tooLarge: () => reply(edgeReply("body_too_large")),
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
  body: "This address serves WebSocket connections of clients, and streams at /stream. The HTTP API for backends is at api.listen.\n",
});

const PREFLIGHT: HttpReply = Object.freeze({
  status: 204,
  headers: Object.freeze({
    ...OPEN_TO_PAGES,
    "access-control-allow-methods": "GET",
    // The wildcard allows the headers that tracing libraries add to every request.
    "access-control-allow-headers": ["*", "last-event-id", ...VIEWER_HEADERS].join(),
    "access-control-max-age": "86400",
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
  }),
  body: "",
});

/**
 * Rejects a method, except a preflight request for a stream. Without a reply to it, a browser does
 * not send a viewer's token in a header.
 */
function refuseMethod(request: HttpRequest, allow: string): HttpReply {
  const isStream = request.path.startsWith("/stream/");
  if (request.method === "OPTIONS" && isStream) return PREFLIGHT;
  return edgeReply("method_not_allowed", { allow });
}
