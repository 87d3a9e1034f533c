// One client socket that sends and receives frames over TCP, without WebSocket. Frames sent in one
// turn of the event loop are written together. Must never call its connection after `closed`.

import type { Socket } from "node:net";
import type { SocketConnection, SocketData } from "../connection.ts";
import type { DriverSocket } from "../driver.ts";
import { StreamWriter } from "../stream-writer.ts";
import type { Subscriber, Topics } from "../topics.ts";
import type { TurnEnd, TurnEndTask } from "../turn-end.ts";
import type { Framer } from "../types.ts";

export interface TcpSocketContext {
  readonly topics: Topics;
  /** Runs its tasks after all other tasks of a turn of the event loop. */
  readonly turnEnd: TurnEnd;
  readonly sockets: Set<TcpSocket>;
  readonly connections: Set<SocketConnection>;
  readonly maxUnreadBytes: number;
  readonly idleTimeoutS: number;
}

/**
 * Close code if the connection was not closed with `end`. Over TCP, there are no close frames that
 * could contain a code.
 */
const ABNORMAL = 1006;
/** Time for which a peer may keep open a connection that the server has ended. */
const CLOSE_TIMEOUT_MS = 5000;

export class TcpSocket implements DriverSocket<SocketData>, Subscriber, TurnEndTask {
  readonly topics = new Set<string>();
  readonly pending: number[] = [];
  readonly #connection: SocketConnection;
  readonly #stream: Socket;
  readonly #framer: Framer;
  readonly #context: TcpSocketContext;
  readonly #writer: StreamWriter;
  #isClosed = false;
  /** True if the peer has sent something since the last tick. */
  #isHeard = true;
  #silentS = 0;

  constructor(
    connection: SocketConnection,
    { stream, framer }: { readonly stream: Socket; readonly framer: Framer },
    context: TcpSocketContext,
  ) {
    this.#connection = connection;
    this.#stream = stream;
    this.#framer = framer;
    this.#context = context;
    this.#writer = new StreamWriter(stream, this);
    context.sockets.add(this);
  }

  /** Starts reading from the stream. The connection's `opened` must have been called before. */
  start(): void {
    this.#stream.on("data", this.#received);
    this.#stream.on("end", () => this.close());
    this.#stream.on("close", () => this.#closed(ABNORMAL));
    if (this.#stream.destroyed) this.#closed(ABNORMAL);
  }

  getUserData(): SocketData {
    return { connection: this.#connection };
  }

  send(frame: Uint8Array | string): void {
    if (this.#isClosed) return;
    this.#context.topics.flush(this);
    this.deliver(bufferOf(frame));
  }

  /**
   * Returns the number of bytes that wait for the peer. Frames that wait only for the end of the
   * turn are not counted.
   */
  getBufferedAmount(): number {
    return this.#writer.isBlocked ? this.#writer.unwrittenBytes : 0;
  }

  cork(step: () => void): void {
    step();
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

  /** Writes the queued frames and closes the connection. The peer does not receive `code`. */
  end(code: number): void {
    if (this.#isClosed) return;
    this.#context.topics.flush(this);
    this.#writer.finish();
    const stream = this.#stream;
    stream.removeListener("data", this.#received);
    stream.resume(); // closing a connection with unread bytes would reset it
    stream.end();
    const late = setTimeout(() => stream.destroy(), CLOSE_TIMEOUT_MS).unref();
    stream.once("close", () => clearTimeout(late));
    this.#closed(code);
  }

  close(): void {
    this.#stream.destroy();
    this.#closed(ABNORMAL);
  }

  /**
   * Queues frames until the end of the turn, or until a slow peer has read the earlier frames.
   * Drops the peer if its unread bytes would exceed `maxUnreadBytes`.
   */
  deliver(frames: Buffer): void {
    if (this.#isClosed) return;
    if (this.getBufferedAmount() + frames.length > this.#context.maxUnreadBytes)
      return this.#connection.drop();
    this.#hold();
    this.#writer.write(frames);
  }

  turnEnded(): void {
    this.#writer.isHeld = false;
    if (this.#isClosed) return;
    this.#writer.flush();
    if (this.#writer.isBlocked) this.#connection.checkBuffer();
  }

  get isWritable(): boolean {
    return !this.#isClosed;
  }

  drained(): void {
    this.#connection.drained();
  }

  /** Called every second. Closes the connection if the peer has been silent for `idleTimeoutS`. */
  tick(): void {
    this.#silentS = this.#isHeard ? 0 : this.#silentS + 1;
    this.#isHeard = false;
    if (this.#silentS >= this.#context.idleTimeoutS) this.close();
  }

  readonly #received = (bytes: Buffer): void => {
    this.#isHeard = true;
    for (const frame of this.#framer.frames(bytes)) {
      if (this.#isClosed) return;
      this.#connection.received(frame, false);
    }
  };

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
    this.#context.connections.delete(this.#connection);
    this.#connection.closed(code);
  }
}

/** Returns the bytes of a frame, without copying them unless the frame is text. */
export function bufferOf(frame: Uint8Array | string): Buffer {
  return typeof frame === "string"
    ? Buffer.from(frame)
    : Buffer.from(frame.buffer, frame.byteOffset, frame.length);
}
