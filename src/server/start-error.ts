// Why a node cannot start, where an operator can change it.

/** The message is one sentence that names what to change. There is no cause: the log would print its stack for something that is no bug. */
export class StartError extends Error {
  override readonly name = "StartError";
}
