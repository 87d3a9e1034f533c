// How the native protocol spells errors and close reasons. Tables only. The spellings are part of the wire format:
// they stay as they are when the domain renames a code.

import {
  CLOSE_REASONS,
  type CloseReason,
  type ErrorCode,
} from "../../broker/errors.ts";

/** Each code as an ERROR frame spells it; whether a retry may help stands in the domain's table. */
export const WIRE_CODES = {
  bad_request: "bad_request",
  bad_id: "bad_id",
  bad_payload: "bad_payload",
  too_large: "too_large",
  reserved_uid: "reserved_uid",
  unauthorized: "unauthorized",
  bad_credentials: "bad_credentials",
  forbidden: "forbidden",
  too_many_attempts: "too_many_attempts",
  channel_exists: "channel_exists",
  channel_not_found: "channel_not_found",
  not_in_channel: "not_in_channel",
  channel_disbanded: "channel_disbanded",
  channel_banned: "channel_banned",
  send_banned: "send_banned",
  not_subscriber: "not_subscriber",
  stranger_refused: "stranger_refused",
  event_type_empty: "event_type_empty",
  stream_running: "stream_running",
  stream_not_found: "stream_not_found",
  stream_closed: "stream_closed",
  stream_unknown: "stream_unknown",
  not_connected: "not_connected",
  unsupported_version: "unsupported_version",
  malformed_frame: "malformed_frame",
  rate_limited: "rate_limited",
  overloaded: "overloaded",
  unavailable: "unavailable",
  internal: "internal",
} as const satisfies Record<ErrorCode, string>;

/** Each close reason as a DISCONNECT frame names it; its number is the WebSocket close code. */
export const WIRE_REASONS = {
  draining: "draining",
  slow_reader: "slow_reader",
  replaced: "replaced",
  rate_limited: "rate_limited",
  auth_timeout: "auth_timeout",
  unavailable: "unavailable",
  kicked: "kicked",
  auth_failed: "auth_failed",
  token_changed: "token_changed",
  logged_out: "logged_out",
  protocol_error: "protocol_error",
  goodbye: "goodbye",
} as const satisfies Record<CloseReason, string>;

const CODES: ReadonlyMap<string, ErrorCode> = new Map(
  keysOf(WIRE_CODES).map((code) => [WIRE_CODES[code], code]),
);

/** For clients: the code of a wire name. A name of a newer server becomes one with the same answer to "retry?". */
export function errorCodeOf(name: string, retry: boolean): ErrorCode {
  return CODES.get(name) ?? (retry ? "unavailable" : "bad_request");
}

/** For clients: the reason of a close code. That of a newer server becomes one of the same range. */
export function closeReasonOf(code: number): CloseReason {
  const reasons = keysOf(CLOSE_REASONS);
  const known = reasons.find((reason) => CLOSE_REASONS[reason].code === code);
  if (known !== undefined) return known;
  if (code < CLOSE_REASONS.rate_limited.code) return "draining";
  return code < CLOSE_REASONS.kicked.code ? "unavailable" : "protocol_error";
}

function keysOf<K extends string>(table: Readonly<Record<K, unknown>>): K[] {
  return Object.keys(table) as K[]; // Object.keys loses the key type of a closed table
}
