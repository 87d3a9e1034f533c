// Wires the conversations. No state of its own.

import type { ConversationStore } from "../../broker/ports.ts";
import { ChannelStates, type ChannelStatesParts } from "./channel-state.ts";
import { type ConversationParts, Conversations } from "./conversations.ts";
import { type MembershipParts, Memberships } from "./memberships.ts";
import { type StandingParts, Standings } from "./standings.ts";
import { Unread, type UnreadParts } from "./unread.ts";

interface OpenConversationsParts
  extends Omit<ConversationParts, "memberships" | "standings">,
    MembershipParts,
    Pick<UnreadParts, "retentionMs"> {
  /** What the message path keeps. */
  readonly path: Pick<ChannelStatesParts, "rows" | "memtable" | "logRows"> &
    Pick<StandingParts, "history">;
}

export function openConversations(
  parts: OpenConversationsParts,
): ConversationStore {
  const { memtable, rows, logRows, history } = parts.path;
  const states = new ChannelStates({ ...parts, memtable, rows, logRows });
  const unread = new Unread({ ...parts, states });
  return new Conversations({
    ...parts,
    memberships: new Memberships(parts),
    standings: new Standings({ ...parts, states, unread, history }),
  });
}
