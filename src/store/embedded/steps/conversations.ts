// The port's conversations: a list is computed when asked, in short stretches of the event loop; a
// change of a position is one synchronous step inside a transaction. No state but the tables'.

import {
  type ChannelRef,
  type Conversation,
  type ConversationHead,
  channelKey,
  GROUP_CHANNEL,
  PERSON_CHANNEL,
} from "../../../broker/model.ts";
import type {
  ConversationChange,
  ConversationSlice,
  ConversationStore,
} from "../../../broker/ports.ts";
import { TimeSlice } from "../../../lib/time-slice.ts";
import { CONVERSATION_BYTES, contentBytes } from "../../held-bytes.ts";
import { transact } from "../engine/database.ts";
import type { Tables } from "../engine/tables.ts";
import type { ChannelTables } from "./channel-tables.ts";
import { type ConversationRows, putPosition } from "./conversation-rows.ts";
import {
  type ConversationStateParts,
  ConversationStates,
  type Membership,
} from "./conversation-state.ts";

interface ConversationParts extends ConversationStateParts {
  readonly tables: Tables;
  readonly channelTables: ChannelTables;
  readonly conversationRows: ConversationRows;
}

export class Conversations implements ConversationStore {
  readonly #parts: ConversationParts;
  readonly #states: ConversationStates;

  constructor(parts: ConversationParts) {
    this.#parts = parts;
    this.#states = new ConversationStates(parts);
  }

  async conversationsOf(uid: string): Promise<readonly ConversationHead[]> {
    const found: ConversationHead[] = [];
    const slice = new TimeSlice();
    for (const membership of this.#memberships(uid)) {
      if (slice.isUsedUp()) await slice.rest();
      const head = this.#states.head(membership);
      if (head !== undefined) found.push(head);
    }
    return found;
  }

  async readConversations(
    uid: string,
    channels: readonly ChannelRef[],
    { limit, maxBytes }: { readonly limit: number; readonly maxBytes: number },
  ): Promise<ConversationSlice> {
    const conversations: Conversation[] = [];
    const slice = new TimeSlice();
    let bytes = 0;
    for (const channel of channels) {
      if (conversations.length >= limit) return { conversations, more: true };
      if (slice.isUsedUp()) await slice.rest();
      const one = this.#view(uid, channel);
      if (one?.last === undefined) continue;
      bytes += CONVERSATION_BYTES + contentBytes(one.last);
      if (bytes > maxBytes && conversations.length > 0) return { conversations, more: true };
      conversations.push(one);
    }
    return { conversations, more: false };
  }

  async conversation(uid: string, channel: ChannelRef): Promise<Conversation | undefined> {
    return this.#view(uid, channel);
  }

  async changeConversation(
    uid: string,
    channel: ChannelRef,
    change: ConversationChange,
  ): Promise<Conversation | undefined> {
    return transact(this.#parts.tables, () => {
      const membership = this.#membership(uid, channel);
      if (membership === undefined) return undefined;
      this.#put(membership, change);
      return this.#states.view(membership);
    });
  }

  #view(uid: string, channel: ChannelRef): Conversation | undefined {
    const membership = this.#membership(uid, channel);
    return membership && this.#states.view(membership);
  }

  /** Writes what `change` makes of the user's state, where it is another one. */
  #put(membership: Membership, change: ConversationChange): void {
    const { tables, clock } = this.#parts;
    const state = this.#states.of(membership);
    const { head } = state.channel;
    if (membership.isLarge || head === 0) return;
    const { readSeq, deletedSeq } = this.#states.changed(state, change);
    const isSame = readSeq === state.readSeq && deletedSeq === state.deletedSeq;
    if (isSame) return;
    const changedAtMs = clock();
    const position = { readSeq, deletedSeq, headAtChange: head, changedAtMs };
    putPosition(tables, membership, position);
  }

  /** The user's groups, and everybody with whom there is a personal channel. */
  *#memberships(uid: string): Generator<Membership> {
    const { channelTables, conversationRows } = this.#parts;
    for (const { id, joinSeq } of channelTables.groupsOf(uid)) {
      const channel: ChannelRef = { id, type: GROUP_CHANNEL };
      const isLarge = channelTables.row(channel)?.info.large === true;
      const key = channelKey(channel, uid);
      yield { uid, channel, key, isLarge, joinSeq };
    }
    for (const peer of conversationRows.peersOf(uid))
      yield membershipOfPair(uid, { id: peer, type: PERSON_CHANNEL });
  }

  /** Undefined: a group the user is no member of, or none any more. */
  #membership(uid: string, channel: ChannelRef): Membership | undefined {
    if (channel.type === PERSON_CHANNEL) return membershipOfPair(uid, channel);
    const { channelTables } = this.#parts;
    const info = channelTables.row(channel)?.info;
    if (info === undefined || info.disband) return undefined;
    const joinSeq = channelTables.joinSeq(uid, channel.id);
    if (joinSeq === undefined) return undefined;
    const { id, type, large } = info;
    const key = channelKey(channel, uid);
    return { uid, channel: { id, type }, key, isLarge: large, joinSeq };
  }
}

function membershipOfPair(uid: string, { id, type }: ChannelRef): Membership {
  const channel = { id, type };
  const key = channelKey(channel, uid);
  return { uid, channel, key, isLarge: false, joinSeq: 0 };
}
