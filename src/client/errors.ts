// The SDK's errors. Each error is a JindouError. Its code is one of the server's error codes, the
// reason for a permanent close, or one of the SDK's own codes.

import { CLOSE_REASONS, type CloseReason, type ErrorCode } from "../broker/errors.ts";
import { closeReasonOf, RETRYABLE_NAMES } from "../protocol/native/errors.ts";

export const CLIENT_MESSAGES = {
  bad_option: "Invalid option",
  client_msg_no_reused: "The clientMsgNo belongs to another message; use a new one",
  closed: "The client is closed",
  connection_lost: "The connection was lost",
  handler_failed: "A handler failed",
  not_delivered: "The connection was lost twice during the send",
  no_fetch: "No fetch function",
  no_websocket: "This platform has no WebSocket; set the option webSocket",
  queue_full: "Too many waiting calls (option maxQueued)",
  timeout: "No response in time",
  token_failed: "The token function failed",
} as const;

export type ClientErrorCode = keyof typeof CLIENT_MESSAGES;

/** Error code of a refused call on a durable stream. */
type RecordStreamErrorCode =
  | "log_full"
  | "offset_lost"
  | "producer_fenced"
  | "producer_gap"
  | "stream_deleted"
  | "stream_ended"
  | "stream_type";

/** Server's code for a wrong token. The SDK reports it as `auth_failed`, like a refused login. */
type WrongToken = "unauthorized";

/** Code of a JindouError. `docs/sdk.md` explains each code. */
export type JindouErrorCode =
  | ClientErrorCode
  | Exclude<ErrorCode, WrongToken>
  | CloseReason
  | RecordStreamErrorCode;

interface ErrorOptions {
  readonly message?: string;
  readonly retryAfterMs?: number;
  readonly cause?: unknown;
}

export const RETRYABLE: ReadonlySet<string> = new Set([
  "connection_lost",
  "not_delivered",
  "queue_full",
  "timeout",
  "token_failed",
  ...RETRYABLE_NAMES,
]);

/** Class of all errors that the SDK throws or reports. */
export class JindouError extends Error {
  readonly code: JindouErrorCode;
  /** True if the same call, unchanged, may succeed later. */
  readonly retry: boolean;
  /** Number of milliseconds to wait before a retry, or 0 if the time is unknown. */
  readonly retryAfterMs: number;

  constructor(code: ClientErrorCode, options?: ErrorOptions);
  constructor(
    code: JindouErrorCode | WrongToken,
    options: ErrorOptions & { readonly message: string },
  );
  constructor(code: JindouErrorCode | WrongToken, options: ErrorOptions = {}) {
    // this table lacks most codes of errors from the server, but such an error has its own message
    const texts: Readonly<Record<string, string | undefined>> = CLIENT_MESSAGES;
    super(options.message ?? texts[code], { cause: options.cause });
    this.name = "JindouError";
    this.code = code === "unauthorized" ? "auth_failed" : code;
    this.retry = RETRYABLE.has(code);
    this.retryAfterMs = options.retryAfterMs ?? 0;
  }
}

export function kickedEventOf(code: number): {
  readonly reason: CloseReason;
  readonly code: number;
  readonly message: string;
} {
  const reason = closeReasonOf(code);
  return { reason, code, message: CLOSE_REASONS[reason].message };
}

export function hasCode(error: unknown, code: JindouErrorCode): error is JindouError {
  return error instanceof JindouError && error.code === code;
}

export function isConnectionLost(error: unknown): boolean {
  return hasCode(error, "connection_lost");
}

export function asJindouError(error: unknown, code: ClientErrorCode): JindouError {
  if (error instanceof JindouError) return error;
  const message = error instanceof Error ? error.message : String(error);
  return new JindouError(code, { message, cause: error });
}
