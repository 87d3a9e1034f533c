// The two HTTP endpoints: the control plane, which is the route table with each row behind the
// guard, and what a listener for client sockets serves beside them: streams for viewers. State:
// none.

import type { ApiMetrics } from "../observe/metrics.ts";
import type { HttpEndpoint, HttpReply, HttpRequest } from "../transport/types.ts";
import { type Dialect, JINDOU } from "./dialect.ts";
import { edgeReply, errorReply, NO_ROOM } from "./errors.ts";
import { CREDENTIAL_HEADERS, createGuard } from "./guard.ts";
import { openApiRoute } from "./openapi.ts";
import { OPEN_TO_PAGES } from "./reply.ts";
import { createRoutes, type RouteParts } from "./routes.ts";
import { type ApiLog, createServe } from "./serve.ts";
import { VIEWER_HEADERS } from "./stream-request.ts";
import { createStreamRoute, type StreamRouteParts } from "./streams.ts";
import { createWukongimDialect } from "./wukongim.ts";

export interface ApiSettings {
  /** See `credentialRule` in protected-mode.ts. */
  readonly requiresCredential: boolean;
  /** "" = none. */
  readonly staticToken: string;
  readonly maxBodyBytes: number;
  readonly maxSubscribersPerCall: number;
  readonly dialect: "jindou" | "wukongim";
  /** Of the product, for the OpenAPI document. */
  readonly version: string;
}

export interface ApiParts extends RouteParts {
  readonly settings: ApiSettings;
  readonly log: ApiLog;
  readonly observe?: ApiMetrics["request"];
}

/** The control plane. Its managers must be started before the listener is. */
export function createHttpEndpoint(parts: ApiParts): HttpEndpoint {
  const { settings, managers, log, observe } = parts;
  const guard = createGuard({ ...settings, managers });
  const limit = settings.maxSubscribersPerCall;
  const dialect = settings.dialect === "wukongim" ? createWukongimDialect(parts, limit) : JINDOU;
  const serve = createServe({ guard, dialect, log, observe });
  const routes = dialect.rows(createRoutes(parts, limit));
  return {
    ...refusals(dialect),
    routes: [...routes, openApiRoute(routes, settings, dialect)].map(serve),
    headers: [...CREDENTIAL_HEADERS, "content-type"],
    maxBodyBytes: settings.maxBodyBytes,
  };
}

/** On a listener for client sockets: streams, for viewers with a token of their own. */
export function createViewerEndpoint(
  parts: StreamRouteParts & Pick<ApiParts, "log" | "observe">,
): HttpEndpoint {
  const { log, observe } = parts;
  const guard = () => errorReply("unauthorized"); // the row admits viewers itself
  const serve = createServe({ guard, dialect: JINDOU, log, observe });
  return {
    ...refusals(JINDOU),
    routes: [serve(createStreamRoute(parts, "viewers"))],
    headers: ["origin"],
    maxBodyBytes: 0,
    notFound: () => SOCKETS_ONLY,
  };
}

/** Of calls that reach no row. */
function refusals({ reply }: Pick<Dialect, "reply">) {
  return {
    notFound: () => reply(edgeReply("not_found")),
    wrongMethod: (request: HttpRequest, allow: string) => reply(refuseMethod(request, allow)),
    tooLarge: () => reply(edgeReply("body_too_large")),
    malformed: (message: string) => reply(errorReply("bad_request", { message })),
    busy: () => reply(errorReply("overloaded", NO_ROOM)),
  };
}

const SOCKETS_ONLY: HttpReply = Object.freeze({
  status: 426,
  headers: Object.freeze({
    upgrade: "websocket",
    "content-type": "text/plain",
  }),
  body: "This address serves WebSocket connections, and streams at /stream.\n",
});

const PREFLIGHT: HttpReply = Object.freeze({
  status: 204,
  headers: Object.freeze({
    ...OPEN_TO_PAGES,
    "access-control-allow-methods": "GET",
    "access-control-allow-headers": ["last-event-id", ...VIEWER_HEADERS].join(),
    "access-control-max-age": "86400",
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
  }),
  body: "",
});

/** A page that sends a viewer's token in a header makes its browser send a preflight. */
function refuseMethod(request: HttpRequest, allow: string): HttpReply {
  const isStream = request.path.startsWith("/stream/");
  if (request.method === "OPTIONS" && isStream) return PREFLIGHT;
  return edgeReply("method_not_allowed", { allow });
}
