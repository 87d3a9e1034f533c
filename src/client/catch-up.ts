// What a reconnect could not resume: channels whose first message came while the client was away, and those beyond what a connect may
// name. Asks the conversation list, newest first, and history for where to begin. No state.

import type { ChannelRef, Conversation } from "../broker/model.ts";
import type { Ask } from "./requests.ts";

export interface Missed {
  readonly channel: ChannelRef;
  /** Where to begin in a channel that was never seen; undefined: the client has a cursor. */
  readonly afterSeq: number | undefined;
  readonly headSeq: number;
}

export interface CatchUp {
  readonly ask: Ask;
  /** Server time, Unix milliseconds: older messages in channels never seen do not matter. */
  readonly sinceMs: number;
  /** Look at all conversations, not only those with newer messages. */
  readonly all: boolean;
  isKnown(channel: ChannelRef): boolean | undefined;
}

const FIRST_PAGE = 50;
const PAGE = 500;
const MAX_CONVERSATIONS = 10_000;
const HISTORY_PAGE = 200;
const MAX_HISTORY_PAGES = 10;

/** Rejects with what `ask` rejects with. */
export async function* missedBy(parts: CatchUp): AsyncIterable<Missed> {
  const { ask, sinceMs, all, isKnown } = parts;
  for (let offset = 0; offset < MAX_CONVERSATIONS; ) {
    const limit = offset === 0 ? FIRST_PAGE : PAGE;
    const page = await ask({ kind: "conversations", limit, offset });
    for (const conversation of page.conversations) {
      const { channel, headSeq } = conversation;
      const isNew = isNewer(conversation, sinceMs);
      if (!isNew && !all) return;
      if (isKnown(channel)) yield { channel, afterSeq: undefined, headSeq };
      else if (isNew)
        yield {
          channel,
          afterSeq: await startOf(conversation, parts),
          headSeq,
        };
    }
    offset += page.conversations.length;
    if (!page.more || page.conversations.length === 0) return;
  }
}

function isNewer({ last }: Conversation, sinceMs: number): boolean {
  return last !== undefined && last.timestampMs > sinceMs;
}

/** The seq before the oldest message that is newer than `sinceMs` and shown. */
async function startOf(
  { channel, headSeq, deletedSeq }: Conversation,
  { ask, sinceMs }: CatchUp,
): Promise<number> {
  let afterSeq = headSeq;
  for (let page = 0; page < MAX_HISTORY_PAGES; page++) {
    const { messages, more } = await ask({
      kind: "history",
      channel,
      fromSeq: deletedSeq + 1,
      toSeq: afterSeq,
      limit: HISTORY_PAGE,
      reverse: true,
    });
    const newer = messages.filter((one) => one.timestampMs > sinceMs);
    afterSeq = (newer.at(-1)?.messageSeq ?? afterSeq + 1) - 1;
    if (newer.length < messages.length || !more || afterSeq <= deletedSeq)
      break;
  }
  return afterSeq;
}
