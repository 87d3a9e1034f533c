// Closes sockets that still have unread bytes. After `end`, a socket of uWebSockets.js can no
// longer be dropped, so a peer that reads one byte now and then could keep its buffer in memory
// forever. Therefore, `end` is called only when the buffer is empty. At the deadline, the socket is
// dropped.

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
  readonly #closing = new Map<ClosingSocket, CloseFrame>();
  #timer: NodeJS.Timeout | undefined;

  constructor(timeoutMs: number) {
    this.#timeoutMs = timeoutMs;
  }

  add(socket: ClosingSocket, code: number, message: string): void {
    if (socket.getBufferedAmount() === 0) return socket.end(code, message);
    for (const topic of socket.getTopics()) socket.unsubscribe(topic);
    const deadlineMs = performance.now() + this.#timeoutMs;
    this.#closing.set(socket, { code, message, deadlineMs });
    this.#timer ??= this.#wait(this.#timeoutMs);
  }

  drained(socket: ClosingSocket): void {
    const frame = this.#closing.get(socket);
    if (frame === undefined || socket.getBufferedAmount() > 0) return;
    this.#closing.delete(socket);
    socket.end(frame.code, frame.message);
  }

  closed(socket: ClosingSocket): void {
    if (!this.#closing.delete(socket) || this.#closing.size > 0) return;
    clearTimeout(this.#timer);
    this.#timer = undefined;
  }

  #wait(delayMs: number): NodeJS.Timeout {
    return setTimeout(() => this.#dropLate(), delayMs).unref();
  }

  #dropLate(): void {
    this.#timer = undefined;
    const nowMs = performance.now();
    for (const [socket, { deadlineMs }] of this.#closing) {
      if (deadlineMs > nowMs) {
        this.#timer = this.#wait(deadlineMs - nowMs);
        return;
      }
      this.#closing.delete(socket);
      socket.close();
    }
  }
}
