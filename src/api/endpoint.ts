// The control plane as one HTTP endpoint: the route table, built once over the use cases, each row behind the guard. State: none.

import type { HttpEndpoint } from "../transport/types.ts";
import { edgeReply, errorReply, NO_ROOM } from "./errors.ts";
import { CREDENTIAL_HEADERS, createGuard } from "./guard.ts";
import { openApiRoute } from "./openapi.ts";
import { createRoutes, type RouteParts } from "./routes.ts";
import { type ApiLog, createServe, type ReplyObserver } from "./serve.ts";
import { refuseMethod } from "./viewer-endpoint.ts";

export interface ApiSettings {
  /** See `credentialRule` in protected-mode.ts. */
  readonly requiresCredential: boolean;
  /** "" = none. */
  readonly staticToken: string;
  readonly maxBodyBytes: number;
  readonly maxSubscribersPerCall: number;
  /** Of the product, for the OpenAPI document. */
  readonly version: string;
}

export interface ApiParts extends RouteParts {
  readonly settings: ApiSettings;
  readonly log: ApiLog;
  readonly observe?: ReplyObserver;
}

/** Everything the control plane serves. Its managers must be started before the listener is. */
export function createHttpEndpoint(parts: ApiParts): HttpEndpoint {
  const { settings, managers, log, observe } = parts;
  const guard = createGuard({ ...settings, managers });
  const serve = createServe({ guard, log, observe });
  const routes = createRoutes(parts, settings);
  return {
    routes: [...routes, openApiRoute(routes, settings)].map(serve),
    headers: [...CREDENTIAL_HEADERS, "content-type"],
    maxBodyBytes: settings.maxBodyBytes,
    notFound: () => edgeReply("not_found"),
    wrongMethod: refuseMethod,
    tooLarge: () => edgeReply("body_too_large"),
    malformed: (message) => errorReply("bad_request", { message }),
    busy: () => errorReply("overloaded", NO_ROOM),
  };
}
