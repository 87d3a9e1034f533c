// Creates errors that clients can cause at will. Recording a stack trace costs many times as much as
// everything else about such an error.

/** Returns the result of `create`. Errors that it creates have no stack trace. */
export function withoutStack<Result>(create: () => Result): Result {
  const { stackTraceLimit } = Error;
  Error.stackTraceLimit = 0;
  try {
    return create();
  } finally {
    Error.stackTraceLimit = stackTraceLimit;
  }
}
