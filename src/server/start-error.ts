// The error for a start that fails for a reason the operator can fix, and the message of any error
// as one sentence.

import { BrokerError, ERRORS } from "../broker/errors.ts";

/**
 * A reason why the node cannot start, with what to do about it, in one sentence. It has no cause,
 * because the log would print the stack of the cause although there is no bug.
 */
export class StartError extends Error {
  override readonly name = "StartError";
}

/**
 * Returns the message of the error without a full stop. If a BrokerError has only the general
 * message of its code, the message of its cause is appended.
 */
export function reasonOf(error: unknown): string {
  const message = error instanceof Error ? error.message : String(error);
  const isGeneral =
    error instanceof BrokerError &&
    error.cause !== undefined &&
    message === ERRORS[error.code].message;
  const text = isGeneral ? `${message}: ${reasonOf(error.cause)}` : message;
  return text.trim().replace(/[.!?]$/, "");
}
