// The tables of channels, their members and lists, and the groups of each user: reads, and writes to
// be called inside a transaction. State: the tables, and what sends asked of them lately, until the channel
// changes. Decides nothing.

import {
  type ChannelInfo,
  type ChannelRef,
  type ChannelType,
  GROUP_CHANNEL,
} from "../../../broker/model.ts";
import { BoundedMap } from "../../../lib/bounded-map.ts";
import {
  endOfPrefix,
  fieldsOf,
  rowsOf,
  type Snapshot,
  type Stored,
  transact,
} from "../engine/database.ts";
import type { Tables } from "../engine/tables.ts";
import { positionKey } from "./conversation-rows.ts";

const VERSION = 1;
/** Version 1 of a group of a user had no joinSeq. */
const GROUP_VERSION = 2;
/**
 * Channels whose rules are remembered, and uids of each whose bits are: what is being written to,
 * not all there is.
 */
const MAX_KNOWN_CHANNELS = 4096;
const MAX_KNOWN_UIDS = 128;
/** Users whose groups are remembered: those who are logging in. */
const MAX_LISTED_USERS = 1024;

/** Bits of a uid in a channel: kinds of membership and, in a table of their own, lists. */
export const PERMANENT = 1;
export const TEMPORARY = 2;
export const MEMBER = PERMANENT | TEMPORARY;
export const DENYLIST = 4;
export const ALLOWLIST = 8;
type BitTable = "members" | "lists";

/** A channel with the number of uids that are members of either kind. */
export interface ChannelRecord {
  readonly info: ChannelInfo;
  readonly members: number;
}

/** Bits of a uid in one of the tables; 0 = none. */
export interface BitChange {
  readonly before: number;
  readonly after: number;
}

/** A group of a user. */
interface GroupOfUser {
  readonly id: string;
  /** The channel's newest seq when the user joined. */
  readonly joinSeq: number;
}

/** How many uids are on each list of a channel. */
interface ListSizes {
  readonly denied: number;
  readonly allowed: number;
}
const NO_LISTS: ListSizes = { denied: 0, allowed: 0 };

/** What is known of one channel without a read: its row, and some uids' bits. */
interface Known {
  readonly row: ChannelRecord | undefined;
  /** Undefined: not read yet. */
  sizes: ListSizes | undefined;
  readonly bits: BoundedMap<string, number>;
}

export class ChannelTables {
  readonly #tables: Tables;
  readonly #known: Record<ChannelType, BoundedMap<string, Known>> = {
    1: new BoundedMap(MAX_KNOWN_CHANNELS),
    2: new BoundedMap(MAX_KNOWN_CHANNELS),
  };
  /**
   * Changes under way by channel: nothing of it is remembered then, for a read may see it before or
   * after.
   */
  readonly #changing: Record<ChannelType, Map<string, number>> = {
    1: new Map(),
    2: new Map(),
  };

  /** Groups of users that were listed since the last change of any channel. */
  #listed = new BoundedMap<string, readonly string[]>(MAX_LISTED_USERS);
  #changesUnderWay = 0;

  constructor(tables: Tables) {
    this.#tables = tables;
  }

  /** Lists to remember, taken before they are read: a change drops them. Undefined during one. */
  get listed(): BoundedMap<string, readonly string[]> | undefined {
    return this.#changesUnderWay === 0 ? this.#listed : undefined;
  }

  /** Runs a step that may change the channel, as `transact` does. */
  async change<Answer>({ type, id }: ChannelRef, step: () => Answer): Promise<Answer> {
    const changing = this.#changing[type];
    changing.set(id, (changing.get(id) ?? 0) + 1);
    this.#known[type].delete(id);
    this.#changesUnderWay += 1;
    try {
      return await transact(this.#tables, step);
    } finally {
      this.#changesUnderWay -= 1;
      this.#listed = new BoundedMap(MAX_LISTED_USERS);
      const left = (changing.get(id) ?? 1) - 1;
      if (left > 0) changing.set(id, left);
      else changing.delete(id);
    }
  }

  /** Runs reads that go on over several turns of the event loop and show what is committed now. */
  async atOneMoment<T>(read: (snapshot: Snapshot) => Promise<T>): Promise<T> {
    const snapshot = this.#tables.env.useReadTransaction();
    try {
      return await read(snapshot);
    } finally {
      snapshot.done();
    }
  }

  row(channel: ChannelRef): ChannelRecord | undefined {
    return this.#lookUp(channel).row;
  }

  #lookUp({ type, id }: ChannelRef): Known {
    const known = this.#known[type].get(id);
    if (known !== undefined) return known;
    const stored = this.#tables.channels.get([type, id]);
    const row = stored === undefined ? undefined : toRow({ type, id }, stored);
    const bits = new BoundedMap<string, number>(MAX_KNOWN_UIDS);
    const found = { row, sizes: undefined, bits };
    if (!this.#changing[type].has(id)) this.#known[type].set(id, found);
    return found;
  }

  put({ info, members }: ChannelRecord): void {
    void this.#tables.channels.put(
      [info.type, info.id],
      [VERSION, info.ban, info.disband, info.sendBan, info.allowStranger, info.large, members],
    );
  }

  listSizes(channel: ChannelRef): ListSizes {
    const known = this.#lookUp(channel);
    known.sizes ??= toSizes(this.#tables.listSizes.get([channel.type, channel.id]));
    return known.sizes;
  }

  /** All bits of `uid`. Remembers them. */
  bits(channel: ChannelRef, uid: string): number {
    const known = this.#lookUp(channel).bits;
    const remembered = known.get(uid);
    if (remembered !== undefined) return remembered;
    const { denied, allowed } = this.listSizes(channel);
    const lists = denied + allowed > 0 ? this.readBits("lists", channel, uid) : 0;
    const bits = this.readBits("members", channel, uid) | lists;
    known.set(uid, bits); // lost at once where the channel is changing
    return bits;
  }

  /** Those of one table, for a uid that is not soon asked for again. */
  readBits(table: BitTable, { type, id }: ChannelRef, uid: string, snapshot?: Snapshot): number {
    const options = snapshot && { transaction: snapshot };
    return toBits(this.#tables[table].get([type, id, uid], options));
  }

  /** All uids that have `bit`, with all their bits in the table. */
  uidsWith(table: BitTable, { type, id }: ChannelRef, bit: number): Map<string, number> {
    const found = new Map<string, number>();
    for (const { key, value } of this.#tables[table].getRange({
      start: [type, id],
      end: endOfPrefix([type, id]),
    })) {
      const bits = toBits(value);
      if (bits & bit) found.set(String(key[2]), bits);
    }
    return found;
  }

  /**
   * Some uids of a table, with their bits, behind `after` in the order of keys; fewer than `limit`:
   * these are the last.
   */
  uidsBehind(
    table: BitTable,
    { type, id }: ChannelRef,
    after: string | undefined,
    { limit, snapshot }: { readonly limit: number; readonly snapshot: Snapshot },
  ): (readonly [uid: string, bits: number])[] {
    const bounds = { end: endOfPrefix([type, id]), limit, transaction: snapshot };
    const rows = this.#tables[table].getRange(
      after === undefined
        ? { ...bounds, start: [type, id] }
        : { ...bounds, start: [type, id, after], exclusiveStart: true },
    );
    return [...rows].map(({ key, value }) => [String(key[2]), toBits(value)]);
  }

  /** Changes the bits of uids in the lists. */
  putLists(channel: ChannelRef, changes: ReadonlyMap<string, BitChange>): void {
    const { lists, listSizes } = this.#tables;
    const { type, id } = channel;
    let { denied, allowed } = this.listSizes(channel);
    for (const [uid, { before, after }] of changes) {
      if (before === after) continue;
      denied += countOf(after, DENYLIST) - countOf(before, DENYLIST);
      allowed += countOf(after, ALLOWLIST) - countOf(before, ALLOWLIST);
      if (after === 0) void lists.remove([type, id, uid]);
      else void lists.put([type, id, uid], [VERSION, after]);
    }
    if (denied + allowed === 0) void listSizes.remove([type, id]);
    else void listSizes.put([type, id], [VERSION, denied, allowed]);
  }

  /**
   * `headSeq`: the channel's newest seq, behind which a new member has messages to read. A removed
   * member has no position in it any more.
   */
  putMembers(
    { type, id }: ChannelRef,
    changes: ReadonlyMap<string, BitChange>,
    headSeq: number,
  ): void {
    const { members, groups, positions } = this.#tables;
    for (const [uid, { before, after }] of changes) {
      if (before === after) continue;
      const key = [type, id, uid];
      if (after === 0) void members.remove(key);
      else void members.put(key, [VERSION, after]);
      if (type !== GROUP_CHANNEL) continue;
      if (before === 0) void groups.put([uid, id], [GROUP_VERSION, headSeq]);
      if (after > 0) continue;
      void groups.remove([uid, id]);
      void positions.remove(positionKey(uid, `${type}:${id}`));
    }
  }

  /**
   * The groups of `uid`, disbanded ones left out. The caller may let other work run in between:
   * each page is read when it is asked for.
   */
  *groupsOf(uid: string): Generator<GroupOfUser> {
    for (const { second: id, value } of rowsOf(this.#tables.groups, uid))
      if (this.#isOpen(id)) yield { id, joinSeq: toJoinSeq(value) };
  }

  /** Remembers nothing: a user's groups are more than what is being written to. */
  #isOpen(id: string): boolean {
    const known = this.#known[GROUP_CHANNEL].get(id);
    if (known !== undefined) return known.row?.info.disband === false;
    const stored = this.#tables.channels.get([GROUP_CHANNEL, id]);
    return stored !== undefined && fieldsOf(stored, VERSION)[1] !== true;
  }

  /** Undefined: the user is no member of it. */
  joinSeq(uid: string, groupId: string): number | undefined {
    const stored = this.#tables.groups.get([uid, groupId]);
    return stored === undefined ? undefined : toJoinSeq(stored);
  }
}

function toJoinSeq(stored: Stored): number {
  return Number(fieldsOf(stored, GROUP_VERSION)[0] ?? 0);
}

function toRow({ type, id }: ChannelRef, stored: Stored): ChannelRecord {
  const [ban, disband, sendBan, allowStranger, large, members] = fieldsOf(stored, VERSION);
  return {
    info: {
      id,
      type,
      ban: ban === true,
      disband: disband === true,
      sendBan: sendBan === true,
      allowStranger: allowStranger === true,
      large: large === true,
    },
    members: Number(members),
  };
}

function toBits(stored: Stored | undefined): number {
  return stored === undefined ? 0 : Number(fieldsOf(stored, VERSION)[0]);
}

function toSizes(stored: Stored | undefined): ListSizes {
  if (stored === undefined) return NO_LISTS;
  const [denied, allowed] = fieldsOf(stored, VERSION);
  return { denied: Number(denied), allowed: Number(allowed) };
}

function countOf(bits: number, bit: number): number {
  return (bits & bit) === 0 ? 0 : 1;
}
