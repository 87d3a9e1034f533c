// JSON-RPC error codes and error objects.

import { ERRORS, type ErrorCode, mayRetry } from "../../broker/errors.ts";

/** Predefined error codes (JSON-RPC 2.0, section 5.1). */
export const RPC_CODES = {
  parseError: -32700,
  invalidRequest: -32600,
  methodNotFound: -32601,
  invalidParams: -32602,
} as const;

export type RpcCode = (typeof RPC_CODES)[keyof typeof RPC_CODES];

interface Refusal {
  readonly code: ErrorCode;
  /** Message for the client. If it is empty, the message from the error table is used. */
  readonly message: string;
  readonly retryAfterMs: number;
}

export function errorObject({ code, message, retryAfterMs }: Refusal, number: number): object {
  const retry = mayRetry(code, retryAfterMs);
  return {
    code: number,
    message: message || ERRORS[code].message,
    data: { name: code, retry, retryAfterMs: wholeMs(retryAfterMs) },
  };
}

/** Returns `ms` as an integer in the safe range, because JSON cannot represent NaN or infinity. */
function wholeMs(ms: number): number {
  return Math.ceil(Math.min(Math.max(ms || 0, 0), Number.MAX_SAFE_INTEGER));
}

/** Returns the predefined JSON-RPC code for an error, or `undefined` if no code fits. */
export function rpcCodeOf(code: ErrorCode): RpcCode | undefined {
  switch (code) {
    case "malformed_frame":
      return RPC_CODES.invalidRequest;
    case "bad_request":
      return RPC_CODES.invalidParams;
    default:
      return undefined;
  }
}
