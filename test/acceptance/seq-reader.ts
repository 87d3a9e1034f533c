// A native client that reads one channel and keeps of each message only whether its seq was the
// next one: 50 MB may pass through it. State: the seq it has, and the first thing that was out of
// order. Never reconnects; a reader that goes on takes over `lastSeq`.

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
  /** The newest seq it has: it takes the next one as the first. */
  readonly lastSeq: number;
  /** Names the channel to resume; else it starts with live messages. */
  readonly resume?: boolean;
  /** Reads about so many bytes a second; undefined: as fast as they come. */
  readonly bytesPerSecond?: number;
  /** Told of every live message. */
  readonly onLive?: (message: Message) => void;
  readonly timeoutMs?: number;
}

const TIMEOUT_MS = 120_000;
/** A paced reader waits whenever it has read what it may read in so long. */
const PACE_MS = 20;

export class SeqReader {
  readonly uid: string;
  readonly #options: SeqReaderOptions;
  readonly #socket: WebSocket;
  readonly #waiters: Waiters;
  #lastSeq: number;
  #liveCount = 0;
  #status: "connecting" | "open" | "over" = "connecting";
  #bytesThisStep = 0;
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
    this.#socket.on("message", (data: Buffer) => this.#received(data));
    this.#socket.on("error", () => undefined); // the close that follows tells
    this.#socket.on("close", (code) => {
      this.#status = "over";
      this.#closeCode = code;
      this.#waiters.check();
    });
  }

  /** The newest seq it has, of an unbroken sequence. */
  get lastSeq(): number {
    return this.#lastSeq;
  }

  /** Messages that came live, not in resume runs. */
  get liveCount(): number {
    return this.#liveCount;
  }

  /** What was out of order, or undefined. */
  get fault(): string | undefined {
    return this.#fault;
  }

  get isOver(): boolean {
    return this.#status === "over";
  }

  /** Resolves when the session is open; rejects when it cannot be. */
  async opened(): Promise<this> {
    await this.waitFor(() => this.#status === "open", "the session");
    return this;
  }

  /** Resolves with the close code once the connection is over. */
  async closed(): Promise<number> {
    await this.#waiters.until(`the end of ${this.uid}`, () => this.isOver);
    return this.#closeCode;
  }

  /** Resolves once it has everything through `seq`. */
  reached(seq: number): Promise<void> {
    return this.waitFor(() => this.#lastSeq >= seq, `seq ${seq}`);
  }

  /**
   * Resolves when `holds()`, tried after every frame; rejects on a fault, when the connection ends
   * without it, or after the time-out.
   */
  async waitFor(holds: () => boolean, what: string): Promise<void> {
    await this.#waiters.until(`${what} (${this.uid})`, () => {
      if (this.#fault !== undefined) throw new Error(this.#fault);
      if (holds()) return true;
      if (this.isOver) throw new Error(`${this.uid} was closed before ${what}`);
      return false;
    });
  }

  /** Stops reading: the buffers between here and the server fill up. */
  pause(): void {
    this.#socket.pause();
  }

  resume(): void {
    this.#socket.resume();
  }

  /** Any bytes as a binary frame. */
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
      session: "",
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

  #received(data: Buffer): void {
    this.#take(decodeServerFrame(data, this.uid));
    this.#waiters.check();
    this.#pace(data.length);
  }

  #pace(bytes: number): void {
    const { bytesPerSecond } = this.#options;
    if (bytesPerSecond === undefined) return;
    this.#bytesThisStep += bytes;
    const overMs = (this.#bytesThisStep / bytesPerSecond) * 1000;
    if (overMs < PACE_MS) return;
    this.#bytesThisStep = 0;
    this.pause();
    setTimeout(() => this.resume(), overMs);
  }

  #take(frame: ServerFrame): void {
    if (frame.kind === "connack") this.#status = "open";
    else if (frame.kind === "message") this.#takeLive(frame.message);
    else if (frame.kind === "messages") {
      this.#expect(frame.afterSeq, this.#lastSeq, "a run's afterSeq");
      for (const { messageSeq } of frame.messages) this.#takeSeq(messageSeq);
      this.#expect(frame.throughSeq, this.#lastSeq, "a run's throughSeq");
    }
  }

  #takeLive(message: Message): void {
    this.#liveCount += 1;
    this.#takeSeq(message.messageSeq);
    this.#options.onLive?.(message);
  }

  #takeSeq(seq: number): void {
    this.#expect(seq, this.#lastSeq + 1, "a messageSeq");
    this.#lastSeq = seq;
  }

  #expect(found: number, wanted: number, what: string): void {
    if (found !== wanted) this.#fault ??= `${this.uid}: ${what} was ${found}, not ${wanted}`;
  }
}
