// One client socket on `ws`. Frames are written by this file, because frames that many sockets
// share are encoded once; `ws` parses what the peer sends and does the closing handshake. Must
// never call the behaviour after its `close`.

import type { Socket } from "node:net";
import type { WebSocket } from "ws";
import type { DriverSocket, SocketBehaviour } from "../driver.ts";
import type { TurnEnd, TurnTask } from "../turn-end.ts";
import { encodeFrame, encodePong, PING_FRAME } from "./frames.ts";
import type { Subscriber, Topics } from "./topics.ts";

interface SocketContext<Data> {
  readonly behaviour: SocketBehaviour<Data>;
  readonly topics: Topics;
  readonly turnEnd: TurnEnd;
  readonly sockets: Set<PortableSocket<Data>>;
}

/** Maximum size of one write while the peer reads slowly. Its end shows that the peer has read. */
const MAX_WRITE_BYTES = 64 * 1024;
const ABNORMAL = 1006;
/** Seconds before the time-out at which a silent peer gets a ping, at most a quarter of it. */
const PING_MARGIN_S = 16;
const PING_SHARE = 1 / 4;

export class PortableSocket<Data> implements DriverSocket<Data>, Subscriber, TurnTask {
  readonly topics = new Set<string>();
  readonly pending: number[] = [];
  readonly #data: Data;
  readonly #ws: WebSocket;
  readonly #stream: Socket;
  readonly #context: SocketContext<Data>;
  #queue: Buffer[] = [];
  #queuedBytes = 0;
  #isBlocked = false;
  /** True while frames are collected until the end of the turn or of `cork`. */
  #isHeld = false;
  #isClosed = false;
  #bytesRead = 0;
  #silentS = 0;

  constructor(
    data: Data,
    { ws, stream }: { readonly ws: WebSocket; readonly stream: Socket },
    context: SocketContext<Data>,
  ) {
    this.#data = data;
    this.#ws = ws;
    this.#stream = stream;
    this.#context = context;
    ws.on("message", (message: Buffer, isBinary) => this.#received(message, isBinary));
    ws.on("ping", (payload) => this.#pinged(payload));
    ws.on("close", (code) => this.#closed(code));
    ws.on("error", () => this.#closed(ABNORMAL)); // `ws` then sends the close code of the error
    context.sockets.add(this);
  }

  getUserData(): Data {
    return this.#data;
  }

  send(frame: Uint8Array | string, isBinary: boolean): void {
    if (this.#isClosed) return;
    this.#context.topics.flush(this);
    this.deliver(encodeFrame(frame, isBinary));
  }

  getBufferedAmount(): number {
    return this.#queuedBytes + this.#stream.writableLength;
  }

  cork(step: () => void): void {
    if (this.#isHeld) return step();
    this.#isHeld = true;
    try {
      step();
    } finally {
      this.#isHeld = false;
      this.#flush();
    }
  }

  subscribe(topic: string): void {
    if (!this.#isClosed) this.#context.topics.subscribe(this, topic);
  }

  unsubscribe(topic: string): boolean {
    return this.#context.topics.unsubscribe(this, topic);
  }

  getTopics(): string[] {
    return [...this.topics];
  }

  publish(topic: string, data: Uint8Array | string, isBinary: boolean): void {
    this.#context.topics.publish(topic, { data, isBinary }, this);
  }

  end(code: number, message: string): void {
    if (this.#isClosed) return;
    this.#context.topics.flush(this);
    for (const frame of this.#queue) this.#stream.write(frame);
    this.#ws.close(code, message);
    this.#closed(code);
  }

  close(): void {
    this.#closed(ABNORMAL);
    this.#ws.terminate();
  }

  deliver(frames: Buffer): void {
    if (this.#isClosed) return;
    const { behaviour } = this.#context;
    if (this.getBufferedAmount() + frames.length > behaviour.maxUnreadBytes)
      return behaviour.dropped(this);
    if (!this.#isHeld && !this.#isBlocked) return this.#write(frames);
    this.#queue.push(frames);
    this.#queuedBytes += frames.length;
    if (this.#queuedBytes > MAX_WRITE_BYTES) this.#flush();
  }

  turnEnded(): void {
    this.#isHeld = false;
    if (this.#isClosed || this.#queuedBytes === 0) return;
    this.#flush();
    if (!this.#isBlocked) this.#context.behaviour.drain(this);
  }

  /** Called every second. Sends a ping to a silent peer, and closes one that stays silent. */
  tick(): void {
    if (this.#stream.bytesRead !== this.#bytesRead) {
      this.#bytesRead = this.#stream.bytesRead;
      this.#silentS = 0;
      return;
    }
    this.#silentS += 1;
    const { idleTimeoutS } = this.#context.behaviour;
    const marginS = Math.min(PING_MARGIN_S, Math.ceil(idleTimeoutS * PING_SHARE));
    if (this.#silentS >= idleTimeoutS) this.close();
    else if (this.#silentS === idleTimeoutS - marginS) this.deliver(PING_FRAME);
  }

  #received(message: Buffer, isBinary: boolean): void {
    if (this.#isClosed) return;
    this.#hold();
    this.#context.behaviour.message(this, message, isBinary);
  }

  #pinged(payload: Buffer): void {
    if (this.#isClosed) return;
    this.#hold();
    this.deliver(encodePong(payload));
    if (!this.#isClosed) this.#context.behaviour.ping(this, payload);
  }

  #hold(): void {
    if (this.#isHeld) return;
    this.#isHeld = true;
    this.#context.turnEnd.add(this);
  }

  #flush(): void {
    while (!this.#isBlocked && this.#queue.length > 0) this.#write(this.#takePiece());
  }

  /** Takes frames of at most `MAX_WRITE_BYTES`, or one larger frame. */
  #takePiece(): Buffer {
    let bytes = 0;
    let count = 0;
    for (const frame of this.#queue) {
      if (count > 0 && bytes + frame.length > MAX_WRITE_BYTES) break;
      bytes += frame.length;
      count += 1;
    }
    const frames = this.#queue.splice(0, count);
    this.#queuedBytes -= bytes;
    const [first] = frames;
    return frames.length === 1 && first !== undefined ? first : Buffer.concat(frames, bytes);
  }

  #write(bytes: Buffer): void {
    // After a close frame of the peer, `ws` has sent its own, and nothing may follow.
    if (this.#ws.readyState !== this.#ws.OPEN) return;
    this.#stream.write(bytes, this.#written);
    this.#isBlocked = this.#stream.writableLength > 0;
  }

  readonly #written = (): void => {
    if (!this.#isBlocked || this.#isClosed) return;
    this.#isBlocked = this.#stream.writableLength > 0;
    this.#flush();
    this.#context.behaviour.drain(this);
  };

  #closed(code: number): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#queue = [];
    this.#queuedBytes = 0;
    this.#context.topics.remove(this);
    this.#context.sockets.delete(this);
    this.#context.behaviour.close(this, code);
  }
}
