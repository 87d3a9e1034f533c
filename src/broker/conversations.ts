// A user's conversations: the list with unread counts, and read positions that move both ways
// [DESIGN §2.4]. A few lists are made at a time, in turns between users. State: the waiting lists.

import { FairSemaphore } from "../lib/fair-semaphore.ts";
import { BrokerError } from "./errors.ts";
import { assertId } from "./ids.ts";
import type { ChannelRef, Conversation, ConversationHead } from "./model.ts";
import type { Announcer, ConversationChange, ConversationStore } from "./ports.ts";

/** Lists made at once: each takes a slice of every turn of the event loop. */
const LISTS_AT_ONCE = 4;
/** Waiting lists of one user: as many as it may have sessions by default. */
const MAX_LISTS_WAITING = 100;

/** `origin`: the session that changes it, which is not notified; undefined: all sessions are. */
interface ChangeOwner {
  readonly uid: string;
  readonly origin: string | undefined;
}

interface ConversationRange {
  /** Skipped from the newest. */
  readonly offset: number;
  readonly limit: number;
  /**
   * Bytes of messages, streams included, after which a page ends early; it holds at least one
   * conversation if there is one.
   */
  readonly maxBytes: number;
}

interface ConversationPage {
  readonly conversations: readonly Conversation[];
  /** There are more: ask again with the offset moved on by the length of this page. */
  readonly more: boolean;
  /** Conversations read to find the newest. */
  readonly looked: number;
}

export interface Conversations {
  /**
   * A page, newest message first; conversations without a shown message are left out. Throws
   * `bad_id`, `overloaded`.
   */
  list(uid: string, range: ConversationRange): Promise<ConversationPage>;
  /** All of them without payloads, newest message first. Throws `bad_id`, `overloaded`. */
  heads(uid: string): Promise<readonly ConversationHead[]>;
  /**
   * Moves the read position or hides the messages; the user's other sessions are notified at once.
   * Throws `not_in_channel`, `bad_request`, `bad_id`.
   */
  change(by: ChangeOwner, channel: ChannelRef, change: ConversationChange): Promise<Conversation>;
}

export function createConversations({
  store,
  publisher,
}: {
  readonly store: ConversationStore;
  readonly publisher: Announcer;
}): Conversations {
  const turns = new FairSemaphore(
    LISTS_AT_ONCE,
    MAX_LISTS_WAITING,
    () =>
      new BrokerError("overloaded", {
        message: "Too many conversation lists of the user wait",
      }),
  );

  async function inTurn<T>(uid: string, make: () => Promise<T>): Promise<T> {
    assertId(uid, "uid");
    return turns.run(uid, make);
  }

  async function heads(uid: string): Promise<readonly ConversationHead[]> {
    return newestFirst(await store.conversationsOf(uid));
  }

  async function list(
    uid: string,
    { offset, limit, maxBytes }: ConversationRange,
  ): Promise<ConversationPage> {
    const all = await heads(uid);
    const channels = all.slice(offset).map(({ channel }) => channel);
    const bounds = { limit, maxBytes };
    const page = await store.readConversations(uid, channels, bounds);
    // a newer message may have been stored meanwhile
    const conversations = newestFirst(page.conversations);
    return { conversations, more: page.more, looked: all.length };
  }

  return {
    heads: (uid) => inTurn(uid, () => heads(uid)),
    list: (uid, range) => inTurn(uid, () => list(uid, range)),

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
  const timeOf = ({ last }: T) => last?.timestampMs ?? 0;
  const idOf = ({ last }: T) => last?.messageId ?? 0;
  return conversations.toSorted(
    (a, b) => timeOf(b) - timeOf(a) || idOf(b) - idOf(a), // ids of different channels on Redis have no order within a call
  );
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
