// Lists each user's channels with their newest messages. Conversation lists are selected from these
// channels. Owns the lists that are cached in memory.

import {
  type ChannelKey,
  channelKey,
  GROUP_CHANNEL,
  PERSON_CHANNEL,
} from "../../../broker/model.ts";
import { KeptLists } from "../../../lib/kept-lists.ts";
import { TimeSlice, type Turns } from "../../../lib/time-slice.ts";
import type { ChannelRows } from "../engine/channel-rows.ts";
import type { Memtable, NewestMessage } from "../engine/memtable.ts";
import type { ChannelTables } from "./channel-tables.ts";
import { type ConversationRows, type PositionTable, positionsOf } from "./conversation-rows.ts";

/** Maximum total length of the cached lists of channels. Each element takes 8 bytes. */
const MAX_KEPT = 2_000_000;

/** Maximum total length of the cached lists of `ReadChannel`. Each element takes about 40 bytes. */
const MAX_KEPT_READ = 500_000;

/** A channel of a user, and whether the user has read it. */
export interface ReadChannel {
  readonly newest: NewestMessage;
  /**
   * Id of the newest message at a time when the user had no unread messages in the channel, or 0 if
   * unknown. The channel has no unread messages until a newer message arrives or the read position
   * moves back.
   */
  readId: number;
}

interface UserChannelsPorts {
  readonly tables: PositionTable;
  readonly channelTables: ChannelTables;
  readonly conversationRows: ConversationRows;
  readonly memtable: Pick<Memtable, "newestOf">;
  readonly rows: Pick<ChannelRows, "get">;
}

export class UserChannels {
  readonly #ports: UserChannelsPorts;
  readonly #lists = new KeptLists<NewestMessage>(MAX_KEPT);

  readonly #readLists = new KeptLists<ReadChannel>(MAX_KEPT_READ);
  readonly #turns: Turns;

  /** `turns` is shared with other jobs that read lists. */
  constructor(ports: UserChannelsPorts, turns: Turns) {
    this.#ports = ports;
    this.#turns = turns;
    const forget = (uid: string) => {
      this.#lists.forget(uid);
      this.#readLists.forget(uid);
    };
    ports.channelTables.onMembershipChange(forget);
    ports.conversationRows.onNewPeer(forget);
  }

  /** Returns the user's channels, including disbanded groups and channels without messages. */
  async of(uid: string): Promise<readonly NewestMessage[]> {
    return this.#lists.get(uid, () => this.#read(uid));
  }

  /** Returns the same channels as `of`, and whether the user has read them. */
  async readOf(uid: string): Promise<readonly ReadChannel[]> {
    return this.#readLists.get(uid, () => this.#readPositions(uid));
  }

  /**
   * Forgets which channels the user has read. Must be called after a read position has moved back.
   */
  forgetRead(uid: string): void {
    this.#readLists.forget(uid);
  }

  async #readPositions(uid: string): Promise<readonly ReadChannel[]> {
    const channels = await this.of(uid);
    const slice = new TimeSlice(undefined, this.#turns);
    const readSeqs = new Map<ChannelKey, number>();
    for (const { key, readSeq } of positionsOf(this.#ports.tables, uid)) {
      if (slice.shouldYield()) await slice.yield();
      readSeqs.set(key, readSeq);
    }
    return channels.map((newest) => {
      const isRead = (readSeqs.get(newest.key) ?? -1) >= newest.seq;
      return { newest, readId: isRead && Number.isFinite(newest.id) ? newest.id : 0 };
    });
  }

  async #read(uid: string): Promise<readonly NewestMessage[]> {
    const channels: NewestMessage[] = [];
    const slice = new TimeSlice(undefined, this.#turns);
    for (const key of this.#keysOf(uid)) {
      if (slice.shouldYield()) await slice.yield();
      const row = () => this.#ports.rows.get(key);
      channels.push(this.#ports.memtable.newestOf(key, row));
    }
    return channels;
  }

  *#keysOf(uid: string): Generator<ChannelKey> {
    const { channelTables, conversationRows } = this.#ports;
    for (const id of channelTables.groupIdsOf(uid))
      yield channelKey({ id, type: GROUP_CHANNEL }, uid);
    for (const peer of conversationRows.peersOf(uid))
      yield channelKey({ id: peer, type: PERSON_CHANNEL }, uid);
  }
}
