// The channels of each user with their newest messages, from which lists of conversations are
// selected. Lists are read when they are requested and then kept in memory, up to a limit on their
// total length. A list that is read while it changes is not kept.

import {
  type ChannelKey,
  channelKey,
  GROUP_CHANNEL,
  PERSON_CHANNEL,
} from "../../../broker/model.ts";
import { TimeSlice } from "../../../lib/time-slice.ts";
import type { ChannelRows } from "../engine/channel-rows.ts";
import type { Memtable, NewestMessage } from "../engine/memtable.ts";
import type { ChannelTables } from "./channel-tables.ts";
import type { ConversationRows } from "./conversation-rows.ts";

/** Maximum total length of the lists that are kept. Each element takes 8 bytes. */
const MAX_KEPT = 2_000_000;

interface UserChannelsPorts {
  readonly channelTables: ChannelTables;
  readonly conversationRows: ConversationRows;
  readonly memtable: Pick<Memtable, "newestOf">;
  readonly rows: Pick<ChannelRows, "get">;
}

type Channels = readonly NewestMessage[];

export class UserChannels {
  readonly #ports: UserChannelsPorts;
  /** The least recently used list comes first. */
  readonly #kept = new Map<string, Channels>();
  #keptCount = 0;
  /** Users whose list is being read, with the number of reads. */
  readonly #reading = new Map<string, number>();
  /** Users among those whose list has changed meanwhile. */
  readonly #changed = new Set<string>();

  constructor(ports: UserChannelsPorts) {
    this.#ports = ports;
    const forget = (uid: string) => this.#forget(uid);
    ports.channelTables.onMembershipChange(forget);
    ports.conversationRows.onNewPeer(forget);
  }

  /** Returns the user's channels, including disbanded groups and channels without messages. */
  async of(uid: string): Promise<Channels> {
    const kept = this.#kept.get(uid);
    if (kept === undefined) return this.#read(uid);
    this.#kept.delete(uid);
    this.#kept.set(uid, kept);
    return kept;
  }

  async #read(uid: string): Promise<Channels> {
    const { channelTables } = this.#ports;
    const mayKeep = !channelTables.isChanging && !this.#changed.has(uid);
    this.#reading.set(uid, (this.#reading.get(uid) ?? 0) + 1);
    const channels: NewestMessage[] = [];
    const slice = new TimeSlice();
    for (const key of this.#keysOf(uid)) {
      if (slice.shouldYield()) await slice.yield();
      const row = () => this.#ports.rows.get(key);
      channels.push(this.#ports.memtable.newestOf(key, row));
    }
    const isCurrent = mayKeep && !this.#changed.has(uid);
    const reads = (this.#reading.get(uid) ?? 1) - 1;
    if (reads > 0) this.#reading.set(uid, reads);
    else {
      this.#reading.delete(uid);
      this.#changed.delete(uid);
    }
    if (isCurrent) this.#keep(uid, channels);
    return channels;
  }

  *#keysOf(uid: string): Generator<ChannelKey> {
    const { channelTables, conversationRows } = this.#ports;
    for (const id of channelTables.groupIdsOf(uid))
      yield channelKey({ id, type: GROUP_CHANNEL }, uid);
    for (const peer of conversationRows.peersOf(uid))
      yield channelKey({ id: peer, type: PERSON_CHANNEL }, uid);
  }

  #keep(uid: string, channels: Channels): void {
    if (channels.length > MAX_KEPT) return;
    this.#forgetKept(uid);
    this.#kept.set(uid, channels);
    this.#keptCount += channels.length + 1;
    for (const [oldest] of this.#kept) {
      if (this.#keptCount <= MAX_KEPT) return;
      this.#forgetKept(oldest);
    }
  }

  #forget(uid: string): void {
    if (this.#reading.has(uid)) this.#changed.add(uid);
    this.#forgetKept(uid);
  }

  #forgetKept(uid: string): void {
    const kept = this.#kept.get(uid);
    if (kept === undefined) return;
    this.#kept.delete(uid);
    this.#keptCount -= kept.length + 1;
  }
}
