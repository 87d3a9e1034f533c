// Implements the port's calls on conversations. A list is computed when it is requested, in short
// slices of the event loop. A change of a position is one synchronous step inside a transaction. No
// state.

import {
  type ChannelRef,
  type Conversation,
  type ConversationHead,
  channelKey,
  GROUP_CHANNEL,
  messageTimeMs,
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
import { type ConversationRows, putLastChangeId, putPosition } from "./conversation-rows.ts";
import {
  type ConversationRef,
  type ConversationStatePorts,
  ConversationStates,
} from "./conversation-state.ts";

interface ConversationPorts extends ConversationStatePorts {
  readonly tables: Tables;
  readonly channelTables: ChannelTables;
  readonly conversationRows: ConversationRows;
  readonly ids: { next(nowMs: number): number };
}

export class Conversations implements ConversationStore {
  readonly #ports: ConversationPorts;
  readonly #states: ConversationStates;

  constructor(ports: ConversationPorts) {
    this.#ports = ports;
    this.#states = new ConversationStates(ports);
  }

  async conversationsOf(uid: string): Promise<readonly ConversationHead[]> {
    const heads: ConversationHead[] = [];
    const slice = new TimeSlice();
    for (const ref of this.#refsOf(uid)) {
      if (slice.shouldYield()) await slice.yield();
      const head = this.#states.head(ref);
      if (head !== undefined) heads.push(head);
    }
    return heads;
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
      if (slice.shouldYield()) await slice.yield();
      const conversation = this.#view(uid, channel);
      if (conversation?.last === undefined) continue;
      bytes += CONVERSATION_BYTES + contentBytes(conversation.last);
      if (bytes > maxBytes && conversations.length > 0) return { conversations, more: true };
      conversations.push(conversation);
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
    return transact(this.#ports.tables, () => {
      const ref = this.#refTo(uid, channel);
      if (ref === undefined) return undefined;
      this.#put(ref, change);
      return this.#states.view(ref);
    });
  }

  #view(uid: string, channel: ChannelRef): Conversation | undefined {
    const ref = this.#refTo(uid, channel);
    return ref && this.#states.view(ref);
  }

  /**
   * Applies the change. Stores nothing if the group is large, if the channel has no message, or if
   * the position stays the same.
   */
  #put(ref: ConversationRef, change: ConversationChange): void {
    const { tables, clock, ids } = this.#ports;
    const state = this.#states.stateOf(ref);
    const { head } = state.channel;
    if (ref.isLarge || head === 0) return;
    const { readSeq, deletedSeq } = this.#states.afterChange(state, change);
    const isSame = readSeq === state.readSeq && deletedSeq === state.deletedSeq;
    if (isSame) return;
    // The id does not belong to a message. Its time is not earlier than that of any earlier change
    // or message.
    const changeId = ids.next(clock());
    putLastChangeId(tables, changeId);
    const changedAtMs = messageTimeMs(changeId);
    const position = { readSeq, deletedSeq, headAtChange: head, changedAtMs };
    putPosition(tables, ref, position);
  }

  *#refsOf(uid: string): Generator<ConversationRef> {
    const { channelTables, conversationRows } = this.#ports;
    for (const { id, joinSeq } of channelTables.groupsOf(uid)) {
      const channel: ChannelRef = { id, type: GROUP_CHANNEL };
      const isLarge = channelTables.row(channel)?.info.large === true;
      const key = channelKey(channel, uid);
      yield { uid, channel, key, isLarge, joinSeq };
    }
    for (const peer of conversationRows.peersOf(uid))
      yield personalRef(uid, { id: peer, type: PERSON_CHANNEL });
  }

  /** Returns `undefined` if the user is not a member of the group or the group is disbanded. */
  #refTo(uid: string, channel: ChannelRef): ConversationRef | undefined {
    if (channel.type === PERSON_CHANNEL) return personalRef(uid, channel);
    const { channelTables } = this.#ports;
    const info = channelTables.row(channel)?.info;
    if (info === undefined || info.disband) return undefined;
    const joinSeq = channelTables.joinSeq(uid, channel.id);
    if (joinSeq === undefined) return undefined;
    const { id, type, large } = info;
    const key = channelKey(channel, uid);
    return { uid, channel: { id, type }, key, isLarge: large, joinSeq };
  }
}

function personalRef(uid: string, { id, type }: ChannelRef): ConversationRef {
  const channel = { id, type };
  const key = channelKey(channel, uid);
  return { uid, channel, key, isLarge: false, joinSeq: 0 };
}
