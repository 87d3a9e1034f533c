// Wires the conversations. No state of its own.

import type { ConversationStore } from "../../broker/ports.ts";
import {
  ChannelStates,
  type ChannelStatesParts,
} from "./steps/channel-state.ts";
import {
  type ConversationParts,
  Conversations,
} from "./steps/conversations.ts";
import { type MembershipParts, Memberships } from "./steps/memberships.ts";
import { type StandingParts, Standings } from "./steps/standings.ts";
import { Unread, type UnreadParts } from "./steps/unread.ts";

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
