// The port's conversations: a list is computed when asked, a change of a position is one transaction, decided while nobody else can change what it
// rests on. State: the positions' table.

import type {
  ChannelRef,
  Conversation,
  ConversationHead,
} from "../../../broker/model.ts";
import { channelKey } from "../../../broker/model.ts";
import type {
  Clock,
  ConversationChange,
  ConversationSlice,
  ConversationStore,
} from "../../../broker/ports.ts";
import type { KeyedLock } from "../../../lib/keyed-lock.ts";
import type { Tables } from "../engine/database.ts";
import { transact } from "../engine/tables.ts";
import { ConversationLists } from "./conversation-lists.ts";
import type { Membership, Memberships } from "./memberships.ts";
import { putPosition } from "./positions.ts";
import type { Standings } from "./standings.ts";

export interface ConversationParts {
  readonly tables: Tables;
  readonly lock: KeyedLock;
  readonly memberships: Memberships;
  readonly standings: Standings;
  readonly clock: Clock;
}

export class Conversations implements ConversationStore {
  readonly #parts: ConversationParts;
  readonly #lists: ConversationLists;

  constructor(parts: ConversationParts) {
    this.#parts = parts;
    this.#lists = new ConversationLists(parts);
  }

  conversationsOf(uid: string): Promise<readonly ConversationHead[]> {
    return this.#lists.heads(uid);
  }

  readConversations(
    ...asked: Parameters<ConversationStore["readConversations"]>
  ): Promise<ConversationSlice> {
    return this.#lists.read(...asked);
  }

  async conversation(
    uid: string,
    channel: ChannelRef,
  ): Promise<Conversation | undefined> {
    const { memberships, standings } = this.#parts;
    const membership = memberships.one(uid, channel);
    return membership && standings.view(membership);
  }

  async changeConversation(
    uid: string,
    channel: ChannelRef,
    change: ConversationChange,
  ): Promise<Conversation | undefined> {
    const { memberships, lock } = this.#parts;
    const key = channelKey(channel, uid);
    return lock.run(`conversation ${uid} ${key}`, async () => {
      await memberships.whileSteady(channel, () => {
        const membership = memberships.one(uid, channel);
        return membership && this.#put(membership, change);
      });
      return this.conversation(uid, channel);
    });
  }

  /** Writes what `change` makes of the user's standing; undefined: it stays as it is. */
  #put(
    membership: Membership,
    change: ConversationChange,
  ): Promise<void> | undefined {
    const { tables, standings, clock } = this.#parts;
    const standing = standings.of(membership);
    const { head } = standing.state;
    if (membership.isLarge || head === 0) return undefined;
    const { readSeq, deletedSeq } = standings.changed(standing, change);
    const isSame =
      readSeq === standing.readSeq && deletedSeq === standing.deletedSeq;
    if (isSame) return undefined;
    const position = { readSeq, deletedSeq, headAtChange: head };
    const changedAtMs = clock();
    return transact(tables, () =>
      putPosition(tables, membership, { ...position, changedAtMs }),
    );
  }
}
