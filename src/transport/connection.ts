// One client socket: queues the frames of an event-loop turn, keeps their order relative to
// subscriptions, and closes gracefully. A node has many connections, so each has few fields and
// allocates nothing while it is idle. Must never touch the driver's socket after its close event,
// nor call the handler's `closed` twice.

import { runOverdueTasks } from "../lib/turn-task.ts";
import { bytesOf, type DriverSocket } from "./driver.ts";
import type { GracefulCloses } from "./graceful-closes.ts";
import { frameBytes, type Reader } from "./slow-readers.ts";
import type { Place, SocketLimits } from "./socket-limits.ts";
import type { TurnEnd, TurnEndTask } from "./turn-end.ts";
import type { Connection, ConnectionHandler, ListenerSpec, SocketEndpoint } from "./types.ts";
import type { UnreadBytes, UnreadReader } from "./unread-bytes.ts";

type Frame = Uint8Array | string;

export interface SocketData {
  readonly connection: SocketConnection;
}

export interface ConnectionContext {
  readonly listener: string;
  readonly turnEnd: TurnEnd;
  readonly gracefulCloses: GracefulCloses;
  readonly maxBufferedBytes: number;
  readonly lagBytes: number;
  readonly slowReader: SocketEndpoint["slowReader"];
  readonly limits: SocketLimits;
  readonly unread: UnreadBytes;
  readonly onError: ListenerSpec["onError"];
  publish(topic: string, frame: Frame): void;
  /**
   * Publishes on the other listeners. Must be called after each `publish` of a driver's socket,
   * which reaches only the socket's own listener.
   */
  publishElsewhere(topic: string, frame: Frame): void;
  /** Connection whose frame is currently being handled. Its socket is corked. */
  receiving: SocketConnection | undefined;
}

/** Size above which the queue is written before the turn ends. Larger writes are not faster. */
const MAX_QUEUED_BYTES = 64 * 1024;
const INTERNAL_ERROR = 1011;

const NOT_LAGGING = 0;
const LAGGING = 1;
const LAG_NOTIFIED = 2;

export class SocketConnection implements Connection, Reader, UnreadReader, TurnEndTask {
  readonly id: number;
  readonly remoteAddress: string;
  readonly #context: ConnectionContext;
  #socket: DriverSocket<SocketData> | undefined;
  #handler: ConnectionHandler | undefined;
  #queue: Frame | Frame[] | undefined;
  #queuedBytes = 0;
  /**
   * Close code, or 0 while the connection is open. Once it is set, no more frames are queued
   * or received.
   */
  #endCode = 0;
  #isSubscriber = false;
  #isDropped = false;
  /** The socket's slot in its address's limit, or `undefined` after the login or the close. */
  #place: Place | undefined;
  #owner: string | undefined;
  #unreadBytes = 0;
  #lag: typeof NOT_LAGGING | typeof LAGGING | typeof LAG_NOTIFIED = NOT_LAGGING;

  static #lastId = 0;

  constructor(remoteAddress: string, context: ConnectionContext) {
    SocketConnection.#lastId += 1;
    this.id = SocketConnection.#lastId;
    this.remoteAddress = remoteAddress;
    this.#context = context;
  }

  get listener(): string {
    return this.#context.listener;
  }

  // --- Called by the owner ---

  authenticated(user: string): void {
    this.#leavePlace();
    this.#count(0); // bytes from before the login must not be subtracted from the user's sum
    this.#owner = user;
    this.measure();
  }

  send(frame: Frame): void {
    const socket = this.#socket;
    if (socket === undefined || this.#endCode !== 0) return;
    if (this.#context.receiving === this) {
      this.#flush(socket);
      socket.send(frame, typeof frame !== "string");
      this.checkBuffer();
    } else this.#enqueue(frame, socket);
  }

  flush(): void {
    if (this.#socket !== undefined && this.#endCode === 0) this.#flush(this.#socket);
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

  /**
   * Publishes without writing the queue first, because no peer receives both: the queued frames are
   * for this peer, and the publication is for all other subscribers.
   */
  publish(topic: string, frame: Frame): void {
    const socket = this.#socket;
    // A connection that is closing receives nothing, but it may still publish to others.
    if (socket === undefined || this.#endCode !== 0) return this.#context.publish(topic, frame);
    // In uWebSockets.js, `publish` of a socket that has never subscribed publishes nothing.
    if (!this.#isSubscriber) return this.#context.publish(topic, frame);
    socket.publish(topic, frame, typeof frame !== "string");
    this.#context.publishElsewhere(topic, frame);
  }

  bufferedBytes(): number {
    if (this.#socket === undefined) return 0;
    return this.#queuedBytes + this.#socket.getBufferedAmount();
  }

  end(code: number, message: string): void {
    this.#stop(code, message);
    this.#notifyClosed();
  }

  // --- Called on driver events ---

  /** Counts the socket against its address's limit. Returns false if it must be closed at once. */
  enter(address: string): boolean {
    // The socket is closed without a close frame, because the peer might never reply to a close
    // frame.
    this.#place = this.#context.limits.enter(address, () => this.#socket?.close());
    return this.#place !== undefined;
  }

  opened(
    socket: DriverSocket<SocketData>,
    open: (connection: Connection) => ConnectionHandler,
  ): void {
    this.#socket = socket;
    try {
      this.#handler = open(this);
    } catch (error) {
      this.#failed(error);
    }
    if (this.#endCode !== 0) this.#notifyClosed();
  }

  received(data: ArrayBuffer | Uint8Array, isText: boolean): void {
    const handler = this.#handler;
    if (handler === undefined || this.#endCode !== 0) return;
    if (this.#place !== undefined) this.#context.limits.heard(this.#place);
    this.#context.receiving = this;
    try {
      handler.received(bytesOf(data), isText);
    } catch (error) {
      this.#failed(error);
    }
    this.#context.receiving = undefined;
  }

  pinged(bytes: number): void {
    const handler = this.#handler;
    if (handler === undefined || this.#endCode !== 0) return;
    try {
      handler.pinged(bytes);
    } catch (error) {
      this.#failed(error);
    }
  }

  drained(): void {
    this.measure();
    this.#notifyDrained();
  }

  /** The caller must have measured the unread bytes. */
  #notifyDrained(): void {
    if (this.#socket === undefined) return;
    if (this.#endCode !== 0) return this.#context.gracefulCloses.drained(this.#socket);
    if (this.#lag !== NOT_LAGGING && this.bufferedBytes() <= this.#lagEndBytes)
      this.#lag = NOT_LAGGING;
    try {
      this.#handler?.drained();
    } catch (error) {
      this.#failed(error);
    }
  }

  /**
   * Drops a peer whose unread bytes exceed a limit. The socket is closed in a later turn, because
   * code of the driver may be on the stack. Called by `UnreadBytes`, and when the driver's own
   * limit is exceeded. Only pongs can exceed the driver's limit. This happens if the peer sends
   * pings but does not read the pongs.
   */
  drop(): void {
    this.#count(0);
    if (this.#isDropped) return;
    this.#isDropped = true;
    if (this.#endCode === 0) this.#endCode = this.#context.slowReader.code;
    setImmediate(() => this.#socket?.close());
  }

  closed(code: number): void {
    const isByPeer = this.#endCode === 0;
    if (this.#socket !== undefined) this.#context.gracefulCloses.closed(this.#socket);
    this.#socket = undefined;
    this.#queue = undefined;
    this.#queuedBytes = 0;
    this.#count(0);
    this.#leavePlace();
    if (isByPeer) this.#endCode = code;
    this.#notifyClosed();
    // If the owner closes the connection, the driver reports the close during the owner's call,
    // when no other task may run.
    if (isByPeer) runOverdueTasks();
  }

  turnEnded(): void {
    if (this.#endCode !== 0) return this.#notifyClosed();
    if (this.#socket === undefined) return;
    this.#flush(this.#socket);
    this.checkBuffer();
    if (this.#endCode === 0) this.#notifyDrained();
    if (this.#endCode === 0) this.#notifyLagging();
    else this.#notifyClosed();
  }

  /**
   * Compares the number of unread bytes with the limits. Notifies the owner only at the end of the
   * turn, never during a publish.
   */
  checkBuffer(): void {
    const { maxBufferedBytes, lagBytes, slowReader, turnEnd } = this.#context;
    if (this.#socket === undefined) return;
    this.measure();
    if (this.#endCode !== 0) return;
    const bytes = this.#unreadBytes;
    if (bytes > maxBufferedBytes) this.#stop(slowReader.code, slowReader.message);
    else if (bytes > lagBytes && this.#lag === NOT_LAGGING) this.#lag = LAGGING;
    else return;
    turnEnd.add(this);
  }

  get owner(): string | undefined {
    return this.#owner;
  }

  get unreadBytes(): number {
    return this.#unreadBytes;
  }

  measure(): void {
    if (this.#socket === undefined || this.#isDropped) return;
    this.#count(this.#socket.getBufferedAmount());
  }

  #count(bytes: number): void {
    const before = this.#unreadBytes;
    if (bytes === before) return;
    this.#unreadBytes = bytes;
    this.#context.unread.changed(this, before, bytes);
  }

  #leavePlace(): void {
    if (this.#place === undefined) return;
    this.#context.limits.leave(this.#place);
    this.#place = undefined;
  }

  #stop(code: number, message: string): void {
    const socket = this.#socket;
    if (socket === undefined || this.#endCode !== 0) return;
    this.#flush(socket);
    this.#endCode = code;
    this.#context.gracefulCloses.add(socket, code, message);
  }

  get #lagEndBytes(): number {
    return this.#context.lagBytes / 2;
  }

  #notifyLagging(): void {
    if (this.#lag !== LAGGING) return;
    this.#lag = LAG_NOTIFIED;
    try {
      this.#handler?.lagging();
    } catch (error) {
      this.#failed(error);
    }
  }

  #enqueue(frame: Frame, socket: DriverSocket<SocketData>): void {
    if (this.#queue === undefined) {
      this.#queue = frame;
      this.#context.turnEnd.add(this);
    } else if (Array.isArray(this.#queue)) this.#queue.push(frame);
    else this.#queue = [this.#queue, frame];
    this.#queuedBytes += frameBytes(frame);
    if (this.#queuedBytes <= MAX_QUEUED_BYTES) return;
    this.#flush(socket);
    this.checkBuffer();
  }

  #flush(socket: DriverSocket<SocketData>): void {
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

  #notifyClosed(): void {
    const handler = this.#handler;
    if (handler === undefined) return;
    this.#handler = undefined;
    try {
      handler.closed(this.#endCode);
    } catch (error) {
      this.#context.onError(error, "Could not handle the close of a connection");
    }
  }

  #failed(error: unknown): void {
    this.#context.onError(
      error,
      "Could not handle an event of a connection; the connection is closed",
    );
    this.end(INTERNAL_ERROR, "internal error");
  }
}
