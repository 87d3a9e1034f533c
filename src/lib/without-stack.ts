// Creates errors without stack traces, for errors that clients can cause as often as they like.
// Recording a stack trace costs many times as much as the rest of such an error.

/** Returns the result of `create`. Errors created in it have no stack trace. */
export function withoutStack<Result>(create: () => Result): Result {
  const { stackTraceLimit } = Error;
  Error.stackTraceLimit = 0;
  try {
    return create();
  } finally {
    Error.stackTraceLimit = stackTraceLimit;
  }
}
