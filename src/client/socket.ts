// The WebSocket that there is: the given one, the platform's, or that of `ws`. No state.

import { NATIVE_SUBPROTOCOL } from "../protocol/native/ops.ts";
import { asJindouError } from "./errors.ts";
import { findSocket } from "./find-socket.ts";

/** The part of the standard WebSocket that is used; its handlers are methods so that stricter event types fit. */
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

export type SocketConstructor = new (
  url: string,
  protocols: string[],
) => SocketLike;

/** A socket on its way to `url`. Rejects with `no_websocket`, or `bad_option` for an address that can never be had. */
export async function openSocket(
  url: string,
  given: SocketConstructor | undefined,
): Promise<SocketLike> {
  const platform = globalThis as { WebSocket?: SocketConstructor }; // not in Node's types, and in browsers it is
  const Socket = given ?? platform.WebSocket ?? (await fallback());
  try {
    return new Socket(url, [NATIVE_SUBPROTOCOL]);
  } catch (error) {
    throw asJindouError(error, "bad_option");
  }
}

async function fallback(): Promise<SocketConstructor> {
  try {
    return (await findSocket()) as SocketConstructor; // its events carry more, and its `binaryType` fewer values
  } catch (error) {
    throw asJindouError(error, "no_websocket");
  }
}

/** Drops a socket that is of no use any more without waiting for the other side. */
export function drop(socket: SocketLike): void {
  socket.onopen = null;
  socket.onmessage = null;
  socket.onclose = null;
  socket.onerror = () => undefined; // `ws` throws what nobody listens to
  if ("terminate" in socket && typeof socket.terminate === "function")
    socket.terminate();
  else socket.close();
}
