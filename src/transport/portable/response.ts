// Response to one request on `node:http`. Must never call a handler after the response has ended,
// nor write after the connection has closed.

import type { IncomingMessage, ServerResponse } from "node:http";
import type { DriverResponse } from "../driver.ts";

export interface ResponseOwner {
  readonly address: ArrayBuffer;
  readonly proxiedAddress: ArrayBuffer;
  /** Called when the whole body has been passed to the request's handler. */
  bodyDelivered(): void;
  ended(): void;
  /** Closes the connection at once, which aborts the response. */
  destroy(): void;
}

type DataHandler = Parameters<DriverResponse["onData"]>[0];
type Upgrade = (data: unknown, key: string, subprotocol: string) => void;

/**
 * Size of the pieces in which a large body is written. Each piece that the peer reads counts as
 * progress.
 */
const PIECE_BYTES = 64 * 1024;
/** Time without progress after which a peer is disconnected. */
const STALL_S = 10;
const NO_BYTES = new Uint8Array(0);

export class PortableResponse implements DriverResponse {
  readonly #owner: ResponseOwner;
  readonly #req: IncomingMessage;
  readonly #res: ServerResponse;
  readonly #upgrade: Upgrade | undefined;
  readonly #expectsContinue: boolean;
  readonly #bodyBytes: number;
  #status = 200;
  #reason = "OK";
  readonly #headers: string[] = [];
  #phase: "open" | "ended" | "aborted" | "upgraded" = "open";
  #onAborted: (() => void) | undefined;
  #onWritable: ((offset: number) => boolean) | undefined;
  #onData: DataHandler | undefined;
  #isBodyComplete = false;
  #progress = 0;
  #stalledS = 0;

  constructor(
    owner: ResponseOwner,
    { req, res }: { readonly req: IncomingMessage; readonly res: ServerResponse },
    { expectsContinue, upgrade }: { readonly expectsContinue: boolean; readonly upgrade?: Upgrade },
  ) {
    this.#owner = owner;
    this.#req = req;
    this.#res = res;
    this.#expectsContinue = expectsContinue;
    this.#upgrade = upgrade;
    const length = Number(req.headers["content-length"] ?? 0);
    this.#bodyBytes = req.headers["transfer-encoding"] === undefined ? length : Infinity;
    res.on("error", () => {}); // the close of the connection follows
  }

  /** True if nothing has been written yet, so that the response may still be replaced. */
  get isUnanswered(): boolean {
    return this.#phase === "open" && !this.#res.headersSent;
  }

  get isEnded(): boolean {
    return this.#phase !== "open";
  }

  /**
   * True while the response is attached to the stream. Node.js detaches the response when the whole
   * reply has been written.
   */
  get hasStream(): boolean {
    return this.#res.socket !== null;
  }

  /**
   * True if the client can send its next request, because the reply has ended and the body was
   * read.
   */
  get isOver(): boolean {
    return this.#phase === "ended" && this.#req.complete;
  }

  get isBodyRead(): boolean {
    return this.#req.complete;
  }

  /** True if the handler has received the whole request and the reply is pending. */
  get isPending(): boolean {
    if (this.#phase !== "open") return false;
    return this.#onData === undefined ? this.#bodyBytes === 0 : this.#isBodyComplete;
  }

  abort(): void {
    if (this.#phase !== "open") return;
    this.#phase = "aborted";
    this.#onAborted?.();
  }

  /**
   * Called every second. Returns true if the peer has stalled: for `STALL_S` seconds, it has
   * neither sent its body nor read its reply.
   */
  tick(): boolean {
    const { socket } = this.#res;
    const awaitsBody = this.#onData !== undefined && !this.#isBodyComplete;
    const unread = socket?.writableLength ?? 0;
    const progress = this.#req.socket.bytesRead + (socket?.bytesWritten ?? 0) - unread;
    if ((!awaitsBody && unread === 0) || progress !== this.#progress) this.#stalledS = 0;
    else this.#stalledS += 1;
    this.#progress = progress;
    return this.#stalledS >= STALL_S;
  }

  // --- Called by the transport ---

  getRemoteAddress(): ArrayBuffer {
    return this.#owner.address;
  }

  getProxiedRemoteAddress(): ArrayBuffer {
    return this.#owner.proxiedAddress;
  }

  cork(step: () => void): void {
    if (this.#phase === "open") step();
  }

  onAborted(handler: () => void): void {
    this.#onAborted = handler;
  }

  onWritable(handler: (offset: number) => boolean): void {
    this.#onWritable = handler;
    this.#res.on("drain", () => {
      if (this.#phase === "open") this.#onWritable?.(0);
    });
  }

  onData(handler: DataHandler): void {
    this.#onData = handler;
    if (this.#expectsContinue) this.#res.writeContinue();
    let received = 0;
    this.#req.on("data", (chunk: Buffer) => {
      received += chunk.length;
      this.#received(chunk, received === this.#bodyBytes);
    });
    this.#req.on("end", () => {
      if (!this.#isBodyComplete) this.#received(NO_BYTES, true);
    });
  }

  writeStatus(status: string): void {
    this.#status = Number.parseInt(status, 10);
    this.#reason = status.slice(4);
  }

  writeHeader(name: string, value: string): void {
    if (typeof value !== "string") throw new TypeError(`The header ${name} is not a string`);
    this.#headers.push(name, value);
  }

  write(piece: string): boolean {
    if (this.#phase !== "open") return true;
    this.#sendHead();
    return this.#res.write(piece);
  }

  end(body: string | Uint8Array = "", closesConnection = false): void {
    if (this.#phase !== "open") return;
    const isStreamed = this.#res.headersSent;
    if (isStreamed) this.#res.end();
    else {
      if (closesConnection) this.#headers.push("connection", "close");
      this.#headers.push("content-length", String(Buffer.byteLength(body)));
      this.#sendHead();
      if (body.length > PIECE_BYTES)
        this.#writePieces(typeof body === "string" ? Buffer.from(body) : body);
      else this.#res.end(body);
    }
    // Node.js closes the connection itself because of the `connection: close` header, except after
    // a streamed reply and after the reply to an upgrade.
    const isOwnClose = isStreamed || this.#upgrade !== undefined;
    if (closesConnection && isOwnClose)
      this.#res.on("finish", () => this.#req.socket.destroySoon());
    this.#ended();
  }

  endWithoutBody(): void {
    if (this.#phase !== "open") return;
    this.#sendHead();
    this.#res.end();
    this.#ended();
  }

  close(): void {
    this.#owner.destroy();
  }

  upgrade(data: unknown, key: string, subprotocol: string): void {
    this.#phase = "upgraded";
    this.#upgrade?.(data, key, subprotocol);
  }

  #received(chunk: Uint8Array, isLast: boolean): void {
    this.#isBodyComplete = isLast;
    if (this.#phase === "open") this.#onData?.(chunk, isLast);
    if (isLast) this.#owner.bodyDelivered();
  }

  /** Sends the head. Throws if a header is invalid. */
  #sendHead(): void {
    if (!this.#res.headersSent) this.#res.writeHead(this.#status, this.#reason, this.#headers);
  }

  #writePieces(body: Uint8Array): void {
    let at = 0;
    const next = (error?: Error | null) => {
      if (error) return;
      const piece = body.subarray(at, at + PIECE_BYTES);
      at += piece.length;
      if (at < body.length) this.#res.write(piece, next);
      else this.#res.end(piece);
    };
    next();
  }

  #ended(): void {
    this.#phase = "ended";
    this.#owner.ended();
  }
}
