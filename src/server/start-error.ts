// Why a node cannot start, where an operator can change it; and what an error says in one sentence. State: none.

import { BrokerError, ERRORS } from "../broker/errors.ts";

/** The message is one sentence that names what to change. There is no cause: the log would print its stack for something that is no bug. */
export class StartError extends Error {
  override readonly name = "StartError";
}

/** The error's message without a full stop; of an error of ours that says nothing of its own, with that of the cause. */
export function reasonOf(error: unknown): string {
  const message = error instanceof Error ? error.message : String(error);
  const isGeneral =
    error instanceof BrokerError &&
    error.cause !== undefined &&
    message === ERRORS[error.code].message;
  const whole = isGeneral ? `${message}: ${reasonOf(error.cause)}` : message;
  return whole.trim().replace(/[.!?]$/, "");
}
