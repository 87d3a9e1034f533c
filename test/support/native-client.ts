// Opens connections of the native test client: `connectNative` logs in, `openNative` only opens the
// socket. Both return a NativeClient.

import { WebSocket } from "ws";
import { NATIVE_SUBPROTOCOL } from "../../src/protocol/native/ops.ts";
import { NativeClient, NativeClientError, type NativeSessionOptions } from "./native-session.ts";

export interface NativeClientOptions extends NativeSessionOptions {
  readonly port: number;
  /** Default: 127.0.0.1 */
  readonly host?: string;
  /** Default: "/" */
  readonly path?: string;
  /** Subprotocols to offer. Default: the native subprotocol. */
  readonly subprotocols?: readonly string[];
  readonly headers?: Readonly<Record<string, string>>;
  /** Local address of the client's socket. */
  readonly localAddress?: string;
}

/**
 * The part of tap's `t` that closes the client at the end of the test. If it is `undefined`, the
 * caller closes the client.
 */
export type TeardownHost = { teardown(clean: () => unknown): unknown } | undefined;

/** Opens a socket and sends CONNECT. Rejects with NativeClientError if the login is refused. */
export async function connectNative(
  t: TeardownHost,
  options: NativeClientOptions,
): Promise<NativeClient> {
  const client = await openNative(t, options);
  try {
    await client.connect();
    return client;
  } catch (error) {
    client.kill();
    throw error;
  }
}

/** Opens a socket and sends nothing on it. */
export async function openNative(
  t: TeardownHost,
  options: NativeClientOptions,
): Promise<NativeClient> {
  const { host = "127.0.0.1", port, path = "/" } = options;
  const socket = new WebSocket(
    `ws://${host}:${port}${path}`,
    [...(options.subprotocols ?? [options.wire?.subprotocol ?? NATIVE_SUBPROTOCOL])],
    {
      perMessageDeflate: false,
      headers: { ...options.headers },
      ...(options.localAddress && { localAddress: options.localAddress }),
    },
  );
  const client = new NativeClient(socket, options);
  t?.teardown(() => {
    client.kill();
    return client.closed;
  });
  await new Promise<void>((resolve, reject) => {
    socket.once("open", resolve);
    socket.once("unexpected-response", (_request, response) => {
      response.resume();
      reject(
        new NativeClientError(
          `http_${response.statusCode}`,
          "the server refused the WebSocket upgrade",
        ),
      );
      socket.terminate();
    });
    socket.once("close", (code: number) =>
      reject(new NativeClientError(`closed_${code}`, "the connection closed before it was open")),
    );
  });
  return client;
}
