// Opens a WebSocket with the class that the app passed, the class of the `ws` package in Node.js
// and Deno, or the platform's class.

import { NATIVE_SUBPROTOCOL } from "../protocol/native/ops.ts";
import { asJindouError, JindouError } from "./errors.ts";
import { findSocket } from "./find-socket.ts";

/**
 * The part of the standard WebSocket that the SDK uses. Its handlers have the bivariant types of
 * methods, so that classes with stricter event types are accepted.
 */
export interface SocketLike {
  binaryType: string;
  onopen: SocketHandler<unknown> | null;
  onmessage: SocketHandler<{ readonly data: unknown }> | null;
  onclose: SocketHandler<{ readonly code: number }> | null;
  onerror: SocketHandler<unknown> | null;
  send(data: OwnBytes): void;
  close(code?: number): void;
}

/** Bytes whose memory is not shared, as browser WebSockets require. */
export type OwnBytes = Uint8Array & { readonly buffer: ArrayBuffer };

type SocketHandler<T> = { handle(event: T): void }["handle"];

export type SocketConstructor = new (url: string, protocols: string[]) => SocketLike;

interface Platform {
  readonly WebSocket?: SocketConstructor;
  readonly process?: { readonly versions?: Readonly<Record<string, string | undefined>> };
}

/** Rejects with `no_websocket`, or with `bad_option` if the address is invalid. */
export async function openSocket(
  url: string,
  socketClass: SocketConstructor | undefined,
): Promise<SocketLike> {
  const Socket = socketClass ?? (await socketClassOfPlatform());
  try {
    return new Socket(url, [NATIVE_SUBPROTOCOL]);
  } catch (error) {
    throw asJindouError(error, "bad_option");
  }
}

/**
 * Returns the platform's WebSocket class. In Node.js and Deno, this is the class of `ws`, because
 * the global class has no `terminate`. Without it, a socket whose peer does not answer the close
 * frame would keep the process alive.
 */
async function socketClassOfPlatform(): Promise<SocketConstructor> {
  // Node 20 has no global WebSocket, and its types do not declare it
  const platform = globalThis as Platform;
  const { node, bun } = platform.process?.versions ?? {};
  let cause: unknown;
  try {
    // the class of `ws` has wider event types and a narrower `binaryType` than SocketLike
    if (node && !bun) return (await findSocket()) as SocketConstructor;
  } catch (error) {
    cause = error; // the app was bundled without `ws`
  }
  if (platform.WebSocket !== undefined) return platform.WebSocket;
  throw new JindouError("no_websocket", { cause });
}

/** Closes a socket at once. None of its handlers is called afterwards. */
export function drop(socket: SocketLike): void {
  socket.onopen = null;
  socket.onmessage = null;
  socket.onclose = null;
  socket.onerror = () => undefined; // `ws` throws errors that have no handler
  if ("terminate" in socket && typeof socket.terminate === "function") socket.terminate();
  else socket.close();
}
