// Implements the port's calls on conversations. A list is computed when it is requested, in short
// time slices, so that it does not block the event loop.

import {
  type ChannelKey,
  type ChannelRef,
  type Conversation,
  type ConversationHead,
  channelKey,
  messageTimeMs,
  PERSON_CHANNEL,
} from "../../../broker/model.ts";
import type {
  ConversationChange,
  ConversationRange,
  ConversationSelection,
  ConversationSlice,
  ConversationStore,
  ImportStore,
} from "../../../broker/ports.ts";
import { TimeSlice, Turns } from "../../../lib/time-slice.ts";
import { CONVERSATION_BYTES, contentBytes } from "../../held-bytes.ts";
import { channelOf, type NewestMessage, selectNewest } from "../../newest-channels.ts";
import { transact } from "../engine/database.ts";
import type { Tables } from "../engine/tables.ts";
import type { ChannelTables } from "./channel-tables.ts";
import {
  type ConversationRows,
  lastChangeId,
  positionsOf,
  putLastChangeId,
  putPosition,
  readPosition,
} from "./conversation-rows.ts";
import {
  type ConversationRef,
  type ConversationStatePorts,
  ConversationStates,
} from "./conversation-state.ts";
import { type ReadChannel, UserChannels } from "./user-channels.ts";

interface ConversationPorts extends ConversationStatePorts {
  readonly tables: Tables;
  readonly channelTables: ChannelTables;
  readonly conversationRows: ConversationRows;
  readonly ids: { next(nowMs: number): number };
  readonly appends: {
    readonly newestId: number;
    readonly turn: { readonly isSyncing: boolean };
  };
}

export class Conversations implements ConversationStore, Pick<ImportStore, "importPosition"> {
  readonly #ports: ConversationPorts;
  readonly #states: ConversationStates;
  readonly #userChannels: UserChannels;
  /** Uids of the users whose changes are not committed yet, by change id, oldest first. */
  readonly #pending = new Map<number, string>();
  /** Shared by all lists, so that only one list continues in each turn of the event loop. */
  readonly #turns = new Turns();

  constructor(ports: ConversationPorts) {
    this.#ports = ports;
    this.#states = new ConversationStates(ports);
    this.#userChannels = new UserChannels(ports, this.#turns);
  }

  async newestConversations(uid: string, range: ConversationRange): Promise<ConversationSelection> {
    const { sinceMs, onlyUnread = false, excludedTypes = [] } = range;
    // Both times are read before the channels. The list therefore includes every change that is
    // earlier than `pendingMs`, or than `newestChangeMs` if no change is pending.
    const pendingMs = this.#pendingMs(uid);
    const newestChangeMs = messageTimeMs(
      Math.max(this.#ports.appends.newestId, lastChangeId(this.#ports.tables)),
    );
    const channels = await this.#userChannels.of(uid);
    const slice = new TimeSlice(undefined, this.#turns);
    const unread = onlyUnread ? await this.#maybeUnread(uid) : undefined;
    const listed = (unread === undefined ? channels : [...unread.keys()]).filter(
      ({ key }) => !excludedTypes.some((type) => key.startsWith(`${type}:`)),
    );
    const readHeads = async (candidates: readonly NewestMessage[]) => {
      const heads: ConversationHead[] = [];
      for (const newest of candidates) {
        if (slice.shouldYield()) await slice.yield();
        const { key, id } = newest;
        const ref = this.#refTo(uid, channelOf(key, uid));
        const head = ref && this.#states.head(ref);
        if (head !== undefined) heads.push(head);
        const read = unread?.get(newest);
        // `readId` is not set for a large group, because its messages become unread when the group
        // is no longer large.
        if (read && !ref?.isLarge && !head?.unread && Number.isFinite(id)) read.readId = id;
      }
      return heads;
    };
    return {
      ...(await selectNewest(await this.#changedSince(uid, sinceMs, listed), range, readHeads)),
      newestChangeMs,
      pendingMs,
      channels: () => channels.map(({ key }) => channelOf(key, uid)),
    };
  }

  /** See `pendingMs` of the port. */
  #pendingMs(uid: string): number | undefined {
    const { newestId, turn } = this.#ports.appends;
    // While a batch waits for the disk, messages with ids above `newestId` are pending.
    let oldestId = turn.isSyncing ? newestId : Number.POSITIVE_INFINITY;
    for (const [id, changedBy] of this.#pending) {
      if (changedBy !== uid) continue;
      oldestId = Math.min(oldestId, id);
      break;
    }
    return Number.isFinite(oldestId) ? messageTimeMs(oldestId) : undefined;
  }

  /** Returns the channels in which the user may have unread messages. */
  async #maybeUnread(uid: string): Promise<ReadonlyMap<NewestMessage, ReadChannel>> {
    const unread = new Map<NewestMessage, ReadChannel>();
    for (const channel of await this.#userChannels.readOf(uid))
      if (channel.newest.id !== channel.readId) unread.set(channel.newest, channel);
    return unread;
  }

  async #changedSince(
    uid: string,
    sinceMs: number,
    channels: readonly NewestMessage[],
  ): Promise<readonly NewestMessage[]> {
    if (sinceMs === 0) return channels.filter(({ id }) => id > 0);
    const positions = new Set<ChannelKey>();
    const slice = new TimeSlice(undefined, this.#turns);
    for (const { key, changedAtMs } of positionsOf(this.#ports.tables, uid)) {
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
    const slice = new TimeSlice(undefined, this.#turns);
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

  /** Returns each user's read position in the channel (see `PushStore`). */
  readSeqs(key: ChannelKey, uids: readonly string[]): readonly number[] {
    const channel = channelOf(key, "");
    return uids.map((uid) => {
      const joinSeq =
        channel.type === PERSON_CHANNEL
          ? 0
          : (this.#ports.channelTables.joinSeq(uid, channel.id) ?? 0);
      return this.#states.stateOf({ uid, channel, key, isLarge: false, joinSeq }).readSeq;
    });
  }

  async changeConversation(
    uid: string,
    channel: ChannelRef,
    change: ConversationChange,
  ): Promise<Conversation | undefined> {
    let changeId = 0;
    let movesBack = false;
    try {
      return await transact(this.#ports.tables, () => {
        const ref = this.#refTo(uid, channel);
        if (ref === undefined) return undefined;
        ({ changeId, movesBack } = this.#put(ref, change));
        if (changeId > 0) this.#pending.set(changeId, uid);
        return this.#states.view(ref);
      });
    } finally {
      // These steps must follow the commit, because lists read the old position until then.
      this.#pending.delete(changeId);
      if (movesBack) this.#userChannels.forgetRead(uid);
    }
  }

  async importPosition(
    ...[uid, channel, { readSeq, deletedSeq }]: Parameters<ImportStore["importPosition"]>
  ): Promise<boolean> {
    const { tables, history } = this.#ports;
    const key = channelKey(channel, uid);
    try {
      return await transact(tables, () => {
        const head = history.headSeq(key);
        const before = readPosition(tables, uid, key);
        const position = {
          readSeq: Math.min(readSeq, head),
          deletedSeq: Math.min(deletedSeq, head),
          // With 0, every message that the user sent moves the read position.
          headAtChange: 0,
          changedAtMs: 0,
        };
        const isSame =
          before?.readSeq === position.readSeq &&
          before.deletedSeq === position.deletedSeq &&
          before.headAtChange === 0 &&
          before.changedAtMs === 0;
        if (!isSame) putPosition(tables, { uid, key }, position);
        return !isSame;
      });
    } finally {
      this.#userChannels.forgetRead(uid);
    }
  }

  #view(uid: string, channel: ChannelRef): Conversation | undefined {
    const ref = this.#refTo(uid, channel);
    return ref && this.#states.view(ref);
  }

  /**
   * Stores a changed position. Returns the id of the change (0 if nothing changes) and whether
   * messages become unread again.
   */
  #put(ref: ConversationRef, change: ConversationChange) {
    const { tables, clock, ids } = this.#ports;
    const state = this.#states.stateOf(ref);
    const { head } = state.channel;
    if (ref.isLarge || head === 0) return NO_CHANGE;
    const { readSeq, deletedSeq } = this.#states.afterChange(state, change);
    const isSame = readSeq === state.readSeq && deletedSeq === state.deletedSeq;
    if (isSame) return NO_CHANGE;
    // The id does not belong to a message. Its time is not earlier than that of any previous change
    // or message.
    const changeId = ids.next(clock());
    putLastChangeId(tables, changeId);
    const changedAtMs = messageTimeMs(changeId);
    const position = { readSeq, deletedSeq, headAtChange: head, changedAtMs };
    putPosition(tables, ref, position);
    return { changeId, movesBack: readSeq < state.readSeq };
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

const NO_CHANGE = { changeId: 0, movesBack: false };

function personalRef(uid: string, { id, type }: ChannelRef): ConversationRef {
  const channel = { id, type };
  const key = channelKey(channel, uid);
  return { uid, channel, key, isLarge: false, joinSeq: 0 };
}
