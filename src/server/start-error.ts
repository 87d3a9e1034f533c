// An error at start that an operator can remedy, and the message of any error as one sentence.
// State: none.

import { BrokerError, ERRORS } from "../broker/errors.ts";

/**
 * One sentence that names the remedy. Without a cause: the log would print its stack, for no bug.
 */
export class StartError extends Error {
  override readonly name = "StartError";
}

/**
 * The error's message without a full stop; a BrokerError's general message gets that of the cause.
 */
export function reasonOf(error: unknown): string {
  const message = error instanceof Error ? error.message : String(error);
  const isGeneral =
    error instanceof BrokerError &&
    error.cause !== undefined &&
    message === ERRORS[error.code].message;
  const whole = isGeneral ? `${message}: ${reasonOf(error.cause)}` : message;
  return whole.trim().replace(/[.!?]$/, "");
}
