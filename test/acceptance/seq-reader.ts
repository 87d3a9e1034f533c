// A native client that reads one channel and only checks that each message has the next seq, so
// that much data can pass through it. Keeps the last seq and the first error. Never reconnects: a
// new reader continues with its `lastSeq`.

import { WebSocket } from "ws";
import type { ChannelRef, Message } from "../../src/broker/model.ts";
import { decodeServerFrame, type ServerFrame } from "../../src/protocol/native/client-decode.ts";
import { encodeOperation } from "../../src/protocol/native/client-encode.ts";
import { NATIVE_SUBPROTOCOL, NATIVE_VERSION } from "../../src/protocol/native/ops.ts";
import { Waiters } from "../support/waiters.ts";

export interface SeqReaderOptions {
  readonly port: number;
  readonly uid: string;
  readonly channel: ChannelRef;
  /** Last seq that the reader received earlier. The first message must have the next seq. */
  readonly lastSeq: number;
  /** True if the reader resumes the channel. Default: it starts with live messages. */
  readonly resume?: boolean;
  /** Approximate reading speed. `undefined` means no limit. */
  readonly bytesPerSecond?: number;
  /** Called for every live message. */
  readonly onLive?: (message: Message) => void;
  readonly timeoutMs?: number;
}

const TIMEOUT_MS = 120_000;
/** Maximum time for which a slow reader reads before it pauses. */
const PACE_MS = 20;

export class SeqReader {
  readonly uid: string;
  readonly #options: SeqReaderOptions;
  readonly #socket: WebSocket;
  readonly #waiters: Waiters;
  #lastSeq: number;
  #liveCount = 0;
  #status: "connecting" | "open" | "over" = "connecting";
  #bytesSincePause = 0;
  #closeCode = 0;
  #fault: string | undefined;

  constructor(options: SeqReaderOptions) {
    this.uid = options.uid;
    this.#options = options;
    this.#lastSeq = options.lastSeq;
    this.#waiters = new Waiters(options.timeoutMs ?? TIMEOUT_MS);
    this.#socket = new WebSocket(`ws://127.0.0.1:${options.port}`, NATIVE_SUBPROTOCOL, {
      perMessageDeflate: false,
    });
    this.#socket.on("open", () => this.#connect());
    this.#socket.on("message", (data: Buffer) => this.#receive(data));
    this.#socket.on("error", () => undefined); // a `close` event always follows
    this.#socket.on("close", (code) => {
      this.#status = "over";
      this.#closeCode = code;
      this.#waiters.check();
    });
  }

  /** Last seq of the unbroken sequence received so far. */
  get lastSeq(): number {
    return this.#lastSeq;
  }

  /** Number of live messages. Resumed messages are not counted. */
  get liveCount(): number {
    return this.#liveCount;
  }

  /** First message that was out of order, or `undefined` if there was none. */
  get fault(): string | undefined {
    return this.#fault;
  }

  get isOver(): boolean {
    return this.#status === "over";
  }

  /** Resolves when the session is open. Rejects if it cannot be opened. */
  async opened(): Promise<this> {
    await this.waitFor(() => this.#status === "open", "the session");
    return this;
  }

  /** Returns the close code after the connection has ended. */
  async closed(): Promise<number> {
    await this.#waiters.until(`the end of ${this.uid}`, () => this.isOver);
    return this.#closeCode;
  }

  /** Resolves when the reader has all messages up to `seq`. */
  reached(seq: number): Promise<void> {
    return this.waitFor(() => this.#lastSeq >= seq, `seq ${seq}`);
  }

  /**
   * Resolves when `holds()` returns true. `holds` is called after every frame. Rejects on an error,
   * on the end of the connection, and after the time-out.
   */
  async waitFor(holds: () => boolean, condition: string): Promise<void> {
    await this.#waiters.until(`${condition} (${this.uid})`, () => {
      if (this.#fault !== undefined) throw new Error(this.#fault);
      if (holds()) return true;
      if (this.isOver) throw new Error(`${this.uid} was closed before: ${condition}`);
      return false;
    });
  }

  /** Stops reading, so that the buffers between the reader and the server fill up. */
  pause(): void {
    this.#socket.pause();
  }

  resume(): void {
    this.#socket.resume();
  }

  /** Sends any bytes as a binary frame. */
  raw(frame: Uint8Array): void {
    if (this.#socket.readyState === WebSocket.OPEN) this.#socket.send(frame);
  }

  kill(): void {
    this.#socket.terminate();
  }

  #connect(): void {
    const { uid, channel, lastSeq, resume = false } = this.#options;
    const connect = {
      kind: "connect",
      sessionName: "",
      ref: 1,
      version: NATIVE_VERSION,
      uid,
      token: "",
      flag: 0,
      deviceId: "",
      level: undefined,
      resume: resume ? [{ channel, lastSeq }] : [],
    } as const;
    this.#socket.send(encodeOperation(connect));
  }

  #receive(data: Buffer): void {
    this.#handle(decodeServerFrame(data, this.uid));
    this.#waiters.check();
    this.#pace(data.length);
  }

  #pace(bytes: number): void {
    const { bytesPerSecond } = this.#options;
    if (bytesPerSecond === undefined) return;
    this.#bytesSincePause += bytes;
    const overMs = (this.#bytesSincePause / bytesPerSecond) * 1000;
    if (overMs < PACE_MS) return;
    this.#bytesSincePause = 0;
    this.pause();
    setTimeout(() => this.resume(), overMs);
  }

  #handle(frame: ServerFrame): void {
    if (frame.kind === "connack") this.#status = "open";
    else if (frame.kind === "message") this.#handleLive(frame.message);
    else if (frame.kind === "messages") {
      this.#expect(frame.afterSeq, this.#lastSeq, "a run's afterSeq");
      for (const { messageSeq } of frame.messages) this.#advance(messageSeq);
      this.#expect(frame.throughSeq, this.#lastSeq, "a run's throughSeq");
    }
  }

  #handleLive(message: Message): void {
    this.#liveCount += 1;
    this.#advance(message.messageSeq);
    this.#options.onLive?.(message);
  }

  #advance(seq: number): void {
    this.#expect(seq, this.#lastSeq + 1, "a messageSeq");
    this.#lastSeq = seq;
  }

  #expect(actual: number, expected: number, name: string): void {
    if (actual !== expected) this.#fault ??= `${this.uid}: ${name} was ${actual}, not ${expected}`;
  }
}
