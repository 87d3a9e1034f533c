// The codes of JSON-RPC's errors, and the error object of a refusal. No state.

import { ERRORS, type ErrorCode } from "../../broker/errors.ts";
import { reasonOf } from "../reason-codes.ts";

/** JSON-RPC 2.0, section 5.1. */
export const RPC_CODES = {
  parseError: -32700,
  invalidRequest: -32600,
  methodNotFound: -32601,
  invalidParams: -32602,
} as const;

export type RpcCode = (typeof RPC_CODES)[keyof typeof RPC_CODES];

interface Refusal {
  readonly code: ErrorCode;
  /** "": that of the table. */
  readonly message: string;
  readonly retryAfterMs: number;
}

/** `rpcCode`: known from the form of the request, else what `code` says. */
export function errorObject(
  { code, message, retryAfterMs }: Refusal,
  rpcCode: RpcCode | undefined,
): object {
  const { retry } = ERRORS[code];
  return {
    code: rpcCode ?? rpcCodeOf(code),
    message: message || ERRORS[code].message,
    data: { name: code, retry, retryAfterMs: wholeMs(retryAfterMs) },
  };
}

/** JSON has no number for what is not finite. */
function wholeMs(ms: number): number {
  return Math.ceil(Math.min(Math.max(ms || 0, 0), Number.MAX_SAFE_INTEGER));
}

function rpcCodeOf(code: ErrorCode): number {
  switch (code) {
    case "malformed_frame":
      return RPC_CODES.invalidRequest;
    case "bad_request":
      return RPC_CODES.invalidParams;
    default:
      return reasonOf(code);
  }
}
