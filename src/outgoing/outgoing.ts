// Sends HTTP requests to other services: hooks and webhooks. A service may respond slowly, with too
// much data, with a redirect or not at all. Therefore the time and size of each reply are limited,
// and redirects are not followed. State: one connection pool for each `Outgoing`. The HTTP client
// is loaded on first use, because most nodes never send a request.

import type { Agent, request as sendRequest } from "undici";
import type { CreateConnector } from "./connector.ts";

interface OutgoingReply {
  readonly status: number;
  readonly headers: Readonly<Record<string, string | string[] | undefined>>;
  /** The first `maxReplyBytes` bytes of the body. */
  readonly body: Buffer;
  /** True if the reply's body was longer than `maxReplyBytes`. */
  readonly isCut: boolean;
}

interface OutgoingLimits {
  /** Maximum number of connections to one host. Absent means no limit. */
  readonly connections?: number;
  /** Time limit for one request, including its complete reply. */
  readonly timeoutMs: number;
  readonly maxReplyBytes: number;
  /** Creates the function that opens connections. If absent, all addresses are allowed. */
  readonly connector?: CreateConnector;
}

/** The HTTP client after it has been loaded. */
interface HttpClient {
  readonly request: typeof sendRequest;
  readonly dispatcher: Agent;
}

/** Thrown if a request gets no complete reply. */
export class OutgoingError extends Error {
  readonly reason: "timeout" | "connection" | "closed";

  constructor(reason: OutgoingError["reason"], message: string, cause?: unknown) {
    super(message, { cause });
    this.name = "OutgoingError";
    this.reason = reason;
  }
}

/** Loads the HTTP client, so that the first request does not wait for it. */
export async function loadHttpClient(): Promise<void> {
  await import("undici");
}

export class Outgoing {
  readonly #limits: OutgoingLimits;
  #client: HttpClient | undefined;
  #isClosed = false;

  constructor(limits: OutgoingLimits) {
    this.#limits = limits;
  }

  /**
   * Sends a POST request and returns the reply, whatever its status. Throws `OutgoingError` if
   * there is no complete reply.
   */
  async post(
    url: string,
    headers: Readonly<Record<string, string>>,
    body: string | Uint8Array,
  ): Promise<OutgoingReply> {
    const { timeoutMs } = this.#limits;
    const signal = AbortSignal.timeout(timeoutMs); // also limits the time for the reply's body
    try {
      const { request, dispatcher } = this.#client ?? (await this.#load());
      const reply = await request(url, {
        ...{ method: "POST", headers, body, signal, dispatcher },
      });
      return {
        status: reply.statusCode,
        headers: reply.headers,
        ...(await this.#read(reply.body)),
      };
    } catch (error) {
      if (this.#isClosed) throw new OutgoingError("closed", "the node is shutting down", error);
      if (signal.aborted)
        throw new OutgoingError(
          "timeout",
          `there was no complete reply within ${timeoutMs} ms`,
          error,
        );
      const message = error instanceof Error ? error.message : String(error);
      throw new OutgoingError("connection", message, error);
    }
  }

  async #load(): Promise<HttpClient> {
    // The bundled package has only a default export.
    const { default: undici } = await import("undici");
    if (this.#isClosed) throw new Error("the client is closed");
    this.#client ??= this.#create(undici);
    return this.#client;
  }

  #create({
    Agent,
    buildConnector,
    request,
  }: Pick<typeof import("undici"), "Agent" | "buildConnector" | "request">): HttpClient {
    const { connections = null, connector } = this.#limits;
    const connect = connector?.(buildConnector);
    const dispatcher = new Agent({ connections, pipelining: 1, ...(connect && { connect }) });
    return { request, dispatcher };
  }

  async #read(body: AsyncIterable<Uint8Array>): Promise<Pick<OutgoingReply, "body" | "isCut">> {
    const { maxReplyBytes } = this.#limits;
    const pieces: Uint8Array[] = [];
    let bytes = 0;
    for await (const piece of body) {
      bytes += piece.length;
      pieces.push(piece);
      if (bytes > maxReplyBytes) break; // closes the connection
    }
    const isCut = bytes > maxReplyBytes;
    return { body: Buffer.concat(pieces, Math.min(bytes, maxReplyBytes)), isCut };
  }

  /** Aborts the requests in progress and closes the connections. */
  async close(): Promise<void> {
    this.#isClosed = true;
    await this.#client?.dispatcher.destroy();
  }
}
