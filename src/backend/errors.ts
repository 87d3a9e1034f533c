// Errors of the calls of this package.

export interface ErrorDetail {
  readonly path: string;
  readonly message: string;
}

/** A call that failed: a refusal of the broker, or no reply. */
export class JindouApiError extends Error {
  /**
   * Code of the broker (docs/http.md), or `unreachable` (no connection, or a lost one), `timeout`
   * or `bad_reply` (the reply is not JSON, for example from a proxy).
   */
  readonly code: string;
  /** HTTP status, 0 without a reply. */
  readonly status: number;
  readonly details: readonly ErrorDetail[];

  constructor(
    code: string,
    message: string,
    options: {
      readonly status?: number;
      readonly details?: readonly ErrorDetail[];
      readonly cause?: unknown;
    } = {},
  ) {
    super(message, { cause: options.cause });
    this.name = "JindouApiError";
    this.code = code;
    this.status = options.status ?? 0;
    this.details = options.details ?? [];
  }
}
