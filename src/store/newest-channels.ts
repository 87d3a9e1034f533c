// Selects a list's conversations in the order of their channels' newest messages, so that only the
// conversations near the requested range are read. Pure except for the reads.

import type { ChannelKey, ChannelRef, ConversationHead } from "../broker/model.ts";
import { GROUP_CHANNEL, PERSON_CHANNEL } from "../broker/model.ts";
import type { ConversationRange, ConversationSelection } from "../broker/ports.ts";

export interface NewestMessage {
  readonly key: ChannelKey;
  /** Upper bound on the ids of the channel's visible messages. 0 if the channel has no message. */
  readonly id: number;
}

/**
 * Reads conversations in batches, by descending id of their channels' newest messages. Stops when
 * no remaining channel can have a newer message than the last conversation of the range.
 * `readHeads` returns the conversations that have a visible message.
 */
export async function selectNewest(
  channels: readonly NewestMessage[],
  { sinceMs, count, beforeId, onlyUnread = false }: ConversationRange,
  readHeads: (channels: readonly NewestMessage[]) => Promise<readonly ConversationHead[]>,
): Promise<Pick<ConversationSelection, "heads" | "isComplete">> {
  const candidates = new Candidates(channels);
  const isSelected = ({ changedAtMs, unread }: ConversationHead) =>
    changedAtMs >= sinceMs && (!onlyUnread || unread > 0);
  let heads: readonly ConversationHead[] = [];
  for (let size = count; !candidates.areDone; size *= 2) {
    const more = await readHeads(candidates.next(size));
    heads = newestFirst([...heads, ...more.filter(isSelected)]);
    const inRange = heads.findIndex(({ last }) => last.messageId < beforeId);
    const last = inRange === -1 ? undefined : heads[inRange + count - 1];
    if (last !== undefined && !candidates.areDone && candidates.newestId <= last.last.messageId)
      return { heads, isComplete: false };
  }
  return { heads, isComplete: true };
}

function newestFirst(heads: ConversationHead[]): ConversationHead[] {
  return heads.sort((a, b) => b.last.messageId - a.last.messageId);
}

/**
 * Channels that `next` returns in batches, beginning with the channels that have the newest
 * messages. The order within a batch is undefined.
 */
class Candidates {
  readonly #channels: readonly NewestMessage[];
  readonly #ids: Float64Array;
  readonly #ascendingIds: Float64Array;
  #returned = 0;

  constructor(channels: readonly NewestMessage[]) {
    this.#channels = channels;
    this.#ids = Float64Array.from(channels, ({ id }) => id);
    this.#ascendingIds = this.#ids.toSorted();
  }

  get areDone(): boolean {
    return this.#returned === this.#ids.length;
  }

  /**
   * Highest message id among the channels that `next` has not returned yet. 0 if `next` has
   * returned all channels.
   */
  get newestId(): number {
    return this.#ascendingIds[this.#ids.length - this.#returned - 1] ?? 0;
  }

  /** Returns at least the next `count` channels, or all remaining ones if there are fewer. */
  next(count: number): readonly NewestMessage[] {
    const end = this.#ids.length - this.#returned;
    const highest = this.#ascendingIds[end - 1] ?? 0;
    const lowest = this.#ascendingIds[Math.max(0, end - count)] ?? 0;
    const channels = this.#channels.filter((_, at) => {
      const id = this.#ids[at] ?? 0;
      return id >= lowest && id <= highest;
    });
    this.#returned += channels.length;
    return channels;
  }
}

const GROUP_PREFIX = `${GROUP_CHANNEL}:`;
const PERSON_PREFIX = `${PERSON_CHANNEL}:`;

/** Returns the channel as the user sees it: a personal channel has the other user's id. */
export function channelOf(key: ChannelKey, uid: string): ChannelRef {
  if (key.startsWith(GROUP_PREFIX))
    return { id: key.slice(GROUP_PREFIX.length), type: GROUP_CHANNEL };
  const [first = "", second = ""] = key.slice(PERSON_PREFIX.length).split("@");
  return { id: first === uid ? second : first, type: PERSON_CHANNEL };
}
