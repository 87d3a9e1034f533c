// The error that this package's calls throw.

export interface ErrorDetail {
  readonly path: string;
  readonly message: string;
}

/** Error of a failed call: the broker refused the call, or there was no valid reply. */
export class JindouApiError extends Error {
  /**
   * The broker's error code (docs/http.md), or a code of this package. `unreachable` means that the
   * connection failed or was lost. `timeout` means that there was no reply in time. `bad_reply`
   * means that the reply, for example from a proxy, is not JSON or is an error without a code.
   */
  readonly code: string;
  /** HTTP status. 0 if there was no reply. */
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
