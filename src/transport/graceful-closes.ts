// Sockets that must close while bytes for them still wait. uWebSockets.js gives up its handle on a
// socket with `end`, and a peer that then reads a byte now and again could keep the buffer forever;
// so the close frame waits here until the buffer is empty, and the socket is dropped at a deadline.
// State: those sockets in order of their deadlines, and one timer while there are any.

/** What is needed of a native socket. */
interface ClosingSocket {
  getBufferedAmount(): number;
  getTopics(): string[];
  unsubscribe(topic: string): boolean;
  end(code: number, message: string): void;
  close(): void;
}

interface CloseFrame {
  readonly code: number;
  readonly message: string;
  readonly deadlineMs: number;
}

export class GracefulCloses {
  readonly #timeoutMs: number;
  readonly #waiting = new Map<ClosingSocket, CloseFrame>();
  #timer: NodeJS.Timeout | undefined;

  /** A peer has `timeoutMs` to read what waits for it. */
  constructor(timeoutMs: number) {
    this.#timeoutMs = timeoutMs;
  }

  /** Ends `socket` when its buffer is empty or drops it. It gets no later publications. */
  add(socket: ClosingSocket, code: number, message: string): void {
    if (socket.getBufferedAmount() === 0) return socket.end(code, message);
    for (const topic of socket.getTopics()) socket.unsubscribe(topic);
    const deadlineMs = performance.now() + this.#timeoutMs;
    this.#waiting.set(socket, { code, message, deadlineMs });
    this.#timer ??= this.#wait(this.#timeoutMs);
  }

  /** Bytes left the socket. No effect for a socket that is not waiting. */
  drained(socket: ClosingSocket): void {
    const frame = this.#waiting.get(socket);
    if (frame === undefined || socket.getBufferedAmount() > 0) return;
    this.#waiting.delete(socket);
    socket.end(frame.code, frame.message);
  }

  /** The socket is closed and must not be touched any more. */
  closed(socket: ClosingSocket): void {
    if (!this.#waiting.delete(socket) || this.#waiting.size > 0) return;
    clearTimeout(this.#timer);
    this.#timer = undefined;
  }

  #wait(delayMs: number): NodeJS.Timeout {
    return setTimeout(() => this.#dropLate(), delayMs).unref();
  }

  #dropLate(): void {
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
