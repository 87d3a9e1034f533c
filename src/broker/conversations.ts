// Lists the conversations of users with their unread counts, and changes read positions [DESIGN
// §2.4]. A limited number of lists is built concurrently, and users take turns. State: the calls
// that wait for their turn.

import { FairSemaphore } from "../lib/fair-semaphore.ts";
import { BrokerError } from "./errors.ts";
import { assertId } from "./ids.ts";
import type { ChannelRef, Conversation, ConversationHead } from "./model.ts";
import type { Announcer, ConversationChange, ConversationStore } from "./ports.ts";

/**
 * Maximum number of lists that are built concurrently. Each uses a part of every event-loop turn.
 */
const CONCURRENT_LISTS = 4;
/** Maximum number of waiting calls of one user. Equals the default maximum of sessions per user. */
const MAX_WAITING_LISTS = 100;

interface ChangeOwner {
  readonly uid: string;
  /** Session that makes the change and is not notified. `undefined` to notify all sessions. */
  readonly origin: string | undefined;
}

interface ConversationRange {
  /** Number of conversations to skip, from the newest. */
  readonly offset: number;
  readonly limit: number;
  /** Maximum size of messages and streams. A larger first conversation is returned anyway. */
  readonly maxBytes: number;
}

interface ConversationPage {
  readonly conversations: readonly Conversation[];
  /** True if further conversations may follow, at `offset` plus the length of this page. */
  readonly more: boolean;
  /** Number of conversations that were sorted to find this page. */
  readonly readCount: number;
}

/** Use cases of conversations. All methods throw `bad_id` for an invalid id. */
export interface Conversations {
  /**
   * Milliseconds by which the `changedAtMs` of a change may be lower than that of an earlier
   * change. A caller that reads all changes since a time must start `lookBackMs` before that time.
   */
  readonly lookBackMs: number;
  /**
   * Returns a page of the user's conversations that have a visible message, newest first. Throws
   * `overloaded` if too many calls of the user wait.
   */
  list(uid: string, range: ConversationRange): Promise<ConversationPage>;
  /**
   * Returns all conversations of the user that have a visible message, newest first, without
   * payloads. Throws `overloaded` if too many calls of the user wait.
   */
  heads(uid: string): Promise<readonly ConversationHead[]>;
  /**
   * Changes a conversation and notifies the user's other sessions. Throws `not_in_channel`, or
   * `bad_request` if the number in `change` is negative or not an integer.
   */
  change(by: ChangeOwner, channel: ChannelRef, change: ConversationChange): Promise<Conversation>;
}

export function createConversations({
  store,
  publisher,
  lookBackMs = 0,
}: {
  readonly store: ConversationStore;
  readonly publisher: Announcer;
  readonly lookBackMs?: number;
}): Conversations {
  const turns = new FairSemaphore(
    CONCURRENT_LISTS,
    MAX_WAITING_LISTS,
    () =>
      new BrokerError("overloaded", {
        message: "The user has requested too many conversation lists at once; try again later",
      }),
  );

  async function inTurn<T>(uid: string, build: () => Promise<T>): Promise<T> {
    assertId(uid, "uid");
    return turns.run(uid, build);
  }

  async function heads(uid: string): Promise<readonly ConversationHead[]> {
    return newestFirst(await store.conversationsOf(uid));
  }

  async function list(
    uid: string,
    { offset, limit, maxBytes }: ConversationRange,
  ): Promise<ConversationPage> {
    const sorted = await heads(uid);
    const channels = sorted.slice(offset).map(({ channel }) => channel);
    const bounds = { limit, maxBytes };
    const page = await store.readConversations(uid, channels, bounds);
    // Sorted again, because newer messages may have been stored between the two reads.
    const conversations = newestFirst(page.conversations);
    return { conversations, more: page.more, readCount: sorted.length };
  }

  return {
    lookBackMs,
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
  // Sorts by id and not by timestamp, because timestamps may decrease when a clock is set back.
  const idOf = ({ last }: T) => last?.messageId ?? 0;
  return conversations.toSorted((a, b) => idOf(b) - idOf(a));
}

function assertChange(change: ConversationChange): void {
  if (change.kind === "delete") return;
  const number = change.kind === "read" ? change.seq : change.unread;
  if (Number.isSafeInteger(number) && number >= 0) return;
  const path = change.kind === "read" ? "seq" : "unread";
  throw new BrokerError("bad_request", {
    message: `${path} must be an integer of at least 0`,
    details: [{ path, message: "must be an integer of at least 0" }],
  });
}
