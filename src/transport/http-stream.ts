// The body of one streamed HTTP reply. State: the response while it is open, the turn's queue,
// whether the native buffer is full. Must never touch the response after its end or abort, nor call
// the stream's `closed` twice.

import type { HttpResponse } from "uWebSockets.js";
import { writeHead } from "./http-reply.ts";
import type { TurnEnd, TurnTask } from "./turn-end.ts";
import type { HttpBody, HttpStream, ListenerSpec } from "./types.ts";

interface StreamContext {
  readonly turnEnd: TurnEnd;
  /** Method and path, for `onError`. */
  readonly where: string;
  readonly onError: ListenerSpec["onError"];
}

/** A longer queue is written before the turn ends. */
const MAX_QUEUED_CHARS = 64 * 1024;

export class StreamBody implements HttpBody, TurnTask {
  readonly #stream: HttpStream;
  readonly #context: StreamContext;
  #res: HttpResponse | undefined;
  #queue = "";
  /** The native buffer holds unread bytes. */
  #isFull = false;
  #isDue = false;
  #isEnding = false;

  constructor(stream: HttpStream, res: HttpResponse, context: StreamContext) {
    this.#stream = stream;
    this.#res = res;
    this.#context = context;
  }

  // --- For the stream ---

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

  // --- For the call ---

  /** Writes the head and opens the stream. Call it corked. */
  open(): void {
    const res = this.#res;
    if (res === undefined) return;
    res.onWritable(() => this.#drained());
    writeHead(res, this.#stream);
    this.#guarded(() => this.#stream.opened(this));
    if (this.#res === undefined) return;
    // The head is sent with the first piece only.
    this.#isFull = !res.write(this.#take() || this.#stream.filler);
  }

  /** The peer went away. */
  aborted(): void {
    if (this.#res === undefined) return;
    this.#res = undefined;
    this.#queue = "";
    this.#guarded(() => this.#stream.closed());
  }

  turnEnded(): void {
    this.#isDue = false;
    this.#flush();
  }

  // --- Helpers ---

  #flushLater(): void {
    if (this.#isDue) return;
    this.#isDue = true;
    this.#context.turnEnd.add(this);
  }

  /** Writes the queue unless the native buffer is full; the end is always written. */
  #flush(): void {
    const res = this.#res;
    if (res === undefined) return;
    if (this.#isEnding) return this.#finish(res);
    if (!this.#isFull && this.#queue !== "") this.#put(res, this.#take());
  }

  #finish(res: HttpResponse): void {
    this.#res = undefined;
    const last = this.#take();
    res.cork(() => {
      if (last !== "") res.write(last);
      res.end();
    });
    this.#guarded(() => this.#stream.closed());
  }

  #put(res: HttpResponse, piece: string): void {
    res.cork(() => {
      this.#isFull = !res.write(piece);
    });
  }

  #take(): string {
    const queued = this.#queue;
    this.#queue = "";
    return queued;
  }

  /** The native buffer has room. With this handler set it drains on a write only. */
  #drained(): boolean {
    const res = this.#res;
    if (res === undefined) return true;
    this.#put(res, this.#take() || this.#stream.filler);
    if (!this.#isFull) this.#guarded(() => this.#stream.writable());
    return true;
  }

  /** An error of the stream is a bug: the reply ends. */
  #guarded(step: () => void): void {
    try {
      step();
    } catch (error) {
      this.#context.onError(error, this.#context.where);
      this.#res?.close();
    }
  }
}
