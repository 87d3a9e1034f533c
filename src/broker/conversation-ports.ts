// What the domain asks of a store for conversations: the part of the Store port (`ports.ts`) that says how each user stands to each channel. Prose
// is contract, as there.

import type { ChannelRef, Conversation, ConversationHead } from "./model.ts";

/** What a user asks of a conversation. `read`: everything through `seq`. `unread`: as many unread as that, as far as there are. `delete`: hide all there is. */
export type ConversationChange =
  | { readonly kind: "read"; readonly seq: number }
  | { readonly kind: "unread"; readonly unread: number }
  | { readonly kind: "delete" };

export interface ConversationSlice {
  readonly conversations: readonly Conversation[];
  /** Not all channels were looked at. */
  readonly more: boolean;
}

/**
 * Conversations of a user: the groups of `groupsOf` and every personal channel with a stored message of or to the user. Nothing is written
 * per message and member. The read position is where the user last set it, or where the user joined the group since, or the newest own
 * message stored after that, whichever is furthest on the way. Unread counts shown messages (neither expired nor past a limit of history) with
 * a red dot behind it; of those that expire 1000 at most, the newest (fewer, while thousands behind them have expired just now). Leaving a
 * group forgets the user's position in it. Large groups: unread 0, positions are not kept.
 */
export interface ConversationStore {
  /** All with a shown message, in no order. Costs as much as the user has conversations, whatever their messages hold: no content is read. */
  conversationsOf(uid: string): Promise<readonly ConversationHead[]>;
  /**
   * Those of `channels` that have a shown message, in that order, as they stand now; no more than `limit` of them, and no further one
   * whose message would take the content of all beyond `maxBytes`. Holds at least one if there is one.
   */
  readConversations(
    uid: string,
    channels: readonly ChannelRef[],
    bounds: { readonly limit: number; readonly maxBytes: number },
  ): Promise<ConversationSlice>;
  /** One conversation, also without a message; undefined: a group the user is no member of. */
  conversation(
    uid: string,
    channel: ChannelRef,
  ): Promise<Conversation | undefined>;
  /** Applies the change in one atomic step and returns how it stands then; both ways, clipped to the channel's seqs. Undefined as above. */
  changeConversation(
    uid: string,
    channel: ChannelRef,
    change: ConversationChange,
  ): Promise<Conversation | undefined>;
}
