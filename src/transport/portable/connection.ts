// One accepted connection. Stores its addresses and handles its requests one after the other.
// Requests that arrive together are handled in order if each reply is synchronous. A request that
// arrives while an asynchronous reply is pending closes the connection, as with uWebSockets.js.

import { STATUS_CODES } from "node:http";
import type { Socket } from "node:net";
import { addressBytes } from "../address-bytes.ts";
import type { DriverConnection, HeadGuard, HeadRefusal } from "../driver.ts";
import type { PortableResponse, ResponseOwner } from "./response.ts";

interface Exchange {
  readonly response: PortableResponse;
  run(): void;
}

const MAX_WAITING = 1000;
/** Time for which the rest of a refused body is read, so that the peer gets the reply. */
const LINGER_MS = 10_000;

export class PortableConnection implements DriverConnection, ResponseOwner {
  readonly address: ArrayBuffer;
  proxiedAddress = new ArrayBuffer(0);
  /** The decrypted stream if the connection uses TLS, otherwise the socket. */
  stream: Socket;
  readonly #socket: Socket;
  #onFirstRequest: (() => void) | undefined;
  #current: PortableResponse | undefined;
  readonly #waiting: Exchange[] = [];
  readonly #heads: HeadGuard;
  /**
   * Number of bytes that had been read when the last request began or ended. The next head begins
   * near this point.
   */
  #headStart = 0;
  /** Number of bytes of the next head that are counted in the budget. */
  #headBytes = 0;
  #isStarting = false;
  #status: "open" | "closing" | "closed" = "open";
  /**
   * Seconds since the connection was accepted. Counted until the first bytes, or all bytes of a
   * PROXY header, have been read.
   */
  greetingS = 0;

  constructor(socket: Socket, heads: HeadGuard) {
    this.#socket = socket;
    this.#heads = heads;
    this.stream = socket;
    this.address = addressBytes(socket.remoteAddress ?? "");
    socket.on("error", () => {}); // `close` follows
  }

  get isClosed(): boolean {
    return this.#status === "closed";
  }

  get response(): PortableResponse | undefined {
    return this.#current;
  }

  secured(stream: Socket): void {
    this.stream = stream;
    stream.on("error", () => {});
    stream.once("close", () => this.destroy());
    this.#lingerOnClose();
  }

  opened(): void {
    this.#lingerOnClose();
  }

  request(exchange: Exchange): void {
    if (this.#status !== "open") return;
    this.#reportFirstRequest();
    this.#headStart = this.stream.bytesRead;
    this.#waiting.push(exchange);
    if (this.#waiting.length > MAX_WAITING) this.destroy();
    else this.#startNext();
  }

  bodyDelivered(): void {
    this.#headStart = this.stream.bytesRead;
    this.#startNext();
  }

  ended(): void {
    this.#headStart = this.stream.bytesRead;
    this.#startNext();
  }

  /**
   * Called every second and on close. Charges the received bytes of an incomplete head to the
   * budget. Returns false if the budget has no room for them.
   */
  chargeHead(): boolean {
    const isBetweenRequests =
      this.#status === "open" && this.#waiting.length === 0 && this.#current?.isOver !== false;
    const bytes = isBetweenRequests ? this.stream.bytesRead - this.#headStart : 0;
    const growth = bytes - this.#headBytes;
    if (growth === 0) return true;
    if (growth < 0) this.#heads.release(-growth);
    else if (!this.#heads.reserve(growth)) return false;
    this.#headBytes = bytes;
    return true;
  }

  closed(): void {
    if (this.#status === "closed") return;
    this.#status = "closed";
    this.chargeHead();
    this.#waiting.length = 0;
    this.#current?.abort();
    this.#reportFirstRequest();
  }

  destroy(): void {
    this.closed();
    this.stream.destroy();
    this.#socket.destroy();
  }

  /**
   * Refuses the request that the peer is sending: sends the reply and closes the connection. If the
   * received bytes belong to a request whose reply was already sent, sends no second reply.
   */
  refuse(reply: () => HeadRefusal): void {
    const { stream } = this;
    const isAnswered = this.#current?.isEnded === true && !this.#current.isBodyRead;
    if (!isAnswered && !stream.writable) return this.destroy();
    stream.removeAllListeners("data");
    stream.resume();
    stream.once("end", () => this.destroy());
    this.#status = "closing";
    this.#destroyLate();
    if (isAnswered) return void stream.end();
    this.#current?.abort();
    const refusal = reply();
    stream.write(headOf(refusal));
    stream.end(refusal.body);
  }

  // --- Called by the transport ---

  getRemoteAddress(): ArrayBuffer {
    return this.address;
  }

  onAborted(handler: () => void): void {
    this.#onFirstRequest = handler;
  }

  close(): void {
    this.destroy();
  }

  #reportFirstRequest(): void {
    this.#onFirstRequest?.();
    this.#onFirstRequest = undefined;
  }

  #startNext(): void {
    if (this.#isStarting) return;
    this.#isStarting = true;
    while (this.#status === "open" && this.#waiting.length > 0) {
      if (this.#current?.isPending === true) {
        this.destroy();
        break;
      }
      if (this.#current !== undefined && !this.#current.isEnded) break;
      const next = this.#waiting.shift();
      this.#current = next?.response;
      next?.run();
    }
    this.#isStarting = false;
  }

  /**
   * Makes the close wait for a body that the peer is still sending. Otherwise, Node.js would reset
   * the connection, and the peer would lose the reply.
   */
  #lingerOnClose(): void {
    const { stream } = this;
    const destroySoon = stream.destroySoon.bind(stream);
    stream.destroySoon = () => {
      if (this.#status !== "open") return;
      this.#status = "closing";
      if (this.#current?.isBodyRead !== false) return destroySoon();
      stream.end();
      this.#destroyLate();
    };
  }

  #destroyLate(): void {
    const timer = setTimeout(() => this.destroy(), LINGER_MS).unref();
    this.#socket.once("close", () => clearTimeout(timer));
  }
}

function headOf({ status, headers = {}, body }: HeadRefusal): string {
  const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}\r\n`);
  const length = `content-length: ${Buffer.byteLength(body)}\r\n`;
  const reason = STATUS_CODES[status] ?? "Unknown";
  return `HTTP/1.1 ${status} ${reason}\r\n${lines.join("")}${length}connection: close\r\n\r\n`;
}
