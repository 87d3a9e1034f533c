// Replies that follow a stream with server-sent events [WHATWG HTML: Server-sent events]. While the
// send buffer of a feed's connection is full, the feed is paused, and the broker merges its events.

import {
  type ChannelEvent,
  isCustomType,
  STREAM_CONTENT,
  STREAM_END,
  STREAM_START,
} from "../broker/model.ts";
import type { FollowHandle, StreamSink } from "../broker/stream-followers.ts";
import type { HttpReply, HttpStream } from "../transport/types.ts";
import { EVENT_STREAM_HEADERS, EventFeed } from "./event-feed.ts";
import { FeedWheel, type MayStay } from "./feed-wheel.ts";
import { OPEN_TO_PAGES } from "./reply.ts";

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
    const feed = new EventFeed({
      headers: HEADERS,
      firstText: retryText(),
      onClosed: () => this.#wheel.delete(feed),
    });
    const source = await follow({
      push: (event) => feed.write(this.#eventText(event)),
      ended: () => feed.end(),
    });
    feed.attach(source);
    this.#wheel.add(feed, mayStay);
    return feed;
  }
}

const HEADERS = Object.freeze({ ...EVENT_STREAM_HEADERS, ...OPEN_TO_PAGES });

export const FEED_HEAD: HttpReply = Object.freeze({ status: 200, headers: HEADERS, body: "" });

/**
 * Range of the random reconnect delay. It prevents all readers of a failed node from reconnecting
 * at the same time.
 */
const MIN_RETRY_MS = 1000;
const RETRY_SPREAD_MS = 2000;

/** Returns the line that sets the reconnect delay. */
function retryText(): string {
  return `retry: ${MIN_RETRY_MS + Math.floor(Math.random() * RETRY_SPREAD_MS)}\n\n`;
}

/**
 * Returns a version of `eventText` that caches its last result, because the same event is often
 * sent to several readers in a row.
 */
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
 * Returns the text of an event. Its `id` line contains the index of the next event, at which a
 * reader continues that sends this `id` as Last-Event-ID.
 */
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

function nameOf(type: string): "start" | "content" | "end" | "tool" | "custom" {
  switch (type) {
    case STREAM_START:
      return "start";
    case STREAM_CONTENT:
      return "content";
    case STREAM_END:
      return "end";
    default:
      return isCustomType(type) ? "custom" : "tool";
  }
}
