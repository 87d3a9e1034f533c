// Error replies: the HTTP status of each error code, and the JSON body that all errors share. Must
// never show the message of an unexpected exception.

import { BrokerError, ERRORS, type ErrorCode, type ErrorDetail } from "../broker/errors.ts";
import type { HttpReply } from "../transport/types.ts";
import { JSON_HEADERS } from "./reply.ts";

/** HTTP status of each error code. `too_large` is 413 only if the HTTP body itself is too large. */
export const HTTP_STATUS = {
  bad_request: 400,
  bad_id: 400,
  bad_payload: 400,
  bad_cursor: 400,
  too_large: 400,
  reserved_uid: 400,
  event_type_empty: 400,
  stream_running: 400,
  stream_not_found: 400,
  stream_closed: 400,
  not_connected: 400,
  unsupported_version: 400,
  malformed_frame: 400,
  unauthorized: 401,
  token_expired: 401,
  bad_credentials: 401,
  forbidden: 403,
  banned: 403,
  channel_disbanded: 403,
  channel_banned: 403,
  send_banned: 403,
  not_subscriber: 403,
  stranger_refused: 403,
  denylisted: 403,
  not_allowlisted: 403,
  refused_by_hook: 403,
  client_events_off: 403,
  channel_not_found: 404,
  not_in_channel: 404,
  stream_unknown: 404,
  channel_exists: 409,
  client_msg_no_reused: 409,
  too_many_attempts: 429,
  rate_limited: 429,
  internal: 500,
  overloaded: 503,
  unavailable: 503,
  too_late: 503,
  disk_full: 503,
} as const satisfies Record<ErrorCode, number>;

/** Errors that occur only in HTTP and therefore have no code in the broker. */
export const EDGE_ERRORS = {
  not_found: {
    status: 404,
    message: "This path does not exist; GET /openapi.json lists all calls",
  },
  method_not_allowed: {
    status: 405,
    message: "The path does not support this method",
  },
  head_too_large: {
    status: 431,
    message: "The request line and the headers together are larger than transport.maxHeadBytes",
  },
  stream_deleted: {
    status: 410,
    message: "The stream was deleted or has expired, but forks of it still exist",
  },
  offset_lost: {
    status: 410,
    message:
      "The stream has no such offset: the stream was created again, or the store has lost its last writes. Read again from offset -1",
  },
  stream_exists: {
    status: 409,
    message:
      "The stream already exists with a different content type, time to live, expiry time, origin or state",
  },
  stream_ended: { status: 409, message: "The stream is closed" },
  stream_type: {
    status: 409,
    message: "The Content-Type differs from the stream's",
  },
  stream_seq_conflict: {
    status: 409,
    message: "Stream-Seq must be higher than the stream's last Stream-Seq in bytewise comparison",
  },
  producer_gap: { status: 409, message: "Earlier requests from the producer are missing" },
  producer_fenced: {
    status: 403,
    message: "A producer with this id and a higher Producer-Epoch has written to the stream",
  },
  events_off: {
    status: 409,
    message:
      'The event feed is off. Turn it on with POST /events/feed {"feed":"on"}, or with jindou events on',
  },
  cursor_expired: {
    status: 410,
    message: "The feed no longer has the events after the cursor. Continue from `oldest`",
  },
  webhook_not_found: {
    status: 404,
    message: "There is no webhook with this id; GET /webhooks lists all webhooks",
  },
  webhook_failure_not_found: {
    status: 404,
    message:
      "The webhook has no failure with this event id; GET /webhooks/{id}/failures lists its failures",
  },
  webhook_fixed: {
    status: 409,
    message: "The webhook is defined in the configuration file; change it there",
  },
  webhook_limit: {
    status: 409,
    message: "The number of webhooks has reached webhooks.max; delete one or raise the limit",
  },
  url_refused: { status: 400, message: "Webhooks cannot be sent to this URL; use another one" },
  log_full: {
    status: 413,
    message: "The stream, its chain of forks or its channel has reached a limit",
  },
  body_too_large: { status: 413, message: "The request body is too large" },
  unsupported_media_type: {
    status: 415,
    message: "The body must be sent with Content-Type: application/json",
  },
  unsupported_encoding: {
    status: 415,
    message: "The body has a Content-Encoding, which is not supported; send it without compression",
  },
  importing: {
    status: 503,
    message:
      "An import is open; until it is closed, calls from clients and write calls outside the import are rejected",
  },
  import_closed: {
    status: 409,
    message: "No import is open, and a closed import cannot be opened again",
  },
  import_refused: {
    status: 409,
    message: "The store is not empty. Open the import on a node with an empty store",
  },
  not_websocket: {
    status: 400,
    message:
      "This address is the HTTP API, which accepts no WebSocket connections; connect to client.listen",
  },
} as const;

export type EdgeCode = keyof typeof EDGE_ERRORS;

/** Matches a content coding that is safe to repeat in a reply. */
const CODING = /^[\w.-]{1,32}$/;

/**
 * Rejects a compressed body. The reply header asks clients to send the body without compression.
 */
export function unsupportedEncoding(coding: string): HttpReply {
  const named = CODING.test(coding) ? ` (${coding})` : "";
  return edgeReply(
    "unsupported_encoding",
    { "accept-encoding": "identity" },
    `The body has a Content-Encoding${named}, which is not supported; send it without compression`,
  );
}

interface ErrorReplyOptions {
  readonly message?: string | undefined;
  readonly details?: readonly ErrorDetail[] | undefined;
  readonly retryAfterS?: number | undefined;
  /** Status to use instead of the code's usual status. */
  readonly status?: number | undefined;
}

export const BODY_MEMORY_FULL = {
  message: "Too many request bodies are being received at once; retry later",
} as const satisfies ErrorReplyOptions;

/** Rejects a call without a uid. A personal channel cannot be identified without it. */
export function uidRequired(message = "uid is required for a personal channel"): HttpReply {
  return errorReply("bad_request", { message, details: [{ path: "uid", message: "is required" }] });
}

export function errorReply(code: ErrorCode, options: ErrorReplyOptions = {}): HttpReply {
  const { status = HTTP_STATUS[code], message = ERRORS[code].message, details } = options;
  const body = { error: message, code, status, details };
  const headers = extraHeaders(status, options.retryAfterS);
  return {
    status,
    headers: headers === undefined ? JSON_HEADERS : { ...JSON_HEADERS, ...headers },
    body: JSON.stringify(body),
  };
}

export function edgeReply(
  edge: EdgeCode,
  headers: Readonly<Record<string, string>> = {},
  message: string = EDGE_ERRORS[edge].message,
): HttpReply {
  const { status } = EDGE_ERRORS[edge];
  const code = edge === "body_too_large" ? "too_large" : edge;
  return {
    status,
    headers: { ...JSON_HEADERS, ...headers },
    body: JSON.stringify({ error: message, code, status }),
  };
}

export function thrownReply(thrown: unknown): HttpReply {
  if (!(thrown instanceof BrokerError) || thrown.code === "internal") return errorReply("internal");
  return errorReply(thrown.code, thrown);
}

function extraHeaders(
  status: number,
  retryAfterS = 1,
): Readonly<Record<string, string>> | undefined {
  if (status === 401) return { "www-authenticate": "Bearer" };
  if (status === 429 || status === 503) return { "retry-after": String(retryAfterS) };
  return undefined;
}
