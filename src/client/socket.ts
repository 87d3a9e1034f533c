// Opens a WebSocket: of the given class, the platform's, or that of `ws`. No state.

import { NATIVE_SUBPROTOCOL } from "../protocol/native/ops.ts";
import { asJindouError, JindouError } from "./errors.ts";
import { findSocket } from "./find-socket.ts";

/**
 * The part of the standard WebSocket that is used. Its handlers have the bivariance of methods, so
 * that stricter event types fit.
 */
export interface SocketLike {
  binaryType: string;
  onopen: SocketHandler<unknown> | null;
  onmessage: SocketHandler<{ readonly data: unknown }> | null;
  onclose: SocketHandler<{ readonly code: number }> | null;
  onerror: SocketHandler<unknown> | null;
  send(data: Uint8Array): void;
  close(code?: number): void;
}

type SocketHandler<T> = { handle(event: T): void }["handle"];

export type SocketConstructor = new (url: string, protocols: string[]) => SocketLike;

/** A connecting socket. Rejects with `no_websocket`, or `bad_option` for an invalid address. */
export async function openSocket(
  url: string,
  given: SocketConstructor | undefined,
): Promise<SocketLike> {
  // Node 20 has no global WebSocket and its types have none
  const platform = globalThis as { WebSocket?: SocketConstructor };
  const Socket = given ?? platform.WebSocket ?? (await fallback());
  try {
    return new Socket(url, [NATIVE_SUBPROTOCOL]);
  } catch (error) {
    throw asJindouError(error, "bad_option");
  }
}

async function fallback(): Promise<SocketConstructor> {
  try {
    // wider events and a narrower `binaryType` than SocketLike
    return (await findSocket()) as SocketConstructor;
  } catch (cause) {
    throw new JindouError("no_websocket", { cause });
  }
}

/** Closes without waiting for the other side; no handler is called any more. */
export function drop(socket: SocketLike): void {
  socket.onopen = null;
  socket.onmessage = null;
  socket.onclose = null;
  socket.onerror = () => undefined; // `ws` throws an error without a handler
  if ("terminate" in socket && typeof socket.terminate === "function") socket.terminate();
  else socket.close();
}
