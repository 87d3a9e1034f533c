// Reads the messages that feed events refer to. Keeps no state.

import type { EventRow } from "./event-ports.ts";
import type { ChannelKey, Message } from "./model.ts";
import type { MessageStore } from "./ports.ts";

/**
 * Returns the existing messages to which the events refer. The keys of the result are `<channel
 * key>\n<seq>`. After a fail-over, a seq may belong to a later message than the one to which the
 * event refers, so the caller must compare the ids.
 */
export async function messagesOf(
  store: Pick<MessageStore, "readMessages">,
  rows: readonly Pick<EventRow, "key" | "messageSeq">[],
): Promise<ReadonlyMap<string, Message>> {
  const ranges: { readonly key: ChannelKey; readonly fromSeq: number; toSeq: number }[] = [];
  const open = new Map<ChannelKey, (typeof ranges)[number]>();
  for (const { key, messageSeq } of rows) {
    if (messageSeq === 0) continue;
    const range = open.get(key);
    // Only consecutive seqs share a range, because a seq in between may have no event: the feed may
    // have been off when its message was stored.
    if (range?.toSeq === messageSeq - 1) range.toSeq = messageSeq;
    else if (range?.toSeq !== messageSeq) {
      const next = { key, fromSeq: messageSeq, toSeq: messageSeq };
      ranges.push(next);
      open.set(key, next);
    }
  }
  const messages = new Map<string, Message>();
  // The reads are issued together, so that they share round trips.
  await Promise.all(
    ranges.map(async ({ key, fromSeq, toSeq }) => {
      const slice = await store.readMessages(key, {
        ...{ fromSeq, toSeq, limit: toSeq - fromSeq + 1 },
        ...{ reverse: false, maxBytes: Number.MAX_VALUE },
      });
      for (const message of slice.messages) messages.set(`${key}\n${message.messageSeq}`, message);
    }),
  );
  return messages;
}
