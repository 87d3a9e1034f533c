// Why a node cannot start, where an operator can change it; and what an error says in one sentence. State: none.

/** The message is one sentence that names what to change. There is no cause: the log would print its stack for something that is no bug. */
export class StartError extends Error {
  override readonly name = "StartError";
}

/** The error's message, with that of the error that caused it first of all, and without a full stop. */
export function reasonOf(error: unknown): string {
  const message = error instanceof Error ? error.message : String(error);
  let first = error;
  while (first instanceof Error && first.cause !== undefined)
    first = first.cause;
  const origin = first instanceof Error ? first.message : String(first);
  const whole = message.includes(origin) ? message : `${message}: ${origin}`;
  return whole.trim().replace(/[.!?]$/, "");
}
