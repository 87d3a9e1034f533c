// Every error of the SDK is a JindouError with a code: one of the server's codes, the reason of a
// permanent close, or a code of the SDK itself. No state.

import { CLOSE_REASONS, type CloseReason, type ErrorCode } from "../broker/errors.ts";
import { closeReasonOf } from "../protocol/native/errors.ts";

/** The codes of the SDK itself. */
export const CLIENT_MESSAGES = {
  bad_option: "An option is not valid",
  closed: "The client was closed",
  connection_lost: "The connection was lost",
  handler_failed: "A handler threw",
  no_websocket: "There is no WebSocket here: pass webSocket",
  queue_full: "More than maxQueued calls are waiting",
  timeout: "No answer in time",
  token_failed: "The token function failed",
} as const;

export type ClientErrorCode = keyof typeof CLIENT_MESSAGES;

/** `docs/sdk.md` explains each. */
export type JindouErrorCode = ClientErrorCode | ErrorCode | CloseReason;

/**
 * Codes after which the same call may succeed later. The server's are copied from its table of
 * errors, which would be a tenth of the SDK; a test compares them.
 */
export const RETRYABLE: ReadonlySet<string> = new Set<JindouErrorCode>([
  "connection_lost",
  "queue_full",
  "timeout",
  "token_failed",
  "too_many_attempts",
  "rate_limited",
  "overloaded",
  "unavailable",
  "internal",
]);

/** The only error the SDK rejects with or reports. */
export class JindouError extends Error {
  readonly code: JindouErrorCode;
  /** The same call, unchanged, may succeed later. */
  readonly retry: boolean;
  /** Milliseconds to wait before a retry; 0: not known. */
  readonly retryAfterMs: number;

  constructor(
    code: JindouErrorCode,
    options: {
      readonly message?: string;
      readonly retryAfterMs?: number;
      readonly cause?: unknown;
    } = {},
  ) {
    // a refusal of the server has its own message
    const texts: Readonly<Record<string, string | undefined>> = CLIENT_MESSAGES;
    super(options.message ?? texts[code] ?? code, { cause: options.cause });
    this.name = "JindouError";
    this.code = code;
    this.retry = RETRYABLE.has(code);
    this.retryAfterMs = options.retryAfterMs ?? 0;
  }
}

/** The `kicked` event for a close code of the server. */
export function endedBy(code: number): {
  readonly reason: CloseReason;
  readonly code: number;
  readonly message: string;
} {
  const reason = closeReasonOf(code);
  return { reason, code, message: CLOSE_REASONS[reason].message };
}

/** Whether the request's connection was lost. */
export function isLost(error: unknown): boolean {
  return error instanceof JindouError && error.code === "connection_lost";
}

/** Wraps any other error as a JindouError with `code`. */
export function asJindouError(error: unknown, code: ClientErrorCode): JindouError {
  if (error instanceof JindouError) return error;
  const message = error instanceof Error ? error.message : String(error);
  return new JindouError(code, { message, cause: error });
}
