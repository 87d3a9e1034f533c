// A channel's feed that gives what can be read: a message that cannot, such as one written by a newer build, is reported and left out. State: how
// often reading failed; one is made for one repair.

import { isAway } from "../../broker/errors.ts";
import type { ChannelKey } from "../../broker/model.ts";
import type { HistoryRange, HistorySlice } from "../../broker/ports.ts";
import type { ChannelFeed } from "../../redis/arrivals.ts";

/** Then a whole range is left out rather than searched. */
const MAX_FAILED = 64;

export class ReadableFeed
  implements Pick<ChannelFeed, "standing" | "messages">
{
  readonly #feed: ChannelFeed;
  readonly #onProblem: (error: unknown, what: string) => void;
  #failed = 0;

  constructor(
    feed: ChannelFeed,
    onProblem: (error: unknown, what: string) => void,
  ) {
    this.#feed = feed;
    this.#onProblem = onProblem;
  }

  /** Throws what the feed throws. */
  standing(...asked: Parameters<ChannelFeed["standing"]>) {
    return this.#feed.standing(...asked);
  }

  /** As the feed's, and may give more than `limit` where something is left out. Throws `unavailable`, `overloaded`. */
  async messages(key: ChannelKey, range: HistoryRange): Promise<HistorySlice> {
    try {
      return await this.#feed.messages(key, range);
    } catch (error) {
      if (isAway(error)) throw error;
      this.#failed += 1;
      if (range.fromSeq < range.toSeq && this.#failed < MAX_FAILED)
        return this.#halves(key, range);
      this.#onProblem(error, "A stored message cannot be read");
      return { messages: [], more: false };
    }
  }

  async #halves(key: ChannelKey, range: HistoryRange): Promise<HistorySlice> {
    const middle = Math.floor((range.fromSeq + range.toSeq) / 2);
    const halves = [
      { ...range, toSeq: middle },
      { ...range, fromSeq: middle + 1 },
    ];
    if (range.reverse) halves.reverse();
    const messages: HistorySlice["messages"][number][] = [];
    for (const half of halves) {
      const slice = await this.messages(key, half);
      messages.push(...slice.messages);
      if (slice.more) return { messages, more: true };
    }
    return { messages, more: false };
  }
}
