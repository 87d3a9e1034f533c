// Implements the port's calls on conversations. A list is computed when it is requested, in short
// slices of the event loop.

import {
  type ChannelKey,
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
  ConversationRange,
  ConversationSelection,
  ConversationSlice,
  ConversationStore,
} from "../../../broker/ports.ts";
import { TimeSlice } from "../../../lib/time-slice.ts";
import { CONVERSATION_BYTES, contentBytes } from "../../held-bytes.ts";
import { transact } from "../engine/database.ts";
import type { NewestMessage } from "../engine/memtable.ts";
import type { Tables } from "../engine/tables.ts";
import type { ChannelTables } from "./channel-tables.ts";
import {
  type ConversationRows,
  changedPositions,
  lastChangeId,
  peerOf,
  putLastChangeId,
  putPosition,
} from "./conversation-rows.ts";
import {
  type ConversationRef,
  type ConversationStatePorts,
  ConversationStates,
} from "./conversation-state.ts";
import { UserChannels } from "./user-channels.ts";

interface ConversationPorts extends ConversationStatePorts {
  readonly tables: Tables;
  readonly channelTables: ChannelTables;
  readonly conversationRows: ConversationRows;
  readonly ids: { next(nowMs: number): number };
  readonly appends: {
    readonly newestId: number;
  };
}

const GROUP_PREFIX = `${GROUP_CHANNEL}:`;

export class Conversations implements ConversationStore {
  readonly #ports: ConversationPorts;
  readonly #states: ConversationStates;
  readonly #userChannels: UserChannels;
  #lastChangeId: number;

  constructor(ports: ConversationPorts) {
    this.#ports = ports;
    this.#states = new ConversationStates(ports);
    this.#userChannels = new UserChannels(ports);
    this.#lastChangeId = lastChangeId(ports.tables);
  }

  /**
   * Computes conversations, beginning with the channels that have the newest messages. Stops when
   * every remaining channel's newest message is older than the last conversation in the range.
   */
  async newestConversations(
    uid: string,
    { sinceMs, count, beforeId }: ConversationRange,
  ): Promise<ConversationSelection> {
    // Read before the channels, so that a change after the read has no earlier time.
    const newestChangeMs = messageTimeMs(
      Math.max(this.#ports.appends.newestId, this.#lastChangeId),
    );
    const channels = await this.#userChannels.of(uid);
    const selection = {
      newestChangeMs,
      channels: () => channels.map(({ key }) => channelOf(key, uid)),
    };
    const candidates = new Candidates(await this.#changedSince(uid, sinceMs, channels));
    const slice = new TimeSlice();
    let heads: readonly ConversationHead[] = [];
    for (let size = count; !candidates.areDone; size *= 2) {
      const more: ConversationHead[] = [];
      for (const { key } of candidates.next(size)) {
        if (slice.shouldYield()) await slice.yield();
        const ref = this.#refTo(uid, channelOf(key, uid));
        const head = ref && this.#states.head(ref);
        if (head !== undefined && head.changedAtMs >= sinceMs) more.push(head);
      }
      heads = newestFirst([...heads, ...more]);
      const inRange = heads.findIndex(({ last }) => last.messageId < beforeId);
      const last = inRange === -1 ? undefined : heads[inRange + count - 1];
      if (last !== undefined && !candidates.areDone && candidates.newestId <= last.last.messageId)
        return { ...selection, heads, isComplete: false };
    }
    return { ...selection, heads, isComplete: true };
  }

  async #changedSince(
    uid: string,
    sinceMs: number,
    channels: readonly NewestMessage[],
  ): Promise<readonly NewestMessage[]> {
    if (sinceMs === 0) return channels.filter(({ id }) => id > 0);
    const positions = new Set<ChannelKey>();
    const slice = new TimeSlice();
    for (const { key, changedAtMs } of changedPositions(this.#ports.tables, uid)) {
      if (slice.shouldYield()) await slice.yield();
      if (changedAtMs >= sinceMs) positions.add(key);
    }
    return channels.filter(
      ({ id, key }) => id > 0 && (messageTimeMs(id) >= sinceMs || positions.has(key)),
    );
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
    this.#lastChangeId = changeId;
    const changedAtMs = messageTimeMs(changeId);
    const position = { readSeq, deletedSeq, headAtChange: head, changedAtMs };
    putPosition(tables, ref, position);
  }

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

function channelOf(key: ChannelKey, uid: string): ChannelRef {
  return key.startsWith(GROUP_PREFIX)
    ? { id: key.slice(GROUP_PREFIX.length), type: GROUP_CHANNEL }
    : { id: peerOf(key, uid), type: PERSON_CHANNEL };
}

function newestFirst(heads: ConversationHead[]): ConversationHead[] {
  return heads.sort((a, b) => b.last.messageId - a.last.messageId);
}

/**
 * Returns channels in batches, those with the newest messages first. Within a batch they have no
 * particular order. Messages that arrive meanwhile do not change the batches.
 */
class Candidates {
  readonly #channels: readonly NewestMessage[];
  readonly #ids: Float64Array;
  readonly #ascendingIds: Float64Array;
  #returned = 0;

  constructor(channels: readonly NewestMessage[]) {
    this.#channels = channels;
    this.#ids = Float64Array.from(channels, ({ id }) => id);
    this.#ascendingIds = this.#ids.toSorted();
  }

  get areDone(): boolean {
    return this.#returned === this.#ids.length;
  }

  /** Id of the newest message in the channels that `next` has not returned, 0 if there are none. */
  get newestId(): number {
    return this.#ascendingIds[this.#ids.length - this.#returned - 1] ?? 0;
  }

  /** Returns at least the next `count` channels. */
  next(count: number): readonly NewestMessage[] {
    const end = this.#ids.length - this.#returned;
    const highest = this.#ascendingIds[end - 1] ?? 0;
    const lowest = this.#ascendingIds[Math.max(0, end - count)] ?? 0;
    const channels = this.#channels.filter((_, at) => {
      const id = this.#ids[at] ?? 0;
      return id >= lowest && id <= highest;
    });
    this.#returned += channels.length;
    return channels;
  }
}
