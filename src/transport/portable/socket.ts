// One client socket on `ws`. This file writes the frames itself, so that frames that many sockets
// share are encoded once. `ws` parses the peer's frames and performs the closing handshake. Must
// never call the behaviour after its `close`.

import type { Socket } from "node:net";
import type { WebSocket } from "ws";
import type { DriverSocket, SocketBehaviour } from "../driver.ts";
import { StreamWriter } from "../stream-writer.ts";
import type { Subscriber, Topics } from "../topics.ts";
import type { TurnEnd, TurnEndTask } from "../turn-end.ts";
import { encodeFrame, encodePong, PING_FRAME } from "./frames.ts";

interface SocketContext<Data> {
  readonly behaviour: SocketBehaviour<Data>;
  readonly topics: Topics;
  readonly turnEnd: TurnEnd;
  readonly sockets: Set<PortableSocket<Data>>;
}

const ABNORMAL = 1006;
/**
 * A silent peer is sent a ping `PING_MARGIN_S` seconds before the timeout, or after three quarters
 * of the timeout, whichever is later.
 */
const PING_MARGIN_S = 16;
const PING_SHARE = 1 / 4;

export class PortableSocket<Data> implements DriverSocket<Data>, Subscriber, TurnEndTask {
  readonly topics = new Set<string>();
  readonly pending: number[] = [];
  readonly #data: Data;
  readonly #ws: WebSocket;
  readonly #stream: Socket;
  readonly #context: SocketContext<Data>;
  readonly #writer: StreamWriter;
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
    this.#writer = new StreamWriter(stream, this);
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
    return this.#writer.unwrittenBytes;
  }

  cork(step: () => void): void {
    if (this.#writer.isHeld) return step();
    this.#writer.isHeld = true;
    try {
      step();
    } finally {
      this.#writer.isHeld = false;
      this.#writer.flush();
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
    this.#writer.finish();
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
    this.#writer.write(frames);
  }

  turnEnded(): void {
    const writer = this.#writer;
    writer.isHeld = false;
    if (this.#isClosed || writer.queuedBytes === 0) return;
    writer.flush();
    if (!writer.isBlocked) this.drained();
  }

  /**
   * True if frames may be written. After a close frame from the peer, `ws` has sent its own close
   * frame, and nothing may follow it.
   */
  get isWritable(): boolean {
    return !this.#isClosed && this.#ws.readyState === this.#ws.OPEN;
  }

  drained(): void {
    this.#context.behaviour.drain(this);
  }

  /**
   * Called every second. Sends a ping to a silent peer, and closes the connection if the peer stays
   * silent.
   */
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
    if (this.#writer.isHeld) return;
    this.#writer.isHeld = true;
    this.#context.turnEnd.add(this);
  }

  #closed(code: number): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#writer.drop();
    this.#context.topics.remove(this);
    this.#context.sockets.delete(this);
    this.#context.behaviour.close(this, code);
  }
}
