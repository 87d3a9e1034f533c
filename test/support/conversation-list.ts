// Reads a store's conversations in the form that tests compare.

import type { ConversationHead } from "../../src/broker/model.ts";
import type { ConversationRange, ConversationStore } from "../../src/broker/ports.ts";

type Lists = Pick<ConversationStore, "newestConversations">;

/** The range of all conversations. */
export const ALL: ConversationRange = {
  ...{ sinceMs: 0, count: Infinity, beforeId: Number.MAX_SAFE_INTEGER },
};

/** Returns all conversations of the user with a visible message, newest message first. */
export async function conversationsOf(
  store: Lists,
  uid: string,
): Promise<readonly ConversationHead[]> {
  return (await store.newestConversations(uid, ALL)).heads;
}

/** Returns exactly the conversations of the range, newest message first. */
export async function conversationsIn(
  store: Lists,
  uid: string,
  range: ConversationRange,
): Promise<readonly ConversationHead[]> {
  const { heads } = await store.newestConversations(uid, range);
  return inRange(heads, range);
}

/** Returns the conversations in the range. `heads` must contain all conversations of the user. */
export function inRange(
  heads: readonly ConversationHead[],
  { sinceMs, count, beforeId, onlyUnread = false, excludedTypes = [] }: ConversationRange,
): readonly ConversationHead[] {
  return heads
    .filter(({ changedAtMs, last }) => changedAtMs >= sinceMs && last.messageId < beforeId)
    .filter(
      ({ unread, channel }) =>
        !excludedTypes.includes(channel.type) && !(onlyUnread && unread === 0),
    )
    .slice(0, count);
}
