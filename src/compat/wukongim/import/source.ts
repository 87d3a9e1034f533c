// Reads a WuKongIM server over its HTTP API. This file must contain only calls that do not change
// the data of that server. At most four calls run at the same time, and the number of rows per
// second is limited, because users are connected to that server.

import { withLongIntegersAsStrings } from "../../../lib/long-numbers.ts";
import { Semaphore } from "../../../lib/semaphore.ts";
import { TokenBucket } from "../../../lib/token-bucket.ts";

const CALLS_AT_ONCE = 4;
const TIMEOUT_MS = 30_000;
const ATTEMPTS = 4;
const RETRY_MS = 500;

export interface SourceOptions {
  readonly url: URL;
  /** `managerToken` of the server, or "" if no token is set. */
  readonly token: string;
  readonly rowsPerSecond: number;
  /** Delay before the first retry of a failed call, in milliseconds. The default is 500. */
  readonly retryMs?: number;
}

/**
 * Error that is thrown if a call to the server or to the node fails. The message consists of whole
 * sentences for the user of the command.
 */
export class SourceError extends Error {
  override readonly name = "SourceError";
}

export class Source {
  readonly #options: SourceOptions;
  readonly #calls = new Semaphore(CALLS_AT_ONCE);
  readonly #rows: TokenBucket;

  constructor(options: SourceOptions) {
    this.#options = options;
    const { rowsPerSecond } = options;
    this.#rows = new TokenBucket(
      { perSecond: rowsPerSecond, burst: rowsPerSecond, maxDebt: Number.MAX_SAFE_INTEGER },
      performance.now(),
    );
  }

  /**
   * Returns the JSON of the reply to GET. Numbers with 16 digits or more are strings. Retries calls
   * that may succeed later. Throws a SourceError if the server cannot be read.
   */
  get(path: string): Promise<unknown> {
    return this.#call(path, undefined);
  }

  /** Works like `get`, for a call that reads data with POST. */
  post(path: string, body: object): Promise<unknown> {
    return this.#call(path, JSON.stringify(body));
  }

  #call(path: string, body: string | undefined): Promise<unknown> {
    return this.#calls.run(async () => {
      await this.#wait();
      for (let attempt = 1; ; attempt++) {
        try {
          return await this.#read(path, body);
        } catch (error) {
          if (!(error instanceof Failure)) throw error;
          if (attempt === ATTEMPTS || !error.mayPass) throw this.#problem(path, error.message);
          await sleep((this.#options.retryMs ?? RETRY_MS) * 2 ** (attempt - 1));
        }
      }
    });
  }

  /**
   * Charges rows to the limit on rows per second. If the limit is exceeded, the next call waits.
   */
  count(rows: number): void {
    this.#rows.charge(rows);
  }

  async #wait(): Promise<void> {
    for (;;) {
      const waitMs = this.#rows.waitMs(performance.now(), 0);
      if (waitMs === 0) return;
      await sleep(waitMs);
    }
  }

  async #read(path: string, body: string | undefined): Promise<unknown> {
    const { url, token } = this.#options;
    // A proxy may serve the API below a path.
    const prefix = url.pathname.replace(/\/$/, "");
    const reply = await fetch(new URL(prefix + path, url), {
      method: body === undefined ? "GET" : "POST",
      headers: {
        ...(token === "" ? {} : { token }),
        ...(body === undefined ? {} : { "content-type": "application/json" }),
      },
      ...(body === undefined ? {} : { body }),
      redirect: "error",
      signal: AbortSignal.timeout(TIMEOUT_MS),
    }).catch((error: unknown) => {
      throw new Failure(reasonOf(error, TIMEOUT_MS), true);
    });
    const text = await reply.text().catch((error: unknown) => {
      throw new Failure(reasonOf(error, TIMEOUT_MS), true);
    });
    if (reply.status === 401) throw new SourceError(this.#refusal());
    // A failing handler replies with an empty body. On some of the server's ports, the status is
    // 200.
    const isFailure = reply.status >= 500 || (reply.status === 200 && text === "");
    if (reply.status !== 200 || isFailure)
      throw new Failure(`it responds with the status ${reply.status}`, isFailure);
    try {
      return JSON.parse(withLongIntegersAsStrings(text));
    } catch {
      throw new Failure("its response is not JSON", false);
    }
  }

  #refusal(): string {
    const { url, token } = this.#options;
    return token === ""
      ? `The server at ${url.origin} needs a token. Set JINDOU_IMPORT_TOKEN to its managerToken, or JINDOU_IMPORT_TOKEN_FILE to a file that contains it.`
      : `The server at ${url.origin} rejects the token in JINDOU_IMPORT_TOKEN or JINDOU_IMPORT_TOKEN_FILE. The token must be the server's managerToken.`;
  }

  #problem(path: string, reason: string): SourceError {
    const { origin } = this.#options.url;
    return new SourceError(
      `The server at ${origin} cannot be read: ${reason} (${path}). Check that --from is the address of the HTTP API of a WuKongIM 2.2 server, by default port 5001.`,
    );
  }
}

class Failure extends Error {
  readonly mayPass: boolean;

  constructor(message: string, mayPass: boolean) {
    super(message);
    this.mayPass = mayPass;
  }
}

/** Returns the reason why a call with a time limit of `timeoutMs` got no response. */
export function reasonOf(error: unknown, timeoutMs: number): string {
  const { cause, name, message } = Object(error) as {
    readonly cause?: { readonly code?: string; readonly message?: string };
    readonly name?: string;
    readonly message?: string;
  };
  if (name === "TimeoutError") return `it does not respond within ${timeoutMs / 1000} s`;
  return cause?.code ?? cause?.message ?? message ?? "the connection failed";
}

/** Starts `step` for each item in order. At most `CALLS_AT_ONCE` steps run at the same time. */
export async function inParallel<Item>(
  items: ReadonlySet<Item> | readonly Item[],
  step: (item: Item) => Promise<void>,
): Promise<void> {
  const queue = items.values();
  // All workers take their next item from one iterator.
  const workers = Array.from({ length: CALLS_AT_ONCE }, async () => {
    for (const item of queue) await step(item);
  });
  await Promise.all(workers);
}

export function sleep(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
