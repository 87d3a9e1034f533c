// All readers of streams by server-sent events. State: the open feeds, dealt out over the slots of a wheel, and the timer that turns it: each
// turn visits one slot, so that thousands are not visited at once. A visit keeps the connection awake and asks whether its reader may stay.

import type { ChannelEvent } from "../broker/model.ts";
import type { Following, StreamSink } from "../broker/stream-followers.ts";
import { createEventText } from "./event-text.ts";
import { StreamFeed } from "./stream-feed.ts";

const SLOTS = 15;
const KEEP_ALIVE_MS = 15_000;

/** Whether the reader may go on; asked at each visit. Must not reject. */
export type MayStay = () => Promise<boolean>;

export class Feeds {
  readonly #eventText: (event: ChannelEvent) => string = createEventText();
  readonly #slots = Array.from(
    { length: SLOTS },
    () => new Map<StreamFeed, MayStay>(),
  );
  readonly #turnMs: number;
  #count = 0;
  #next = 0;
  #timer: NodeJS.Timeout | undefined;

  /** Each feed is visited every `keepAliveMs`. */
  constructor(keepAliveMs: number = KEEP_ALIVE_MS) {
    this.#turnMs = keepAliveMs / SLOTS;
  }

  /** A feed of what `follow` hands its sink. Rejects with what `follow` does. */
  async open(
    follow: (sink: StreamSink) => Promise<Following>,
    mayStay: MayStay,
  ): Promise<StreamFeed> {
    const slot = this.#slots[this.#count % SLOTS];
    const feed = new StreamFeed({
      eventText: this.#eventText,
      onClosed: (closed) => this.#forget(closed),
    });
    feed.attach(await follow(feed));
    this.#count += 1;
    slot?.set(feed, mayStay);
    this.#timer ??= setInterval(() => this.#turn(), this.#turnMs).unref();
    return feed;
  }

  #turn(): void {
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
  if (!(await mayStay())) feed.end();
}
