// One client socket: queues the frames of a loop turn, keeps their order against subscriptions, and ends in an orderly way. State: the
// native socket while it is open, its handler, the queue. Ten thousands of these exist: few fields, nothing allocated while idle.
// Must never touch the native socket after its close event, nor call the handler's `closed` twice.

import type { WebSocket } from "uWebSockets.js";
import type { Farewells } from "./farewells.ts";
import { frameBytes } from "./frame-bytes.ts";
import type { Reader } from "./slow-readers.ts";
import type { TurnEnd, TurnTask } from "./turn-end.ts";
import type {
  Connection,
  ConnectionHandler,
  ListenerSpec,
  SocketEndpoint,
} from "./types.ts";

type Frame = Uint8Array | string;

/** What the native socket carries, to find our connection in its events. */
export interface SocketData {
  readonly connection: SocketConnection;
}

/** What all connections of a listener share. */
export interface ConnectionSurroundings {
  readonly turnEnd: TurnEnd;
  readonly farewells: Farewells;
  readonly limits: Pick<SocketEndpoint, "maxBufferedBytes" | "slowReader">;
  readonly onError: ListenerSpec["onError"];
  /** Publishes to everyone. */
  publish(topic: string, frame: Frame): void;
  /** Told of each frame published, so that slow readers are looked for. */
  published(frame: Frame): void;
  /** The connection whose frame is being handled: its socket is corked, so it is written to straight. */
  receiving: SocketConnection | undefined;
}

/** A longer queue is written before the turn ends: one write of this size is as good as a bigger one. */
const MAX_QUEUED_BYTES = 64 * 1024;
const INTERNAL_ERROR = 1011;

export class SocketConnection implements Connection, Reader, TurnTask {
  readonly id: number;
  readonly remoteAddress: string;
  readonly #around: ConnectionSurroundings;
  #socket: WebSocket<SocketData> | undefined;
  #handler: ConnectionHandler | undefined;
  /** One frame needs no array. */
  #queue: Frame | Frame[] | undefined;
  #queuedBytes = 0;
  /** 0 = open. From then on nothing is sent and nothing received. */
  #endCode = 0;
  #isSubscriber = false;

  static #lastId = 0;

  constructor(remoteAddress: string, around: ConnectionSurroundings) {
    SocketConnection.#lastId += 1;
    this.id = SocketConnection.#lastId;
    this.remoteAddress = remoteAddress;
    this.#around = around;
  }

  // --- For its owner -----------------------------------------------------------------------------------------------

  send(frame: Frame): void {
    const socket = this.#socket;
    if (socket === undefined || this.#endCode !== 0) return;
    if (this.#around.receiving === this) {
      this.#flush(socket);
      socket.send(frame, typeof frame !== "string");
    } else this.#enqueue(frame, socket);
  }

  subscribe(topic: string): void {
    const socket = this.#socket;
    if (socket === undefined || this.#endCode !== 0) return;
    this.#flush(socket);
    socket.subscribe(topic);
    this.#isSubscriber = true;
  }

  unsubscribe(topic: string): void {
    if (this.#endCode === 0) this.#socket?.unsubscribe(topic);
  }

  /** The own queue need not be written first: no one can see both it and what is published here. */
  publish(topic: string, frame: Frame): void {
    const socket = this.#socket;
    if (socket === undefined || this.#endCode !== 0) return;
    // The native method publishes nothing for a socket that never subscribed to anything; who is no subscriber need not be left out.
    if (!this.#isSubscriber) return this.#around.publish(topic, frame);
    socket.publish(topic, frame, typeof frame !== "string");
    this.#around.published(frame);
  }

  bufferedBytes(): number {
    if (this.#socket === undefined) return 0;
    return this.#queuedBytes + this.#socket.getBufferedAmount();
  }

  end(code: number, message: string): void {
    const socket = this.#socket;
    if (socket === undefined || this.#endCode !== 0) return;
    this.#flush(socket);
    this.#endCode = code;
    this.#around.farewells.add(socket, code, message);
    this.#tellClosed();
  }

  // --- For the native events ---------------------------------------------------------------------------------------

  /** The handshake is done. The handler `open` returns hears of everything from now on. */
  opened(
    socket: WebSocket<SocketData>,
    open: (connection: Connection) => ConnectionHandler,
  ): void {
    this.#socket = socket;
    try {
      this.#handler = open(this);
    } catch (error) {
      this.#failed(error);
    }
    if (this.#endCode !== 0) this.#tellClosed();
  }

  received(data: ArrayBuffer, isText: boolean): void {
    const handler = this.#handler;
    if (handler === undefined || this.#endCode !== 0) return;
    this.#around.receiving = this;
    try {
      handler.received(new Uint8Array(data), isText);
    } catch (error) {
      this.#failed(error);
    }
    this.#around.receiving = undefined;
    this.endIfSlow();
  }

  drained(): void {
    if (this.#socket === undefined) return;
    if (this.#endCode !== 0)
      return this.#around.farewells.drained(this.#socket);
    try {
      this.#handler?.drained();
    } catch (error) {
      this.#failed(error);
    }
  }

  /** A frame did not fit below the hard limit: none may follow it, and the socket is cut off as soon as that is safe. */
  dropped(): void {
    if (this.#endCode !== 0) return;
    this.#endCode = this.#around.limits.slowReader.code;
    this.#queue = undefined;
    this.#queuedBytes = 0;
    setImmediate(() => this.#socket?.close());
  }

  /** The native socket is gone. */
  closed(code: number): void {
    if (this.#socket !== undefined) this.#around.farewells.closed(this.#socket);
    this.#socket = undefined;
    this.#queue = undefined;
    this.#queuedBytes = 0;
    if (this.#endCode === 0) this.#endCode = code;
    this.#tellClosed();
  }

  /** Writes what the turn queued. */
  turnEnded(): void {
    if (this.#socket === undefined || this.#endCode !== 0) return;
    this.#flush(this.#socket);
    this.endIfSlow();
    this.drained();
  }

  /** Ends the connection when its peer leaves too much unread. */
  endIfSlow(): void {
    const { maxBufferedBytes, slowReader } = this.#around.limits;
    if (this.#socket === undefined || this.#endCode !== 0) return;
    if (this.#socket.getBufferedAmount() > maxBufferedBytes)
      this.end(slowReader.code, slowReader.message);
  }

  // --- Helpers -----------------------------------------------------------------------------------------------------

  #enqueue(frame: Frame, socket: WebSocket<SocketData>): void {
    if (this.#queue === undefined) {
      this.#queue = frame;
      this.#around.turnEnd.add(this);
    } else if (Array.isArray(this.#queue)) this.#queue.push(frame);
    else this.#queue = [this.#queue, frame];
    this.#queuedBytes += frameBytes(frame);
    if (this.#queuedBytes > MAX_QUEUED_BYTES) this.#flush(socket);
  }

  #flush(socket: WebSocket<SocketData>): void {
    const queue = this.#queue;
    if (queue === undefined) return;
    this.#queue = undefined;
    this.#queuedBytes = 0;
    if (!Array.isArray(queue)) {
      socket.send(queue, typeof queue !== "string");
      return;
    }
    socket.cork(() => {
      for (const frame of queue) socket.send(frame, typeof frame !== "string");
    });
  }

  #tellClosed(): void {
    const handler = this.#handler;
    if (handler === undefined) return;
    this.#handler = undefined;
    try {
      handler.closed(this.#endCode);
    } catch (error) {
      this.#around.onError(error, "closed");
    }
  }

  #failed(error: unknown): void {
    this.#around.onError(error, "connection");
    this.end(INTERNAL_ERROR, "internal error");
  }
}
