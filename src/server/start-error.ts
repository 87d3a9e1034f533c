// The error for a start that the operator can repair, and the message of any error as a sentence.

import { BrokerError, ERRORS } from "../broker/errors.ts";
import { messageOf } from "../observe/error-fields.ts";

/** A reason why the node cannot start. It has no cause, because the log would print its stack. */
export class StartError extends Error {
  override readonly name = "StartError";
}

/** Returns the message without a full stop. Appends the cause to the default message of a code. */
export function reasonOf(error: unknown): string {
  const message = messageOf(error);
  const isGeneral =
    error instanceof BrokerError &&
    error.cause !== undefined &&
    message === ERRORS[error.code].message;
  const text = isGeneral ? `${message}: ${reasonOf(error.cause)}` : message;
  return text.trim().replace(/[.!?]$/, "");
}
