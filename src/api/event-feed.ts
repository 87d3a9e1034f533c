// A reply that sends server-sent events. Its source is paused while the send buffer of the
// connection is full. State: the text that was written before the transport opened the reply.

import type { HttpBody, HttpStream } from "../transport/types.ts";
import type { VisitedFeed } from "./feed-wheel.ts";
import { JSON_HEADERS } from "./reply.ts";

/** Headers of a reply that sends server-sent events. */
export const EVENT_STREAM_HEADERS = Object.freeze({
  ...JSON_HEADERS,
  "content-type": "text/event-stream; charset=utf-8",
  "x-accel-buffering": "no", // otherwise nginx buffers the events
});

/** A comment in the event-stream format. It keeps proxies from closing the connection. */
const COMMENT = ":\n\n";

/**
 * Sends the events of a feed until `stop` is called. After `EventFeed.write` has returned false,
 * the source waits for `resume`.
 */
interface FeedSource {
  resume(): void;
  stop(): void;
}

interface FeedOptions {
  readonly headers: Readonly<Record<string, string>>;
  /** Text before the first event. The default is "". */
  readonly firstText?: string;
  /** Number of visits (see `FeedWheel`) after which the feed ends. Absent means no limit. */
  readonly maxVisits?: number;
  readonly onClosed: () => void;
}

export class EventFeed implements HttpStream, VisitedFeed {
  readonly status = 200;
  readonly headers: Readonly<Record<string, string>>;
  readonly filler = COMMENT;
  readonly #maxVisits: number;
  readonly #onClosed: () => void;
  #source: FeedSource | undefined;
  #body: HttpBody | undefined;
  #pendingText: string;
  #isPaused = false;
  #isOver = false;
  #visits = 0;

  constructor({ headers, firstText = "", maxVisits = Infinity, onClosed }: FeedOptions) {
    this.headers = headers;
    this.#pendingText = firstText;
    this.#maxVisits = maxVisits;
    this.#onClosed = onClosed;
  }

  /** Sets the source. Must be called before the transport calls `opened`. */
  attach(source: FeedSource): void {
    this.#source = source;
  }

  /**
   * Writes text. Buffers the text until the transport opens the reply. Returns false if the source
   * must pause until `resume`.
   */
  write(text: string): boolean {
    if (this.#body === undefined) {
      this.#pendingText += text;
      this.#isPaused = true;
    } else this.#isPaused = !this.#body.write(text);
    return !this.#isPaused;
  }

  /**
   * Counts a visit. Ends the feed after `maxVisits` visits. Otherwise, writes a comment. Writes
   * nothing while the feed is paused, because a comment would then only be queued.
   */
  keepAlive(): void {
    this.#visits += 1;
    if (this.#visits >= this.#maxVisits) this.end();
    else if (!this.#isPaused) this.#body?.write(COMMENT);
  }

  /** Stops the source, which may already have ended, and ends the reply. */
  end(): void {
    this.#source?.stop();
    this.#isOver = true;
    this.#body?.end();
  }

  // --- HttpStream, called by the transport -------------------------------------------------------

  opened(body: HttpBody): void {
    this.#body = body;
    if (this.#pendingText !== "") body.write(this.#pendingText);
    this.#pendingText = "";
    if (this.#isOver) body.end();
    else this.#resume();
  }

  writable(): void {
    this.#resume();
  }

  closed(): void {
    this.#source?.stop();
    this.#onClosed();
  }

  #resume(): void {
    if (!this.#isPaused) return;
    this.#isPaused = false;
    this.#source?.resume();
  }
}
