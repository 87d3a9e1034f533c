// Reason codes of WuKongIM's protocols in CONNACK, SENDACK and DISCONNECT. The numbers are the same
// in WKProto and JSON-RPC, and are part of the wire formats.

import type { ErrorCode } from "../../broker/errors.ts";

const REASONS = {
  success: 1,
  authFailed: 2,
  notSubscriber: 3,
  onDenylist: 4,
  noChannel: 5,
  payloadDecode: 9,
  notAllowedToSend: 11,
  kicked: 12,
  notInAllowlist: 13,
  systemError: 15,
  badChannelId: 16,
  banned: 19,
  rateLimited: 22,
  disbanded: 24,
  sendBanned: 25,
} as const;

export const SUCCESS_REASON = REASONS.success;
/** Reason code of a disconnect after which the client must not reconnect. */
export const KICKED_REASON = REASONS.kicked;
export const BANNED_REASON = REASONS.banned;

/**
 * Reason code of each error code. If no reason code fits, the system error is used, because clients
 * may retry after it.
 */
const BY_CODE = {
  bad_request: REASONS.systemError,
  bad_id: REASONS.badChannelId,
  bad_payload: REASONS.payloadDecode,
  bad_cursor: REASONS.systemError,
  too_large: REASONS.payloadDecode,
  reserved_uid: REASONS.authFailed,
  unauthorized: REASONS.authFailed,
  token_expired: REASONS.authFailed,
  banned: REASONS.banned,
  bad_credentials: REASONS.authFailed,
  forbidden: REASONS.notAllowedToSend,
  too_many_attempts: REASONS.rateLimited,
  channel_exists: REASONS.systemError,
  channel_not_found: REASONS.noChannel,
  not_in_channel: REASONS.notSubscriber,
  channel_disbanded: REASONS.disbanded,
  channel_banned: REASONS.banned,
  send_banned: REASONS.sendBanned,
  not_subscriber: REASONS.notSubscriber,
  stranger_refused: REASONS.notInAllowlist,
  denylisted: REASONS.onDenylist,
  not_allowlisted: REASONS.notInAllowlist,
  client_msg_no_reused: REASONS.systemError,
  refused_by_hook: REASONS.notAllowedToSend,
  client_events_off: REASONS.notAllowedToSend,
  event_type_empty: REASONS.systemError,
  stream_running: REASONS.systemError,
  stream_not_found: REASONS.systemError,
  stream_closed: REASONS.systemError,
  stream_unknown: REASONS.systemError,
  not_connected: REASONS.authFailed,
  unsupported_version: REASONS.systemError,
  malformed_frame: REASONS.payloadDecode,
  rate_limited: REASONS.rateLimited,
  overloaded: REASONS.systemError,
  unavailable: REASONS.systemError,
  too_late: REASONS.systemError,
  disk_full: REASONS.systemError,
  internal: REASONS.systemError,
} as const satisfies Record<ErrorCode, number>;

export function reasonOf(code: ErrorCode): number {
  return BY_CODE[code];
}
