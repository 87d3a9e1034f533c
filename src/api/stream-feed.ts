// One reader of a stream by server-sent events: takes events from the broker as fast as its connection does. State: the body once it is
// open, the following, what came before the body was there. Never asks for more while the connection is full; the broker then merges.

import type { ChannelEvent } from "../broker/model.ts";
import type { Following, StreamSink } from "../broker/stream-followers.ts";
import type { HttpBody, HttpStream } from "../transport/types.ts";
import { COMMENT, retryText } from "./event-text.ts";
import { JSON_HEADERS, OPEN_TO_PAGES } from "./reply.ts";

const HEADERS = Object.freeze({
  ...JSON_HEADERS,
  ...OPEN_TO_PAGES,
  "content-type": "text/event-stream; charset=utf-8",
  "x-accel-buffering": "no", // nginx would hold events back
});

/** Readers that lose a node come back over this span of time, not all at once. */
const MIN_RETRY_MS = 1000;
const RETRY_SPREAD_MS = 2000;

export interface FeedParts {
  readonly eventText: (event: ChannelEvent) => string;
  /** It is over, whoever ended it. */
  onClosed(feed: StreamFeed): void;
}

export class StreamFeed implements HttpStream, StreamSink {
  readonly status = 200;
  readonly headers = HEADERS;
  readonly filler = COMMENT;
  readonly #parts: FeedParts;
  #body: HttpBody | undefined;
  #following: Following | undefined;
  #early = "";
  #isPaused = false;
  #isOver = false;

  constructor(parts: FeedParts) {
    this.#parts = parts;
  }

  /** Whom to stop and to ask for more. Call it before the transport gets the feed. */
  attach(following: Following): void {
    this.#following = following;
  }

  /** Writes a comment unless the connection is full, where one would only wait. */
  keepAlive(): void {
    if (!this.#isPaused) this.#body?.write(COMMENT);
  }

  /** Lets the reader go; it may come back. */
  end(): void {
    this.ended();
  }

  // --- For the broker ----------------------------------------------------------------------------------------------

  push(event: ChannelEvent): boolean {
    const text = this.#parts.eventText(event);
    if (this.#body === undefined) {
      this.#early += text;
      this.#isPaused = true;
    } else this.#isPaused = !this.#body.write(text);
    return !this.#isPaused;
  }

  ended(): void {
    this.#isOver = true;
    this.#body?.end();
  }

  // --- For the transport -------------------------------------------------------------------------------------------

  opened(body: HttpBody): void {
    const retryMs = MIN_RETRY_MS + Math.floor(Math.random() * RETRY_SPREAD_MS);
    this.#body = body;
    body.write(retryText(retryMs) + this.#early);
    this.#early = "";
    if (this.#isOver) body.end();
    else this.#resume();
  }

  writable(): void {
    this.#resume();
  }

  closed(): void {
    this.#following?.stop();
    this.#parts.onClosed(this);
  }

  #resume(): void {
    if (!this.#isPaused) return;
    this.#isPaused = false;
    this.#following?.resume();
  }
}
