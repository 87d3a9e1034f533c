// Every error of the SDK is a JindouError with a code: the server's own codes, the reasons for which it closes for good, and the few that
// arise here. No state.

import {
  CLOSE_REASONS,
  type CloseReason,
  type ErrorCode,
} from "../broker/errors.ts";
import { closeReasonOf } from "../protocol/native/errors.ts";

/** What goes wrong without the server saying so. */
export const CLIENT_MESSAGES = {
  bad_option: "An option is not valid",
  closed: "The client was closed",
  connection_lost: "The connection was lost",
  handler_failed: "A handler threw",
  no_websocket: "There is no WebSocket here: install ws or pass webSocket",
  queue_full: "Too much is waiting: maxQueued calls",
  timeout: "No answer came in time",
  token_failed: "No token could be had",
} as const;

/** A code that arises in the SDK itself. */
export type ClientErrorCode = keyof typeof CLIENT_MESSAGES;

/** `docs/sdk.md` tells what to do about each. */
export type JindouErrorCode = ClientErrorCode | ErrorCode | CloseReason;

/**
 * The same call may succeed later. Of the server's codes these are a copy, because the whole table is a tenth of the SDK; a test compares
 * them.
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
  /** Milliseconds after which a retry makes sense; 0: not known. */
  readonly retryAfterMs: number;

  constructor(
    code: JindouErrorCode,
    options: {
      readonly message?: string;
      readonly retryAfterMs?: number;
      readonly cause?: unknown;
    } = {},
  ) {
    const texts: Readonly<Record<string, string | undefined>> = CLIENT_MESSAGES; // the server's refusals bring their own
    super(options.message ?? texts[code] ?? code, { cause: options.cause });
    this.name = "JindouError";
    this.code = code;
    this.retry = RETRYABLE.has(code);
    this.retryAfterMs = options.retryAfterMs ?? 0;
  }
}

/** What a close code of the server says. */
export function endedBy(code: number): {
  readonly reason: CloseReason;
  readonly code: number;
  readonly message: string;
} {
  const reason = closeReasonOf(code);
  return { reason, code, message: CLOSE_REASONS[reason].message };
}

/** The connection it was asked on is gone. */
export function isLost(error: unknown): boolean {
  return error instanceof JindouError && error.code === "connection_lost";
}

/** The error as one of ours: what is none was thrown by code we called. */
export function asJindouError(
  error: unknown,
  code: ClientErrorCode,
): JindouError {
  if (error instanceof JindouError) return error;
  const message = error instanceof Error ? error.message : String(error);
  return new JindouError(code, { message, cause: error });
}
