// Sends HTTP requests to services of the operator. A service may respond slowly, with too much
// data, with a redirect or not at all: every call ends in time and reads at most a bounded body.

import { Agent, request } from "undici";

interface OutgoingReply {
  readonly status: number;
  readonly headers: Readonly<Record<string, string | string[] | undefined>>;
  readonly body: Buffer;
}

interface OutgoingLimits {
  /** Maximum number of connections to one host. */
  readonly connections: number;
  readonly timeoutMs: number;
  readonly maxReplyBytes: number;
}

/** Why a request has no usable reply. */
export class OutgoingError extends Error {
  readonly reason: "timeout" | "connection" | "too_large";

  constructor(reason: OutgoingError["reason"], message: string, cause?: unknown) {
    super(message, { cause });
    this.name = "OutgoingError";
    this.reason = reason;
  }
}

export class Outgoing {
  readonly #limits: OutgoingLimits;
  readonly #agent: Agent;

  constructor(limits: OutgoingLimits) {
    this.#limits = limits;
    this.#agent = new Agent({ connections: limits.connections, pipelining: 1 });
  }

  /** Sends a POST request and returns the reply, whatever its status. Throws `OutgoingError`. */
  async post(
    url: string,
    headers: Readonly<Record<string, string>>,
    body: string | Uint8Array,
  ): Promise<OutgoingReply> {
    const { timeoutMs } = this.#limits;
    const signal = AbortSignal.timeout(timeoutMs); // also ends the body of the reply
    try {
      const reply = await request(url, {
        ...{ method: "POST", headers, body, signal, dispatcher: this.#agent },
      });
      return {
        ...{ status: reply.statusCode, headers: reply.headers },
        body: await this.#read(reply.body),
      };
    } catch (error) {
      if (error instanceof OutgoingError) throw error;
      if (signal.aborted)
        throw new OutgoingError("timeout", `no complete response within ${timeoutMs} ms`, error);
      const message = error instanceof Error ? error.message : String(error);
      throw new OutgoingError("connection", message, error);
    }
  }

  async #read(body: AsyncIterable<Uint8Array>): Promise<Buffer> {
    const { maxReplyBytes } = this.#limits;
    const read: Uint8Array[] = [];
    let bytes = 0;
    for await (const part of body) {
      bytes += part.length;
      if (bytes > maxReplyBytes)
        // Leaving the loop closes the connection.
        throw new OutgoingError("too_large", `the response has more than ${maxReplyBytes} bytes`);
      read.push(part);
    }
    return Buffer.concat(read, bytes);
  }

  async close(): Promise<void> {
    await this.#agent.destroy();
  }
}
