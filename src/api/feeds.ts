// Readers of streams by server-sent events [WHATWG HTML: Server-sent events]. State: `Feeds` has
// the open feeds in the slots of a timer wheel, and its timer; a `StreamFeed` its body once open,
// its following, and the text written before. A feed takes no events while its connection is full;
// the broker then merges them.

import { type ChannelEvent, STREAM_CONTENT, STREAM_END, STREAM_START } from "../broker/model.ts";
import type { FollowHandle, StreamSink } from "../broker/stream-followers.ts";
import type { HttpBody, HttpStream } from "../transport/types.ts";
import { JSON_HEADERS, OPEN_TO_PAGES } from "./reply.ts";

/** One slot is visited per tick, so that thousands of feeds are not visited at once. */
const SLOTS = 15;
const KEEP_ALIVE_MS = 15_000;

/** Whether the reader may go on; asked at each visit. Must not reject. */
export type MayStay = () => Promise<boolean>;

export class Feeds {
  readonly #eventText = createEventText();
  readonly #slots = Array.from({ length: SLOTS }, () => new Map<StreamFeed, MayStay>());
  readonly #tickMs: number;
  #count = 0;
  #next = 0;
  #timer: NodeJS.Timeout | undefined;

  /** Each feed is visited every `keepAliveMs`. */
  constructor(keepAliveMs: number = KEEP_ALIVE_MS) {
    this.#tickMs = keepAliveMs / SLOTS;
  }

  /** A feed of the events `follow` passes to its sink. Rejects with the error of `follow`. */
  async open(
    follow: (sink: StreamSink) => Promise<FollowHandle>,
    mayStay: MayStay,
  ): Promise<HttpStream> {
    const slot = this.#slots[this.#count % SLOTS];
    const feed = new StreamFeed(this.#eventText, () => this.#forget(feed));
    feed.attach(await follow(feed));
    this.#count += 1;
    slot?.set(feed, mayStay);
    this.#timer ??= setInterval(() => this.#tick(), this.#tickMs).unref();
    return feed;
  }

  #tick(): void {
    this.#next = (this.#next + 1) % SLOTS;
    for (const [feed, mayStay] of this.#slots[this.#next] ?? []) {
      feed.keepAlive();
      void endUnless(mayStay, feed);
    }
  }

  #forget(feed: StreamFeed): void {
    for (const slot of this.#slots) slot.delete(feed);
    if (this.#slots.some((slot) => slot.size > 0)) return;
    clearInterval(this.#timer);
    this.#timer = undefined;
  }
}

async function endUnless(mayStay: MayStay, feed: StreamFeed): Promise<void> {
  if (!(await mayStay())) feed.ended();
}

const HEADERS = Object.freeze({
  ...JSON_HEADERS,
  ...OPEN_TO_PAGES,
  "content-type": "text/event-stream; charset=utf-8",
  "x-accel-buffering": "no", // nginx would hold events back
});

/** Readers that lose a node reconnect over this span of time, not all at once. */
const MIN_RETRY_MS = 1000;
const RETRY_SPREAD_MS = 2000;

/** A comment: no event, but bytes that keep proxies from closing the connection. */
const COMMENT = ":\n\n";

class StreamFeed implements HttpStream, StreamSink {
  readonly status = 200;
  readonly headers = HEADERS;
  readonly filler = COMMENT;
  readonly #eventText: (event: ChannelEvent) => string;
  readonly #onClosed: () => void;
  #body: HttpBody | undefined;
  #following: FollowHandle | undefined;
  #early = "";
  #isPaused = false;
  #isOver = false;

  constructor(eventText: (event: ChannelEvent) => string, onClosed: () => void) {
    this.#eventText = eventText;
    this.#onClosed = onClosed;
  }

  /** The following to resume and stop. Must precede the transport's `opened`. */
  attach(following: FollowHandle): void {
    this.#following = following;
  }

  /** Writes a comment, except to a full connection, where it would only queue. */
  keepAlive(): void {
    if (!this.#isPaused) this.#body?.write(COMMENT);
  }

  // --- For the broker ----------------------------------------------------------------------------

  push(event: ChannelEvent): boolean {
    const text = this.#eventText(event);
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

  // --- For the transport -------------------------------------------------------------------------

  opened(body: HttpBody): void {
    const retryMs = MIN_RETRY_MS + Math.floor(Math.random() * RETRY_SPREAD_MS);
    this.#body = body;
    body.write(`retry: ${retryMs}\n\n${this.#early}`);
    this.#early = "";
    if (this.#isOver) body.end();
    else this.#resume();
  }

  writable(): void {
    this.#resume();
  }

  closed(): void {
    this.#following?.stop();
    this.#onClosed();
  }

  #resume(): void {
    if (!this.#isPaused) return;
    this.#isPaused = false;
    this.#following?.resume();
  }
}

/** Writes events; an event for many readers in a row is written once. */
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

/**
 * The id is the index behind the event: a reader that reconnects sends it as Last-Event-ID and goes
 * on there. JSON has no line break, so one `data` line holds it.
 */
function eventText({ eventId, type, data, stream, ...rest }: ChannelEvent) {
  if (stream === undefined) return "";
  const body = {
    index: stream.index,
    next_index: stream.nextIndex,
    text_offset: stream.textOffset,
    id: eventId,
    type,
    data,
    timestamp: rest.timestampMs,
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
