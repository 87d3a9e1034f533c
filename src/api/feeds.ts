// Replies that follow a stream with server-sent events [WHATWG HTML: Server-sent events]. While the
// connection of a feed is full, the feed is paused, and the broker merges its events.

import { type ChannelEvent, STREAM_CONTENT, STREAM_END, STREAM_START } from "../broker/model.ts";
import type { FollowHandle, StreamSink } from "../broker/stream-followers.ts";
import type { HttpBody, HttpReply, HttpStream } from "../transport/types.ts";
import { FeedWheel, type MayStay, type VisitedFeed } from "./feed-wheel.ts";
import { JSON_HEADERS, OPEN_TO_PAGES } from "./reply.ts";

export class Feeds {
  readonly #eventText = createEventText();
  readonly #wheel: FeedWheel;

  /** `keepAliveMs` is the interval between two visits to a feed. */
  constructor(keepAliveMs: number | undefined) {
    this.#wheel = new FeedWheel(keepAliveMs);
  }

  async open(
    follow: (sink: StreamSink) => Promise<FollowHandle>,
    mayStay: MayStay,
  ): Promise<HttpStream> {
    const feed = new StreamFeed(this.#eventText, () => this.#wheel.delete(feed));
    feed.attach(await follow(feed));
    this.#wheel.add(feed, mayStay);
    return feed;
  }
}

const HEADERS = Object.freeze({
  ...JSON_HEADERS,
  ...OPEN_TO_PAGES,
  "content-type": "text/event-stream; charset=utf-8",
  "x-accel-buffering": "no", // otherwise nginx buffers the events
});

export const FEED_HEAD: HttpReply = Object.freeze({ status: 200, headers: HEADERS, body: "" });

/** Range of the random reconnect delay. Readers of a failed node must not all return at once. */
const MIN_RETRY_MS = 1000;
const RETRY_SPREAD_MS = 2000;

/** A comment of the event-stream format, which keeps proxies from closing the connection. */
export const COMMENT = ":\n\n";

class StreamFeed implements HttpStream, StreamSink, VisitedFeed {
  readonly status = 200;
  readonly headers = HEADERS;
  readonly filler = COMMENT;
  readonly #eventText: (event: ChannelEvent) => string;
  readonly #onClosed: () => void;
  #body: HttpBody | undefined;
  #subscription: FollowHandle | undefined;
  #pendingText = "";
  #isPaused = false;
  #isOver = false;

  constructor(eventText: (event: ChannelEvent) => string, onClosed: () => void) {
    this.#eventText = eventText;
    this.#onClosed = onClosed;
  }

  /** Sets the subscription. Must be called before the transport calls `opened`. */
  attach(subscription: FollowHandle): void {
    this.#subscription = subscription;
  }

  /** Writes a comment, unless the feed is paused: the comment would then only be queued. */
  keepAlive(): void {
    if (!this.#isPaused) this.#body?.write(COMMENT);
  }

  end(): void {
    this.ended();
  }

  // --- StreamSink, called by the broker ----------------------------------------------------------

  push(event: ChannelEvent): boolean {
    const text = this.#eventText(event);
    if (this.#body === undefined) {
      this.#pendingText += text;
      this.#isPaused = true;
    } else this.#isPaused = !this.#body.write(text);
    return !this.#isPaused;
  }

  ended(): void {
    this.#isOver = true;
    this.#body?.end();
  }

  // --- HttpStream, called by the transport -------------------------------------------------------

  opened(body: HttpBody): void {
    const retryMs = MIN_RETRY_MS + Math.floor(Math.random() * RETRY_SPREAD_MS);
    this.#body = body;
    body.write(`retry: ${retryMs}\n\n${this.#pendingText}`);
    this.#pendingText = "";
    if (this.#isOver) body.end();
    else this.#resume();
  }

  writable(): void {
    this.#resume();
  }

  closed(): void {
    this.#subscription?.stop();
    this.#onClosed();
  }

  #resume(): void {
    if (!this.#isPaused) return;
    this.#isPaused = false;
    this.#subscription?.resume();
  }
}

/** Returns a function that caches its last text, because all readers are sent the same event. */
function createEventText(): (event: ChannelEvent) => string {
  let lastEvent: ChannelEvent | undefined;
  let lastText = "";
  return (event) => {
    if (event !== lastEvent) {
      lastEvent = event;
      lastText = eventText(event);
    }
    return lastText;
  };
}

/** Returns the text of an event. Its `id` line has the index for Last-Event-ID. */
function eventText({ eventId, type, data, stream, ...event }: ChannelEvent) {
  if (stream === undefined) return "";
  const body = {
    index: stream.index,
    next_index: stream.nextIndex,
    text_offset: stream.textOffset,
    id: eventId,
    type,
    data,
    timestamp: event.timestampMs,
    state: stream.state,
  };
  return `id: ${stream.nextIndex}\nevent: ${nameOf(type)}\ndata: ${JSON.stringify(body)}\n\n`;
}

function nameOf(type: string): "start" | "content" | "end" | "tool" {
  switch (type) {
    case STREAM_START:
      return "start";
    case STREAM_CONTENT:
      return "content";
    case STREAM_END:
      return "end";
    default:
      return "tool";
  }
}
