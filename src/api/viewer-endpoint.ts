// What a listener for client sockets serves over HTTP beside them: streams, for viewers with a token of their own, and nothing else. State: none.

import type {
  HttpEndpoint,
  HttpReply,
  HttpRequest,
} from "../transport/types.ts";
import { edgeReply, errorReply, NO_ROOM } from "./errors.ts";
import { OPEN_TO_PAGES } from "./reply.ts";
import { createServe, type ReplyObserver } from "./serve.ts";
import { VIEWER_HEADERS } from "./stream-request.ts";
import { createStreamRoute, type StreamRouteParts } from "./stream-route.ts";

export interface ViewerEndpointParts extends StreamRouteParts {
  readonly log: Parameters<typeof createServe>[0]["log"];
  readonly observe?: ReplyObserver;
}

const SOCKETS_ONLY: HttpReply = Object.freeze({
  status: 426,
  headers: Object.freeze({
    upgrade: "websocket",
    "content-type": "text/plain",
  }),
  body: "This address serves WebSocket connections, and streams at /stream.\n",
});

export function createViewerEndpoint(parts: ViewerEndpointParts): HttpEndpoint {
  const { log, observe } = parts;
  const guard = () => errorReply("unauthorized"); // the row admits viewers by itself
  const serve = createServe({ guard, log, observe });
  return {
    routes: [serve(createStreamRoute(parts, "viewers"))],
    headers: ["origin"],
    maxBodyBytes: 0,
    notFound: () => SOCKETS_ONLY,
    wrongMethod: refuseMethod,
    tooLarge: () => edgeReply("body_too_large"),
    malformed: (message) => errorReply("bad_request", { message }),
    busy: () => errorReply("overloaded", NO_ROOM),
  };
}

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

/** Browsers ask first when a page puts a viewer's token into a header; anything else is refused. */
export function refuseMethod(request: HttpRequest, allow: string): HttpReply {
  const isStream = request.path.startsWith("/stream/");
  if (request.method === "OPTIONS" && isStream) return PREFLIGHT;
  return edgeReply("method_not_allowed", { allow });
}
