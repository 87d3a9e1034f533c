// One client socket: queues the frames of a loop turn, keeps their order against subscriptions, and ends in an orderly way. State: the
// native socket while it is open, its handler, the queue. Ten thousands of these exist: few fields, nothing allocated while idle.
// Must never touch the native socket after its close event, nor call the handler's `closed` twice.

import type { WebSocket } from "uWebSockets.js";
import type { Farewells } from "./farewells.ts";
import { frameBytes } from "./frame-bytes.ts";
import type { Reader } from "./slow-readers.ts";
import type { SocketLimits } from "./socket-limits.ts";
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
  readonly limits: SocketLimits;
  readonly turnEnd: TurnEnd;
  readonly farewells: Farewells;
  readonly maxBufferedBytes: number;
  readonly lagBytes: number;
  readonly slowReader: SocketEndpoint["slowReader"];
  readonly onError: ListenerSpec["onError"];
  /** Publishes to everyone. */
  publish(topic: string, frame: Frame): void;
  /** Told of each frame published, so that lagging and slow readers are looked for. */
  published(frame: Frame): void;
  /** The connection whose frame is being handled: its socket is corked, so it is written to straight. */
  receiving: SocketConnection | undefined;
}

/** A longer queue is written before the turn ends: one write of this size is as good as a bigger one. */
const MAX_QUEUED_BYTES = 64 * 1024;
const INTERNAL_ERROR = 1011;

/** What the owner knows of a peer that lags. */
const KEEPS_UP = 0;
const FOUND_LAGGING = 1;
const TOLD_LAGGING = 2;

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
  #isCut = false;
  /** Until its peer has shown who it is. */
  #release: (() => void) | undefined;
  #lag: typeof KEEPS_UP | typeof FOUND_LAGGING | typeof TOLD_LAGGING = KEEPS_UP;

  static #lastId = 0;

  /** `release` ends its counting against its address. */
  constructor(
    remoteAddress: string,
    release: () => void,
    around: ConnectionSurroundings,
  ) {
    SocketConnection.#lastId += 1;
    this.id = SocketConnection.#lastId;
    this.remoteAddress = remoteAddress;
    this.#release = release;
    this.#around = around;
  }

  // --- For its owner -----------------------------------------------------------------------------------------------

  authenticated(): void {
    this.#release?.();
    this.#release = undefined;
  }

  send(frame: Frame): void {
    const socket = this.#socket;
    if (socket === undefined || this.#endCode !== 0) return;
    if (this.#around.receiving === this) {
      this.#flush(socket);
      socket.send(frame, typeof frame !== "string");
      this.look();
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
    // Who is ending gets nothing any more, but what it sent before is for all the others still.
    if (socket === undefined || this.#endCode !== 0)
      return this.#around.publish(topic, frame);
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
    this.#stop(code, message);
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
  }

  drained(): void {
    if (this.#socket === undefined) return;
    if (this.#endCode !== 0)
      return this.#around.farewells.drained(this.#socket);
    if (this.#lag !== KEEPS_UP && this.bufferedBytes() <= this.#keepsUpBytes)
      this.#lag = KEEPS_UP;
    try {
      this.#handler?.drained();
    } catch (error) {
      this.#failed(error);
    }
  }

  /**
   * The buffer is over the native limit, which what we write never takes it to: a peer that pings on and on and reads no answer. It is cut
   * off, once no native code is at work on the socket.
   */
  dropped(): void {
    if (this.#isCut) return;
    this.#isCut = true;
    if (this.#endCode === 0) this.#endCode = this.#around.slowReader.code;
    setImmediate(() => this.#socket?.close());
  }

  /** The native socket is gone. */
  closed(code: number): void {
    if (this.#socket !== undefined) this.#around.farewells.closed(this.#socket);
    this.#socket = undefined;
    this.#queue = undefined;
    this.#queuedBytes = 0;
    this.authenticated();
    if (this.#endCode === 0) this.#endCode = code;
    this.#tellClosed();
  }

  /** Writes what the turn queued; tells the owner of an end within the turn, or that the peer lags. */
  turnEnded(): void {
    if (this.#endCode !== 0) return this.#tellClosed();
    if (this.#socket === undefined) return;
    this.#flush(this.#socket);
    this.look();
    if (this.#endCode === 0) this.drained();
    if (this.#endCode === 0) this.#tellLagging();
    else this.#tellClosed();
  }

  /**
   * Notes a peer that lags, and stops the connection when it leaves too much unread. The owner hears of either when the turn ends, never in
   * the middle of a publish.
   */
  look(): void {
    const { maxBufferedBytes, lagBytes, slowReader, turnEnd } = this.#around;
    if (this.#socket === undefined || this.#endCode !== 0) return;
    const bytes = this.#socket.getBufferedAmount();
    if (bytes > maxBufferedBytes)
      this.#stop(slowReader.code, slowReader.message);
    else if (bytes > lagBytes && this.#lag === KEEPS_UP)
      this.#lag = FOUND_LAGGING;
    else return;
    turnEnd.add(this);
  }

  // --- Helpers -----------------------------------------------------------------------------------------------------

  /** From now on nothing is sent, received or subscribed to; what was sent before still goes out, and the close frame behind it. */
  #stop(code: number, message: string): void {
    const socket = this.#socket;
    if (socket === undefined || this.#endCode !== 0) return;
    this.#flush(socket);
    this.#endCode = code;
    this.#around.farewells.add(socket, code, message);
  }

  /** How far the unread bytes of a peer that lagged must fall for it to be told again. */
  get #keepsUpBytes(): number {
    return this.#around.lagBytes / 2;
  }

  #tellLagging(): void {
    if (this.#lag !== FOUND_LAGGING) return;
    this.#lag = TOLD_LAGGING;
    try {
      this.#handler?.lagging();
    } catch (error) {
      this.#failed(error);
    }
  }

  #enqueue(frame: Frame, socket: WebSocket<SocketData>): void {
    if (this.#queue === undefined) {
      this.#queue = frame;
      this.#around.turnEnd.add(this);
    } else if (Array.isArray(this.#queue)) this.#queue.push(frame);
    else this.#queue = [this.#queue, frame];
    this.#queuedBytes += frameBytes(frame);
    if (this.#queuedBytes <= MAX_QUEUED_BYTES) return;
    this.#flush(socket);
    this.look();
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
      this.#around.onError(error, "A connection's close could not be handled");
    }
  }

  #failed(error: unknown): void {
    this.#around.onError(error, "A connection's data could not be handled");
    this.end(INTERNAL_ERROR, "internal error");
  }
}
