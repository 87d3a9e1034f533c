// The body of one streamed HTTP reply. Must never use the response after its end or abort, and must
// never call the stream's `closed` twice.

import type { DriverResponse } from "./driver.ts";
import { writeHead } from "./http-reply.ts";
import type { TurnEnd, TurnEndTask } from "./turn-end.ts";
import type { HttpBody, HttpStream, ListenerSpec } from "./types.ts";

interface StreamContext {
  readonly turnEnd: TurnEnd;
  readonly failure: string;
  readonly onError: ListenerSpec["onError"];
  readonly closesConnection: boolean;
}

const MAX_QUEUED_CHARS = 64 * 1024;

export class StreamBody implements HttpBody, TurnEndTask {
  readonly #stream: HttpStream;
  readonly #context: StreamContext;
  #res: DriverResponse | undefined;
  #queue = "";
  #isFull = false;
  #isScheduled = false;
  #isEnding = false;

  constructor(stream: HttpStream, res: DriverResponse, context: StreamContext) {
    this.#stream = stream;
    this.#res = res;
    this.#context = context;
  }

  // --- Called by the stream ---

  write(piece: string): boolean {
    if (this.#res === undefined || this.#isEnding) return false;
    this.#queue += piece;
    if (this.#queue.length > MAX_QUEUED_CHARS) this.#flush();
    else this.#flushLater();
    return !this.#isFull;
  }

  end(): void {
    if (this.#res === undefined || this.#isEnding) return;
    this.#isEnding = true;
    this.#flushLater();
  }

  // --- Called by the HTTP call ---

  /** Writes the head and opens the stream. Must be called while the response is corked. */
  open(): void {
    const res = this.#res;
    if (res === undefined) return;
    res.onWritable(() => this.#drained());
    writeHead(res, this.#stream);
    this.#runCallback(() => this.#stream.opened(this));
    if (this.#res === undefined) return;
    // uWebSockets.js sends the head only together with the first piece.
    this.#isFull = !res.write(this.#takeQueue() || this.#stream.filler);
  }

  aborted(): void {
    if (this.#res === undefined) return;
    this.#res = undefined;
    this.#queue = "";
    this.#runCallback(() => this.#stream.closed());
  }

  turnEnded(): void {
    this.#isScheduled = false;
    this.#flush();
  }

  #flushLater(): void {
    if (this.#isScheduled) return;
    this.#isScheduled = true;
    this.#context.turnEnd.add(this);
  }

  /** Writes the queue unless the driver's buffer is full. Always writes the end of the reply. */
  #flush(): void {
    const res = this.#res;
    if (res === undefined) return;
    if (this.#isEnding) return this.#finish(res);
    if (!this.#isFull && this.#queue !== "") this.#writeNow(res, this.#takeQueue());
  }

  #finish(res: DriverResponse): void {
    this.#res = undefined;
    const last = this.#takeQueue();
    res.cork(() => {
      if (last !== "") res.write(last);
      if (this.#context.closesConnection) res.end("", true);
      else res.end();
    });
    this.#runCallback(() => this.#stream.closed());
  }

  #writeNow(res: DriverResponse, piece: string): void {
    res.cork(() => {
      this.#isFull = !res.write(piece);
    });
  }

  #takeQueue(): string {
    const queued = this.#queue;
    this.#queue = "";
    return queued;
  }

  /**
   * Continues after the buffer has drained. Always writes something, because uWebSockets.js sends
   * the rest of its buffer only together with another write.
   */
  #drained(): boolean {
    const res = this.#res;
    if (res === undefined) return true;
    this.#writeNow(res, this.#takeQueue() || this.#stream.filler);
    if (!this.#isFull) this.#runCallback(() => this.#stream.writable());
    return true;
  }

  #runCallback(step: () => void): void {
    try {
      step();
    } catch (error) {
      this.#context.onError(error, this.#context.failure);
      this.#res?.close();
    }
  }
}
