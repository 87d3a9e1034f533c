// Lists of a user's conversations: all of them without content, some of them whole. Long lists are made in short stretches of the event loop.
// How many at once is the caller's. State: none.

import type {
  ChannelRef,
  Conversation,
  ConversationHead,
} from "../../../broker/model.ts";
import type { ConversationSlice } from "../../../broker/ports.ts";
import { TimeSlice } from "../../../lib/time-slice.ts";
import { CONVERSATION_BYTES, contentBytes } from "../../held-bytes.ts";
import type { Memberships } from "./memberships.ts";
import type { Standings } from "./standings.ts";

interface ConversationListsParts {
  readonly memberships: Memberships;
  readonly standings: Standings;
}

export class ConversationLists {
  readonly #parts: ConversationListsParts;

  constructor(parts: ConversationListsParts) {
    this.#parts = parts;
  }

  /** The port's `conversationsOf`. */
  async heads(uid: string): Promise<readonly ConversationHead[]> {
    const { memberships, standings } = this.#parts;
    const found: ConversationHead[] = [];
    const slice = new TimeSlice();
    for (const membership of memberships.of(uid)) {
      if (slice.isUsedUp()) await slice.rest();
      const head = standings.head(membership);
      if (head !== undefined) found.push(head);
    }
    return found;
  }

  /** The port's `readConversations`. */
  async read(
    uid: string,
    channels: readonly ChannelRef[],
    { limit, maxBytes }: { readonly limit: number; readonly maxBytes: number },
  ): Promise<ConversationSlice> {
    const { memberships, standings } = this.#parts;
    const conversations: Conversation[] = [];
    const slice = new TimeSlice();
    let bytes = 0;
    for (const channel of channels) {
      if (conversations.length >= limit) return { conversations, more: true };
      if (slice.isUsedUp()) await slice.rest();
      const membership = memberships.one(uid, channel);
      const one = membership && standings.view(membership);
      if (one?.last === undefined) continue;
      bytes += CONVERSATION_BYTES + contentBytes(one.last);
      if (bytes > maxBytes && conversations.length > 0)
        return { conversations, more: true };
      conversations.push(one);
    }
    return { conversations, more: false };
  }
}
