// Determines why a server closes connections or does not reply. ioredis cannot determine this,
// because it writes immediately. If the server then closes the connection, the operating system
// discards the server's data that has not been read yet. Keeps no state.

import { once } from "node:events";
import { connect, type Socket } from "node:net";
import { type ConnectionOptions, connect as connectTls } from "node:tls";
import { replyError } from "./errors.ts";

interface Address {
  readonly host: string;
  readonly port: number;
  /** TLS options of the connections to Redis, or `undefined` if they do not use TLS. */
  readonly tls: ConnectionOptions | undefined;
}

const STEP_MS = 300;
const PING = "PING\r\n";
const SHOWN_LENGTH = 24;

/**
 * Returns an error that states why the server cannot be used, or `undefined` if no cause was found.
 */
export async function diagnose({ host, port, tls }: Address): Promise<Error | undefined> {
  const plain = () => connect({ host, port });
  if (tls === undefined) {
    // If Redis has its maximum number of clients, or is in protected mode, it sends an error before
    // it receives a command.
    const greeting = await observe(plain(), "connect");
    if (!greeting.isOpen) return undefined;
    if (greeting.text.startsWith("-")) return replyError(greeting.text.slice(1).trimEnd());
    const handshake = await observe(
      connectTls({ host, port, rejectUnauthorized: false }),
      "secureConnect",
    );
    if (handshake.isOpen) return new Error("it answers with TLS");
    const { text } = await observe(plain(), "connect", PING);
    if (text === "" || /^[+-]/.test(text)) return undefined;
    return new Error(`it answers PING with ${JSON.stringify(text.slice(0, SHOWN_LENGTH))}`);
  }
  const { error } = await observe(connectTls({ ...tls, host, port }), "secureConnect");
  if (error !== undefined && error.code !== "ECONNRESET") return error;
  const answer = await observe(plain(), "connect", PING);
  return /^[+-]/.test(answer.text) ? new Error("it answers without TLS") : undefined;
}

interface Observation {
  readonly isOpen: boolean;
  /** Beginning of the data that the server has sent. */
  readonly text: string;
  readonly error: NodeJS.ErrnoException | undefined;
}

/**
 * Writes `request` when the connection is open, and waits at most `STEP_MS` for data, an error or
 * the end of the connection.
 */
async function observe(
  socket: Socket,
  opened: "connect" | "secureConnect",
  request = "",
): Promise<Observation> {
  let isOpen = false;
  let text = "";
  let error: NodeJS.ErrnoException | undefined;
  socket.once(opened, () => {
    isOpen = true;
    if (request !== "") socket.write(request);
  });
  socket.once("data", (bytes: Buffer) => {
    text = bytes.toString("latin1");
    socket.destroy();
  });
  socket.once("error", (cause) => {
    error = cause;
  });
  const timer = setTimeout(() => socket.destroy(), STEP_MS);
  await once(socket, "close").catch(() => {});
  clearTimeout(timer);
  return { isOpen, text, error };
}
