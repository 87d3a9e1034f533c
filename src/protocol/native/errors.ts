// Names of errors and close reasons in the native protocol. The names are part of the wire format,
// and do not change when the broker renames a code.

import { CLOSE_REASONS, type CloseReason, type ErrorCode } from "../../broker/errors.ts";

/** Name of each error code. 0 means that the name is the code itself. */
const NAMES: Readonly<Record<ErrorCode, string | 0>> = {
  bad_request: 0,
  bad_id: 0,
  bad_payload: 0,
  bad_cursor: 0,
  too_large: 0,
  reserved_uid: 0,
  unauthorized: 0,
  token_expired: 0,
  banned: 0,
  bad_credentials: 0,
  forbidden: 0,
  too_many_attempts: 0,
  channel_exists: 0,
  channel_not_found: 0,
  not_in_channel: 0,
  channel_disbanded: 0,
  channel_banned: 0,
  send_banned: 0,
  not_subscriber: 0,
  stranger_refused: 0,
  denylisted: 0,
  not_allowlisted: 0,
  client_msg_no_reused: 0,
  refused_by_hook: 0,
  client_events_off: 0,
  event_type_empty: 0,
  stream_running: 0,
  stream_not_found: 0,
  stream_closed: 0,
  stream_unknown: 0,
  not_connected: 0,
  unsupported_version: 0,
  malformed_frame: 0,
  rate_limited: 0,
  overloaded: 0,
  unavailable: 0,
  too_late: 0,
  disk_full: 0,
  internal: 0,
};

export const WIRE_REASONS = {
  draining: "draining",
  slow_reader: "slow_reader",
  replaced: "replaced",
  rate_limited: "rate_limited",
  auth_timeout: "auth_timeout",
  unavailable: "unavailable",
  token_expired: "token_expired",
  kicked: "kicked",
  auth_failed: "auth_failed",
  token_changed: "token_changed",
  logged_out: "logged_out",
  protocol_error: "protocol_error",
  goodbye: "goodbye",
  banned: "banned",
} as const satisfies Record<CloseReason, string>;

/**
 * Names of the errors after which a retry may help. A table of all names would make the SDK 2%
 * larger.
 */
export const RETRYABLE_NAMES: readonly string[] = [
  "too_many_attempts",
  "rate_limited",
  "overloaded",
  "unavailable",
  "too_late",
  "disk_full",
  "internal",
];

export function wireCodeOf(code: ErrorCode): string {
  return NAMES[code] || code;
}

/**
 * Returns the code for a name. If a retry may help, every name outside `RETRYABLE_NAMES` becomes
 * `unavailable`, so that the SDK retries.
 */
export function errorCodeOf(name: string, retry: boolean): ErrorCode {
  return retry && !RETRYABLE_NAMES.includes(name) ? "unavailable" : (name as ErrorCode);
}

/** Returns the reason for a close code. An unknown code is mapped to a reason in the same range. */
export function closeReasonOf(code: number): CloseReason {
  const reasons = keysOf(CLOSE_REASONS);
  const exactReason = reasons.find((reason) => CLOSE_REASONS[reason].code === code);
  if (exactReason !== undefined) return exactReason;
  if (code < CLOSE_REASONS.rate_limited.code) return "draining";
  return code < CLOSE_REASONS.kicked.code ? "unavailable" : "protocol_error";
}

function keysOf<K extends string>(table: Readonly<Record<K, unknown>>): K[] {
  return Object.keys(table) as K[]; // Object.keys returns `string[]`
}
