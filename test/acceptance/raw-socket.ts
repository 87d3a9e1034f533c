// A TCP connection that can also send WebSocket frames [RFC 6455], valid or not. Keeps the bytes
// that were received but not read yet, and how the connection ended. It never replies by itself.

import { connect, type Socket } from "node:net";
import { CLOSE_REASONS } from "../../src/broker/errors.ts";
import { Waiters } from "../support/waiters.ts";

export const OPCODES = {
  continuation: 0,
  text: 1,
  binary: 2,
  close: 8,
  ping: 9,
} as const;

/** How a connection ended: the code of the close frame, or `cut` if there was none. */
export type Ending = number | "cut";

const TIMEOUT_MS = 120_000;

/** Returns the HTTP request that upgrades a connection to a WebSocket. */
export function upgradeRequest(subprotocol?: string): string {
  return [
    "GET / HTTP/1.1",
    "Host: localhost",
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    ...(subprotocol === undefined ? [] : [`Sec-WebSocket-Protocol: ${subprotocol}`]),
    "\r\n",
  ].join("\r\n");
}

/** Close codes of the broker's own table. */
export const BROKER_CODES: ReadonlySet<Ending> = new Set(
  Object.values(CLOSE_REASONS).map(({ code }) => code),
);

export class RawSocket {
  readonly #socket: Socket;
  readonly #waiters = new Waiters(TIMEOUT_MS);
  #received: Buffer = Buffer.alloc(0);
  #status: "connecting" | "open" | "over" = "connecting";
  #closeCode: number | undefined;
  #error: Error | undefined;

  constructor(port: number, options: { readonly allowHalfOpen?: boolean } = {}) {
    this.#socket = connect({ host: "127.0.0.1", port, ...options });
    this.#socket.setNoDelay(true);
    this.#socket.on("connect", () => this.#setStatus("open"));
    this.#socket.on("data", (data) => {
      this.#received = this.#received.length === 0 ? data : Buffer.concat([this.#received, data]);
      this.#waiters.check();
    });
    this.#socket.on("error", (error) => {
      this.#error = error; // a `close` event always follows
    });
    this.#socket.on("close", () => this.#setStatus("over"));
  }

  get isOver(): boolean {
    return this.#status === "over";
  }

  /** Bytes that were received but not read yet. */
  get received(): Buffer {
    return this.#received;
  }

  async connected(): Promise<this> {
    await this.#waiters.until("a connection", () => this.#status !== "connecting");
    if (this.isOver) throw new Error("the connection failed", { cause: this.#error });
    return this;
  }

  /** Upgrades the connection to a WebSocket. Rejects if the server refuses. */
  async upgraded(subprotocol?: string): Promise<this> {
    await this.connected();
    this.write(upgradeRequest(subprotocol));
    const end = () => this.#received.indexOf("\r\n\r\n");
    await this.#waiters.until("an upgrade", () => end() >= 0 || this.isOver);
    const head = this.#received.subarray(0, end() + 4).toString("latin1");
    if (!head.startsWith("HTTP/1.1 101")) throw new Error(`the upgrade was refused: ${head}`);
    this.#received = this.#received.subarray(end() + 4);
    return this;
  }

  /** Writes raw bytes. Does nothing after the connection has ended. */
  write(data: Uint8Array | string): void {
    if (this.#socket.writable) this.#socket.write(data);
  }

  /** Sends one WebSocket message. */
  send(payload: Uint8Array, opcode: number = OPCODES.binary): void {
    this.write(webSocketFrame(payload, opcode));
  }

  /** Returns the payload of the next data frame, or `undefined` if the connection has ended. */
  async frame(): Promise<Buffer | undefined> {
    let payload: Buffer | undefined;
    await this.#waiters.until("a frame", () => {
      payload = this.#readDataFrame();
      return payload !== undefined || this.isOver || this.#closeCode !== undefined;
    });
    return payload;
  }

  /** Waits until the server has ended the connection. Unread frames are dropped. */
  async ended(): Promise<Ending> {
    while ((await this.frame()) !== undefined);
    this.kill();
    return this.#closeCode ?? "cut";
  }

  /** Resolves when the server has closed the TCP connection. */
  async cut(): Promise<void> {
    await this.#waiters.until("the end", () => this.isOver);
  }

  /** Closes only the sending side. */
  endWriting(): void {
    this.#socket.end();
  }

  /** Resets the connection, so that the kernel keeps none of its data. */
  kill(): void {
    this.#socket.resetAndDestroy();
  }

  #setStatus(status: "open" | "over"): void {
    this.#status = status;
    this.#waiters.check();
  }

  #readDataFrame(): Buffer | undefined {
    for (;;) {
      const frame = splitFrame(this.#received);
      if (frame === undefined) return undefined;
      this.#received = frame.rest;
      if (frame.opcode === OPCODES.close) {
        const { payload } = frame;
        this.#closeCode = payload.length >= 2 ? payload.readUInt16BE() : 1005;
        return undefined;
      }
      if (frame.opcode <= OPCODES.binary) return frame.payload;
    }
  }
}

/** Returns a masked frame. The mask is 0, which leaves the payload unchanged. */
export function webSocketFrame(payload: Uint8Array, opcode: number, firstBits = 0x80): Buffer {
  const { length } = payload;
  const size = length < 126 ? 0 : length < 65_536 ? 2 : 8;
  const frame = Buffer.alloc(6 + size + length);
  frame[0] = firstBits | opcode;
  frame[1] = 0x80 | (size === 0 ? length : size === 2 ? 126 : 127);
  if (size === 2) frame.writeUInt16BE(length, 2);
  if (size === 8) frame.writeBigUInt64BE(BigInt(length), 2);
  frame.set(payload, 6 + size);
  return frame;
}

function splitFrame(bytes: Buffer) {
  if (bytes.length < 2) return undefined;
  const short = bytes.readUInt8(1) & 0x7f;
  const start = short < 126 ? 2 : short === 126 ? 4 : 10;
  if (bytes.length < start) return undefined;
  const length =
    short < 126 ? short : short === 126 ? bytes.readUInt16BE(2) : Number(bytes.readBigUInt64BE(2));
  if (bytes.length < start + length) return undefined;
  return {
    opcode: bytes.readUInt8(0) & 0x0f,
    payload: bytes.subarray(start, start + length),
    rest: bytes.subarray(start + length),
  };
}
