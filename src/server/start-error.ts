// The error for a failed start whose cause the operator can fix, and the conversion of any error to
// a sentence.

import { BrokerError, ERRORS } from "../broker/errors.ts";
import { messageOf } from "../observe/error-fields.ts";

/**
 * A reason why the node cannot start. It has no `cause`, because the log would print the stack of
 * the cause.
 */
export class StartError extends Error {
  override readonly name = "StartError";
}

/**
 * Returns the error's message without a full stop. If it is the default message for the error code,
 * appends the cause.
 */
export function reasonOf(error: unknown): string {
  const message = messageOf(error);
  const isGeneral =
    error instanceof BrokerError &&
    error.cause !== undefined &&
    message === ERRORS[error.code].message;
  const text = isGeneral ? `${message}: ${reasonOf(error.cause)}` : message;
  return text.trim().replace(/[.!?]$/, "");
}
