// Sockets that were told to end while bytes for them still waited. uWebSockets.js gives up its handle on a socket with `end`, and a peer that
// then reads a byte now and again could hold the buffer for ever; so the close frame waits here until the buffer is empty, and the socket
// is cut off when that takes too long. State: those sockets in order of their deadlines, and one timer while there are any.

/** What is needed of a native socket. */
export interface LeavingSocket {
  getBufferedAmount(): number;
  getTopics(): string[];
  unsubscribe(topic: string): boolean;
  end(code: number, message: string): void;
  close(): void;
}

interface Farewell {
  readonly code: number;
  readonly message: string;
  readonly deadlineMs: number;
}

export class Farewells {
  readonly #patienceMs: number;
  readonly #waiting = new Map<LeavingSocket, Farewell>();
  #timer: NodeJS.Timeout | undefined;

  /** A socket gets `patienceMs` to take what waits for it. */
  constructor(patienceMs: number) {
    this.#patienceMs = patienceMs;
  }

  /** Ends `socket` once it is drained, or cuts it off. Nothing published from now on reaches it. */
  add(socket: LeavingSocket, code: number, message: string): void {
    if (socket.getBufferedAmount() === 0) return socket.end(code, message);
    for (const topic of socket.getTopics()) socket.unsubscribe(topic);
    const deadlineMs = performance.now() + this.#patienceMs;
    this.#waiting.set(socket, { code, message, deadlineMs });
    this.#timer ??= this.#wait(this.#patienceMs);
  }

  /** Bytes left the socket. Harmless for a socket that is not waiting. */
  drained(socket: LeavingSocket): void {
    const farewell = this.#waiting.get(socket);
    if (farewell === undefined || socket.getBufferedAmount() > 0) return;
    this.#waiting.delete(socket);
    socket.end(farewell.code, farewell.message);
  }

  /** The socket is closed and must not be touched any more. */
  closed(socket: LeavingSocket): void {
    if (!this.#waiting.delete(socket) || this.#waiting.size > 0) return;
    clearTimeout(this.#timer);
    this.#timer = undefined;
  }

  #wait(delayMs: number): NodeJS.Timeout {
    return setTimeout(() => this.#cutOff(), delayMs).unref();
  }

  #cutOff(): void {
    this.#timer = undefined;
    const nowMs = performance.now();
    for (const [socket, { deadlineMs }] of this.#waiting) {
      if (deadlineMs > nowMs) {
        this.#timer = this.#wait(deadlineMs - nowMs);
        return;
      }
      this.#waiting.delete(socket);
      socket.close();
    }
  }
}
