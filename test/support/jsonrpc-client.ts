// A small JSON-RPC client on one `ws` socket, for tests. It behaves like WuKongIM's clients: ids
// are strings, and each `recv` is answered with `recvack`. It keeps every notification in order and
// never reconnects. A message that WuKongIM's clients could not read ends the connection.

import { randomUUID } from "node:crypto";
import { WebSocket } from "ws";
import type { TeardownHost } from "./native-client.ts";
import { Waiters } from "./waiters.ts";

/** JSON from the server. Tests read any field of it without a schema. */
// biome-ignore lint/suspicious/noExplicitAny: results and params have many forms
export type Json = any;

export interface JsonRpcSocket {
  readonly port: number;
  readonly subprotocols?: readonly string[];
  /** Timeout of every wait. Default: two minutes. */
  readonly timeoutMs?: number;
}

export interface Notification {
  readonly method: string;
  readonly params: Json;
}

/** An error response, or a connection that ended before the response. */
export class JsonRpcError extends Error {
  readonly code: number;
  readonly data: Json;

  constructor(code: number, message: string, data?: Json) {
    super(`${code}: ${message}`);
    this.name = "JsonRpcError";
    this.code = code;
    this.data = data;
  }
}

export class JsonRpcClient {
  /** Every notification so far, in order of arrival. */
  readonly notifications: Notification[] = [];
  /** Unparsed text of every message so far. */
  readonly texts: string[] = [];
  /** Error responses whose id belongs to no open request. */
  readonly strayErrors: Json[] = [];
  readonly closed: Promise<{ readonly code: number; readonly reason: string }>;
  readonly #socket: WebSocket;
  readonly #waiters: Waiters;
  readonly #requests = new Map<string, (response: Json) => void>();
  /** Number of notifications that `next` has returned, by method. */
  readonly #nextIndexes = new Map<string, number>();
  #ended: JsonRpcError | undefined;

  constructor(socket: WebSocket, timeoutMs: number) {
    this.#socket = socket;
    this.#waiters = new Waiters(timeoutMs);
    socket.on("message", (data, isBinary) => {
      try {
        if (isBinary) throw new Error("the server sent a binary message");
        this.#receive(String(data));
      } catch (error) {
        this.#end(1006, String(error));
        socket.terminate();
      }
      this.#waiters.check();
    });
    socket.on("error", (error) => this.#end(1006, error.message));
    this.closed = new Promise((resolve) => {
      socket.once("close", (code, reason) => {
        this.#end(code, String(reason));
        resolve({ code, reason: String(reason) });
      });
    });
  }

  get subprotocol(): string {
    return this.#socket.protocol;
  }

  /** Sends a request and resolves with its result. Rejects with JsonRpcError. */
  async request(method: string, params: Json = {}): Promise<Json> {
    const id = randomUUID();
    const { result, error } = await this.exchange(id, { method, params, id });
    if (error !== undefined) throw new JsonRpcError(error.code, error.message, error.data);
    return result;
  }

  /** Sends the message and resolves with the response to `id`. */
  async exchange(id: string, message: Json): Promise<Json> {
    let response: Json = this.#ended && { error: this.#ended };
    this.#requests.set(id, (message) => {
      response = message;
    });
    this.raw(typeof message === "string" ? message : JSON.stringify(message));
    await this.#waiters.until(`the response to ${id}`, () => response !== undefined);
    return response;
  }

  notify(method: string, params: Json = {}): void {
    this.raw(JSON.stringify({ method, params }));
  }

  /**
   * Resolves with the params of the method's next notification. Each notification is returned once.
   * Rejects if the connection ends first.
   */
  async next(method: string): Promise<Json> {
    const at = this.#nextIndexes.get(method) ?? 0;
    await this.waitFor(() => this.all(method).length > at, `a ${method}`);
    this.#nextIndexes.set(method, at + 1);
    return this.all(method)[at];
  }

  /** Returns the params of all notifications of the method so far. */
  all(method: string): readonly Json[] {
    return this.notifications
      .filter((notification) => notification.method === method)
      .map(({ params }) => params);
  }

  async waitFor(
    predicate: (client: this) => boolean,
    description = "the condition",
  ): Promise<void> {
    await this.#waiters.until(description, () => predicate(this) || this.#ended !== undefined);
    if (!predicate(this) && this.#ended !== undefined) throw this.#ended;
  }

  /** Sends a text or binary message. Does nothing if the socket is closed. */
  raw(data: string | Uint8Array): void {
    if (this.#socket.readyState === WebSocket.OPEN) this.#socket.send(data);
  }

  /** Stops reading, so that the server's buffers fill up. */
  pause(): void {
    this.#socket.pause();
  }

  resume(): void {
    this.#socket.resume();
  }

  /** Destroys the TCP connection without a close frame. */
  kill(): void {
    this.#socket.terminate();
  }

  #receive(text: string): void {
    this.texts.push(text);
    const message: Json = JSON.parse(text);
    if (message.jsonrpc !== "2.0") throw new Error(`not a JSON-RPC 2.0 message: ${text}`);
    if ("method" in message) {
      if ("id" in message) throw new Error(`a notification has an id: ${text}`);
      this.notifications.push(message);
      if (message.method === "recv") this.#acknowledge(message.params);
      return;
    }
    if ("result" in message === "error" in message)
      throw new Error(`a response needs either a result or an error: ${text}`);
    if ((message.id ?? null) === null) this.strayErrors.push(message.error);
    this.#requests.get(message.id)?.(message);
    this.#requests.delete(message.id);
  }

  /** Sends `recvack` for a `recv`, as WuKongIM's easyjssdk does. */
  #acknowledge({ header, messageId, messageSeq }: Json): void {
    this.notify("recvack", { header, messageId, messageSeq });
  }

  #end(code: number, message: string): void {
    if (this.#ended !== undefined) return;
    this.#ended = new JsonRpcError(code, message);
    for (const settle of this.#requests.values()) settle({ error: this.#ended });
    this.#requests.clear();
    this.#waiters.check();
  }
}

/** Opens a socket and sends nothing on it. */
export async function openJsonRpc(
  t: TeardownHost,
  { port, subprotocols = [], timeoutMs = 120_000 }: JsonRpcSocket,
): Promise<JsonRpcClient> {
  const socket = new WebSocket(`ws://127.0.0.1:${port}/`, [...subprotocols], {
    perMessageDeflate: false,
  });
  const client = new JsonRpcClient(socket, timeoutMs);
  t?.teardown(() => {
    client.kill();
    return client.closed;
  });
  await new Promise<void>((resolve, reject) => {
    socket.once("open", resolve);
    socket.once("error", reject);
  });
  return client;
}
