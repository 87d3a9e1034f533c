// The body of one HTTP reply that comes in pieces. State: the response while it is open, what this turn has queued, whether the native side is
// full. Must never touch the response after its end or abort, nor call the stream's `closed` twice.

import type { HttpResponse } from "uWebSockets.js";
import { writeHead } from "./http-reply.ts";
import type { TurnEnd, TurnTask } from "./turn-end.ts";
import type { HttpBody, HttpStream, ListenerSpec } from "./types.ts";

/** What a body needs of its call and its listener. */
export interface BodySurroundings {
  readonly turnEnd: TurnEnd;
  /** Which call it is, for `onError`. */
  readonly where: string;
  readonly onError: ListenerSpec["onError"];
}

/** A longer queue is written before the turn ends. */
const MAX_QUEUED_CHARS = 64 * 1024;

export class StreamBody implements HttpBody, TurnTask {
  readonly #stream: HttpStream;
  readonly #around: BodySurroundings;
  #res: HttpResponse | undefined;
  #queue = "";
  /** The native side holds bytes that the peer has not taken. */
  #isFull = false;
  #isDue = false;
  #isEnding = false;

  constructor(
    stream: HttpStream,
    res: HttpResponse,
    surroundings: BodySurroundings,
  ) {
    this.#stream = stream;
    this.#res = res;
    this.#around = surroundings;
  }

  // --- For the stream ----------------------------------------------------------------------------------------------

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

  // --- For the call ------------------------------------------------------------------------------------------------

  /** Writes the head and lets the stream begin. Call it corked. */
  open(): void {
    const res = this.#res;
    if (res === undefined) return;
    res.onWritable(() => this.#drained());
    writeHead(res, this.#stream);
    this.#guarded(() => this.#stream.opened(this));
    if (this.#res === undefined) return;
    // The head leaves with the first piece only.
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

  // --- Helpers -----------------------------------------------------------------------------------------------------

  #flushLater(): void {
    if (this.#isDue) return;
    this.#isDue = true;
    this.#around.turnEnd.add(this);
  }

  /** Writes what is queued, unless the native side is full; an end goes out in any case. */
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

  /** The native side has room. With this handler set it moves what waits there only when something is written. */
  #drained(): boolean {
    const res = this.#res;
    if (res === undefined) return true;
    this.#put(res, this.#take() || this.#stream.filler);
    if (!this.#isFull) this.#guarded(() => this.#stream.writable());
    return true;
  }

  /** What the stream throws is a bug: the reply cannot be trusted to go on. */
  #guarded(step: () => void): void {
    try {
      step();
    } catch (error) {
      this.#around.onError(error, this.#around.where);
      this.#res?.close();
    }
  }
}
