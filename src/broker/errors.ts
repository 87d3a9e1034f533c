// The table of error codes and the table of close reasons. Each edge (HTTP and the client
// protocols) maps every entry to its own codes, and does not compile if an entry is not mapped.

interface ErrorMeaning {
  readonly message: string;
  /** True if the same call may succeed later. */
  readonly retry: boolean;
}

export const ERRORS = {
  bad_request: { message: "The request is not valid", retry: false },
  bad_id: {
    message: "An id must have 1 to 128 characters, no control characters and none of @ # &",
    retry: false,
  },
  bad_payload: {
    message: 'payload must be a JSON object whose field "type" is an integer',
    retry: false,
  },
  bad_cursor: {
    message: "The cursor is not valid for this user; start again without a cursor",
    retry: false,
  },
  too_large: { message: "The request exceeds a size limit", retry: false },
  reserved_uid: {
    message: "This uid is reserved for the system",
    retry: false,
  },
  unauthorized: { message: "A valid credential is required", retry: false },
  token_expired: { message: "The token has expired", retry: false },
  banned: { message: "The account is banned", retry: false },
  bad_credentials: {
    message: "Invalid username or password",
    retry: false,
  },
  forbidden: {
    message: "The credential does not allow this call",
    retry: false,
  },
  too_many_attempts: { message: "Too many failed logins; try again later", retry: true },
  channel_exists: { message: "The channel id already exists", retry: false },
  channel_not_found: { message: "The channel does not exist", retry: false },
  not_in_channel: { message: "The user is not in the channel", retry: false },
  channel_disbanded: { message: "The channel is disbanded", retry: false },
  channel_banned: { message: "Only system accounts may send to the channel", retry: false },
  send_banned: { message: "Sending is disabled for the group or the sender", retry: false },
  not_subscriber: {
    message: "The sender is not a member of the channel",
    retry: false,
  },
  stranger_refused: {
    message: "The receiver does not accept messages from strangers",
    retry: false,
  },
  denylisted: {
    message: "The sender is on the denylist of the channel",
    retry: false,
  },
  not_allowlisted: {
    message: "The sender is not on the allowlist of the channel",
    retry: false,
  },
  client_msg_no_reused: {
    message:
      "The client_msg_no belongs to a message with a different payload; send this message with a new client_msg_no",
    retry: false,
  },
  refused_by_hook: {
    message: "Refused by the backend",
    retry: false,
  },
  client_events_off: {
    message: "The channel accepts no events from clients; create or update it with client_events 1",
    retry: false,
  },
  event_type_empty: { message: "Event type cannot be empty", retry: false },
  stream_running: {
    message: "Stream already running in channel",
    retry: false,
  },
  stream_not_found: { message: "Stream does not exist", retry: false },
  stream_closed: { message: "Stream is already closed", retry: false },
  /** Sent to a stream's readers. Producers get `stream_not_found`. */
  stream_unknown: { message: "The stream does not exist", retry: false },
  not_connected: {
    message: "The first frame must be a connect frame",
    retry: false,
  },
  unsupported_version: {
    message: "The protocol version is not supported",
    retry: false,
  },
  malformed_frame: { message: "The frame cannot be read", retry: false },
  rate_limited: {
    message: "The client sends too much; wait and try again",
    retry: true,
  },
  overloaded: { message: "The node is overloaded; try again later", retry: true },
  unavailable: { message: "The service is unavailable; try again later", retry: true },
  disk_full: {
    message: "The disk of the store is full; free some space on it",
    retry: true,
  },
  too_late: {
    message: "The call reached the store after its deadline and changed nothing; try again",
    retry: true,
  },
  internal: { message: "Internal server error", retry: true },
} as const satisfies Record<string, ErrorMeaning>;

export type ErrorCode = keyof typeof ERRORS;

/** Returns true if a retry may succeed, which is always the case if `retryAfterMs` is above 0. */
export function mayRetry(code: ErrorCode, retryAfterMs: number): boolean {
  return ERRORS[code].retry || retryAfterMs > 0;
}

export type SendRefusal = Extract<
  ErrorCode,
  | "channel_disbanded"
  | "channel_banned"
  | "send_banned"
  | "not_subscriber"
  | "stranger_refused"
  | "denylisted"
  | "not_allowlisted"
  | "refused_by_hook"
>;

export interface ErrorDetail {
  readonly path: string;
  readonly message: string;
}

/**
 * The error with which a call fails. Its message is sent to the caller and must not contain
 * secrets.
 */
export class BrokerError extends Error {
  readonly code: ErrorCode;
  readonly details: readonly ErrorDetail[] | undefined;
  /** Whole milliseconds after which a retry may succeed. `undefined` if this time is unknown. */
  readonly retryAfterMs: number | undefined;

  constructor(
    code: ErrorCode,
    options: {
      readonly message?: string;
      readonly details?: readonly ErrorDetail[];
      readonly retryAfterMs?: number;
      readonly cause?: unknown;
    } = {},
  ) {
    super(options.message ?? ERRORS[code].message, { cause: options.cause });
    this.name = "BrokerError";
    this.code = code;
    this.details = options.details;
    const { retryAfterMs } = options;
    this.retryAfterMs = retryAfterMs === undefined ? undefined : Math.ceil(retryAfterMs);
  }

  get retryAfterS(): number | undefined {
    const { retryAfterMs } = this;
    return retryAfterMs === undefined ? undefined : Math.ceil(retryAfterMs / 1000);
  }
}

const TRANSIENT: ReadonlySet<ErrorCode> = new Set([
  "unavailable",
  "overloaded",
  "too_late",
  "disk_full",
]);

export function isTransient(error: unknown): boolean {
  if (!(error instanceof BrokerError)) return false;
  return TRANSIENT.has(error.code);
}

/**
 * Returns true if the store may have executed the call. Errors without a cause occur before the
 * call is sent.
 */
export function mayHaveRun(error: unknown): boolean {
  return isTransient(error) && error instanceof Error && error.cause !== undefined;
}

/**
 * Reasons to close a client's connection, with their WebSocket close codes. The range of a code
 * determines what the client does:
 *
 *     4000 to 4099  reconnect at once and resume
 *     4100 to 4199  reconnect after a pause
 *     4200 to 4299  do not reconnect
 */
export const CLOSE_REASONS = {
  draining: { code: 4000, message: "The node is shutting down" },
  slow_reader: { code: 4001, message: "The client reads too slowly" },
  replaced: { code: 4202, message: "The device opened a newer session" },
  rate_limited: { code: 4100, message: "Too many frames, bytes or logins" },
  auth_timeout: { code: 4101, message: "No login was completed in time" },
  unavailable: { code: 4102, message: "The node cannot serve sessions now" },
  token_expired: { code: 4103, message: "The token has expired" },
  kicked: {
    code: 4200,
    message: "Another main device logged in, or a backend ended the session",
  },
  auth_failed: { code: 4201, message: "The credential is not valid" },
  token_changed: { code: 4203, message: "The token was changed" },
  logged_out: { code: 4204, message: "The device was logged out" },
  protocol_error: { code: 4205, message: "The client violated the protocol" },
  goodbye: { code: 4206, message: "The client ended the session" },
  banned: { code: 4207, message: "The account is banned" },
} as const satisfies Record<string, { readonly code: number; readonly message: string }>;

export type CloseReason = keyof typeof CLOSE_REASONS;

/**
 * Reasons after which the end of a user's last session is pushed to the user's watchers without
 * delay [decisions: Presence told to watchers].
 */
export const FINAL_REASONS: ReadonlySet<CloseReason | undefined> = new Set<CloseReason>([
  "goodbye",
  "logged_out",
  "banned",
]);

/** Reasons for ending a session that concern the session's user rather than the connection. */
export const KICK_REASONS: readonly CloseReason[] = [
  "kicked",
  "token_changed",
  "logged_out",
  "banned",
];
