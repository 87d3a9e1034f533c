// A small real client for JSON-RPC over one `ws` socket, for tests, written from what WuKongIM's
// clients do: string ids, `recvack` after each `recv`. It keeps every notification, in order, never
// reconnects, and fails loudly: what such a client could not read ends the connection.

import { randomUUID } from "node:crypto";
import { WebSocket } from "ws";
import type { TeardownHost } from "./native-client.ts";
import { Waiters } from "./waiters.ts";

/** Looked into freely by tests. */
// biome-ignore lint/suspicious/noExplicitAny: results and params have many forms
export type Json = any;

export interface JsonRpcSocket {
  readonly port: number;
  readonly subprotocols?: readonly string[];
  /** For every wait. Default: two minutes. */
  readonly timeoutMs?: number;
}

export interface Notification {
  readonly method: string;
  readonly params: Json;
}

/** An error in place of a result, or a connection that ended before. */
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
  /** All so far, in order of arrival. */
  readonly notifications: Notification[] = [];
  /** All messages so far as they came. */
  readonly texts: string[] = [];
  /** Errors that name no request. */
  readonly strayErrors: Json[] = [];
  readonly closed: Promise<{ readonly code: number; readonly reason: string }>;
  readonly #socket: WebSocket;
  readonly #waiters: Waiters;
  readonly #requests = new Map<string, (answer: Json) => void>();
  readonly #taken = new Map<string, number>();
  #ended: JsonRpcError | undefined;

  constructor(socket: WebSocket, timeoutMs: number) {
    this.#socket = socket;
    this.#waiters = new Waiters(timeoutMs);
    socket.on("message", (data, isBinary) => {
      try {
        if (isBinary) throw new Error("the server sent a binary message");
        this.#take(String(data));
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

  /** Resolves with the result; rejects with JsonRpcError. */
  async request(method: string, params: Json = {}): Promise<Json> {
    const id = randomUUID();
    const { result, error } = await this.exchange(id, { method, params, id });
    if (error !== undefined) throw new JsonRpcError(error.code, error.message, error.data);
    return result;
  }

  /** Sends the message and resolves with the response to `id`. */
  async exchange(id: string, message: Json): Promise<Json> {
    let answer: Json = this.#ended && { error: this.#ended };
    this.#requests.set(id, (given) => {
      answer = given;
    });
    this.raw(typeof message === "string" ? message : JSON.stringify(message));
    await this.#waiters.until(`an answer to ${id}`, () => answer !== undefined);
    return answer;
  }

  notify(method: string, params: Json = {}): void {
    this.raw(JSON.stringify({ method, params }));
  }

  /** The next notification of the method, each once; rejects when the connection ends before. */
  async next(method: string): Promise<Json> {
    const at = this.#taken.get(method) ?? 0;
    await this.waitFor(() => this.all(method).length > at, `a ${method}`);
    this.#taken.set(method, at + 1);
    return this.all(method)[at];
  }

  /** The params of all notifications of the method so far. */
  all(method: string): readonly Json[] {
    return this.notifications.filter((one) => one.method === method).map(({ params }) => params);
  }

  async waitFor(predicate: (client: this) => boolean, what = "the condition"): Promise<void> {
    await this.#waiters.until(what, () => predicate(this) || this.#ended !== undefined);
    if (!predicate(this) && this.#ended !== undefined) throw this.#ended;
  }

  /** A text message, or a binary one. Harmless when closed. */
  raw(data: string | Uint8Array): void {
    if (this.#socket.readyState === WebSocket.OPEN) this.#socket.send(data);
  }

  /** Stops reading: the server's buffers fill up. */
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

  #take(text: string): void {
    this.texts.push(text);
    const message: Json = JSON.parse(text);
    if (message.jsonrpc !== "2.0") throw new Error(`not JSON-RPC: ${text}`);
    if ("method" in message) {
      if ("id" in message) throw new Error(`a notification with id: ${text}`);
      this.notifications.push(message);
      if (message.method === "recv") this.#acknowledge(message.params);
      return;
    }
    if ("result" in message === "error" in message)
      throw new Error(`neither a result nor an error: ${text}`);
    if (!("id" in message)) this.strayErrors.push(message.error);
    this.#requests.get(message.id)?.(message);
    this.#requests.delete(message.id);
  }

  /** As easyjssdk does, for every `recv`. */
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

/** Opens a socket and says nothing. */
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
