// A user's conversations: the list with unread counts, and read positions that move both ways [DESIGN §2.4]. State: none.

import { BrokerError } from "./errors.ts";
import { assertId } from "./ids.ts";
import type { ChannelRef, Conversation, ConversationHead } from "./model.ts";
import type {
  Announcer,
  ConversationChange,
  ConversationStore,
} from "./ports.ts";

/** Whose conversation, and which session asks; undefined: none, all sessions hear of it. */
export interface ChangeOwner {
  readonly uid: string;
  readonly origin: string | undefined;
}

/** Which of a user's conversations, newest first. */
export interface ConversationRange {
  /** How many of the newest to leave out. */
  readonly offset: number;
  readonly limit: number;
  /** Bytes of messages, streams included, after which a page ends early; it holds at least one conversation if there is one. */
  readonly maxBytes: number;
}

export interface ConversationPage {
  readonly conversations: readonly Conversation[];
  /** There are more behind the last one: ask with the offset moved on by as many as these. */
  readonly more: boolean;
}

export interface Conversations {
  /** A page, newest message first; conversations without a shown message are left out. Throws `bad_id`. */
  list(uid: string, range: ConversationRange): Promise<ConversationPage>;
  /** All of them without what their messages hold, newest message first: to choose from. Throws `bad_id`. */
  heads(uid: string): Promise<readonly ConversationHead[]>;
  /**
   * Moves the read position or hides what there is; the user's other sessions hear of it at once. `by.origin`: the session that asks.
   * Throws `not_in_channel`, `bad_request`, `bad_id`.
   */
  change(
    by: ChangeOwner,
    channel: ChannelRef,
    change: ConversationChange,
  ): Promise<Conversation>;
}

export function createConversations({
  store,
  publisher,
}: {
  readonly store: ConversationStore;
  readonly publisher: Announcer;
}): Conversations {
  async function heads(uid: string): Promise<readonly ConversationHead[]> {
    assertId(uid, "uid");
    return newestFirst(await store.conversationsOf(uid));
  }

  return {
    heads,

    async list(uid, { offset, limit, maxBytes }) {
      const wanted = (await heads(uid)).slice(offset);
      const channels = wanted.map(({ channel }) => channel);
      const bounds = { limit, maxBytes };
      const page = await store.readConversations(uid, channels, bounds);
      // a newer message may have come into one of them meanwhile
      return { ...page, conversations: newestFirst(page.conversations) };
    },

    async change({ uid, origin }, channel, change) {
      assertId(uid, "uid");
      assertId(channel.id, "channel_id");
      assertChange(change);
      const conversation = await store.changeConversation(uid, channel, change);
      if (conversation === undefined) throw new BrokerError("not_in_channel");
      const { kind } = change;
      await publisher.announce([
        {
          kind: "conversation",
          ...{ uid, conversation, change: kind, origin },
        },
      ]);
      return conversation;
    },
  };
}

function newestFirst<T extends Conversation | ConversationHead>(
  conversations: readonly T[],
): readonly T[] {
  const idOf = ({ last }: T) => last?.messageId ?? 0;
  return conversations.toSorted((a, b) => idOf(b) - idOf(a));
}

function assertChange(change: ConversationChange): void {
  if (change.kind === "delete") return;
  const number = change.kind === "read" ? change.seq : change.unread;
  if (Number.isSafeInteger(number) && number >= 0) return;
  const path = change.kind === "read" ? "seq" : "unread";
  throw new BrokerError("bad_request", {
    message: `${path} must be an integer from 0`,
    details: [{ path, message: "is no count" }],
  });
}
