// Reads and writes the tables of channels, their members and lists, and the groups of each user.
// The write methods must be called inside a transaction. A change to a channel drops the channel's
// cache entry. A change to a membership also drops the user's cached group list. A write to a
// disbanded channel drops all cached group lists. The caller of a generator may await other work
// between two rows.

import {
  type ChannelInfo,
  type ChannelRef,
  type ChannelType,
  GROUP_CHANNEL,
} from "../../../broker/model.ts";
import { BoundedMap } from "../../../lib/bounded-map.ts";
import { KeptLists } from "../../../lib/kept-lists.ts";
import { endOfPrefix, fieldsOf, rowsOf, type Snapshot, type Stored } from "../engine/database.ts";
import type { Tables } from "../engine/tables.ts";
import { positionKey } from "./conversation-rows.ts";
import type { Emit, EventOutbox } from "./event-outbox.ts";

const VERSION = 1;
/** Version of rows in the table `groups`. Version 1 had no joinSeq. */
const GROUP_VERSION = 2;
const MAX_CACHED_CHANNELS = 4096;
const MAX_CACHED_UIDS = 128;
/** Maximum number of open groups whose ids are cached. Each entry takes about 60 bytes. */
const MAX_OPEN_GROUPS = 16_384;
/** Maximum total length of the cached group lists. Each element takes 8 bytes. */
const MAX_CACHED_GROUPS = 2_000_000;

/** Bits for the kinds of membership (table `members`) and for the lists (table `lists`). */
export const PERMANENT = 1;
export const TEMPORARY = 2;
export const MEMBER = PERMANENT | TEMPORARY;
export const DENYLIST = 4;
export const ALLOWLIST = 8;
type BitTable = "members" | "lists";

export interface ChannelRecord {
  readonly info: ChannelInfo;
  readonly members: number;
}

/** A uid's membership or list bits before and after a change. 0 means that the uid has no row. */
export interface BitChange {
  readonly before: number;
  readonly after: number;
}

interface GroupOfUser {
  readonly id: string;
  /** Newest seq of the channel when the user joined. 0 if the row has version 1. */
  readonly joinSeq: number;
}

interface ListSizes {
  readonly denied: number;
  readonly allowed: number;
}
const NO_LISTS: ListSizes = { denied: 0, allowed: 0 };

interface CachedChannel {
  readonly row: ChannelRecord | undefined;
  /** `undefined` until the sizes are read. */
  sizes: ListSizes | undefined;
  readonly bits: BoundedMap<string, number>;
}

interface ListChanges {
  readonly uids: Set<string>;
  hasDisbanded: boolean;
}

const newStep = (): ListChanges => ({ uids: new Set(), hasDisbanded: false });

export class ChannelTables {
  readonly #tables: Tables;
  readonly #cache: Record<ChannelType, BoundedMap<string, CachedChannel>> = {
    1: new BoundedMap(MAX_CACHED_CHANNELS),
    2: new BoundedMap(MAX_CACHED_CHANNELS),
  };
  /**
   * Number of changes in progress, by channel id. A channel that is being changed is not cached.
   */
  readonly #changing: Record<ChannelType, Map<string, number>> = {
    1: new Map(),
    2: new Map(),
  };

  /** Ids of groups that exist and are not disbanded. */
  readonly #openGroups = new BoundedMap<string, true>(MAX_OPEN_GROUPS);
  /** Ids of the groups of each user, without disbanded groups. */
  readonly groupLists = new KeptLists<string>(MAX_CACHED_GROUPS);
  #step: ListChanges = newStep();
  #onMembershipChange = (_uid: string) => {};

  constructor(tables: Tables) {
    this.#tables = tables;
  }

  /**
   * Sets the callback that is called after a change, once for each user whose membership in a group
   * has changed.
   */
  onMembershipChange(callback: (uid: string) => void): void {
    this.#onMembershipChange = callback;
  }

  /**
   * Runs a step that changes a channel. Calls `committed` once the step is committed, even if the
   * call is then rejected because the commit may not have reached the disk.
   */
  async change<Answer>(
    { type, id }: ChannelRef,
    outbox: Pick<EventOutbox, "commit">,
    step: (emit: Emit | undefined) => Answer,
    committed: (answer: Answer) => void = () => {},
  ): Promise<Answer> {
    const changing = this.#changing[type];
    changing.set(id, (changing.get(id) ?? 0) + 1);
    this.#cache[type].delete(id);
    if (type === GROUP_CHANNEL) this.#openGroups.delete(id);
    const changes = newStep();
    const runStep = (emit: Emit | undefined) => {
      this.#step = changes;
      return step(emit);
    };
    try {
      const { result, failure } = await outbox.commit(runStep);
      committed(result);
      if (failure !== undefined) throw failure;
      return result;
    } finally {
      this.#forgetLists(changes);
      const remaining = (changing.get(id) ?? 1) - 1;
      if (remaining > 0) changing.set(id, remaining);
      else changing.delete(id);
    }
  }

  #forgetLists({ uids, hasDisbanded }: ListChanges): void {
    for (const uid of uids) {
      this.groupLists.forget(uid);
      this.#onMembershipChange(uid);
    }
    if (hasDisbanded) this.groupLists.clear();
  }

  async withSnapshot<T>(read: (snapshot: Snapshot) => Promise<T>): Promise<T> {
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

  #lookUp({ type, id }: ChannelRef): CachedChannel {
    const cached = this.#cache[type].get(id);
    if (cached !== undefined) return cached;
    const stored = this.#tables.channels.get([type, id]);
    const row = stored === undefined ? undefined : toRow({ type, id }, stored);
    const bits = new BoundedMap<string, number>(MAX_CACHED_UIDS);
    const channel = { row, sizes: undefined, bits };
    if (!this.#changing[type].has(id)) this.#cache[type].set(id, channel);
    return channel;
  }

  put({ info, members }: ChannelRecord): void {
    if (info.disband) this.#step.hasDisbanded = true;
    void this.#tables.channels.put(
      [info.type, info.id],
      [
        VERSION,
        ...[info.ban, info.disband, info.sendBan, info.allowStranger, info.large],
        ...[members, info.clientEvents],
      ],
    );
  }

  listSizes(channel: ChannelRef): ListSizes {
    return this.rowAndSizes(channel).sizes;
  }

  /** Returns the results of `row` and `listSizes` with one lookup. */
  rowAndSizes(channel: ChannelRef): { row: ChannelRecord | undefined; sizes: ListSizes } {
    const cached = this.#lookUp(channel);
    cached.sizes ??= toSizes(this.#tables.listSizes.get([channel.type, channel.id]));
    return { row: cached.row, sizes: cached.sizes };
  }

  bits(channel: ChannelRef, uid: string): number {
    const uidBits = this.#lookUp(channel).bits;
    const cachedBits = uidBits.get(uid);
    if (cachedBits !== undefined) return cachedBits;
    const { denied, allowed } = this.listSizes(channel);
    const lists = denied + allowed > 0 ? this.readBits("lists", channel, uid) : 0;
    const bits = this.readBits("members", channel, uid) | lists;
    uidBits.set(uid, bits); // while the channel is changing, `uidBits` itself is not cached
    return bits;
  }

  readBits(table: BitTable, { type, id }: ChannelRef, uid: string, snapshot?: Snapshot): number {
    const options = snapshot && { transaction: snapshot };
    return toBits(this.#tables[table].get([type, id, uid], options));
  }

  uidsWith(table: BitTable, { type, id }: ChannelRef, bit: number): Map<string, number> {
    const uids = new Map<string, number>();
    for (const { key, value } of this.#tables[table].getRange({
      start: [type, id],
      end: endOfPrefix([type, id]),
    })) {
      const bits = toBits(value);
      if (bits & bit) uids.set(String(key[2]), bits);
    }
    return uids;
  }

  uidsAfter(
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
   * Stores changed memberships. In a group, a new member has no unread messages up to `headSeq`,
   * and the read position of a removed member is deleted.
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
      this.#step.uids.add(uid);
      if (before === 0) void groups.put([uid, id], [GROUP_VERSION, headSeq]);
      if (after > 0) continue;
      void groups.remove([uid, id]);
      void positions.remove(positionKey(uid, `${type}:${id}`));
    }
  }

  /**
   * Returns the groups in the user's first `limit` rows, without disbanded groups. `isAll` is true
   * if the user has fewer than `limit` rows.
   */
  firstGroupsOf(
    uid: string,
    limit: number,
  ): { readonly groups: readonly string[]; readonly isAll: boolean } {
    const bounds = { start: [uid], end: endOfPrefix([uid]), limit };
    const keys = [...this.#tables.groups.getKeys(bounds)];
    const ids = keys.map(([, id]) => String(id));
    return { groups: ids.filter((id) => this.#isOpen(id)), isAll: ids.length < limit };
  }

  /** Yields the ids of the user's groups, including disbanded groups. */
  *groupIdsOf(uid: string): Generator<string> {
    for (const { second } of rowsOf(this.#tables.groups, uid)) yield second;
  }

  /** Yields the user's groups, without disbanded groups. */
  *groupsOf(uid: string): Generator<GroupOfUser> {
    for (const { second: id, value } of rowsOf(this.#tables.groups, uid))
      if (this.#isOpen(id)) yield { id, joinSeq: toJoinSeq(value) };
  }

  /**
   * Returns true if the group exists and is not disbanded. Does not cache the channel's record,
   * because most groups of a user who logs in are inactive.
   */
  #isOpen(id: string): boolean {
    if (this.#openGroups.get(id)) return true;
    const stored = this.#tables.channels.get([GROUP_CHANNEL, id]);
    const isOpen = stored !== undefined && fieldsOf(stored, VERSION)[1] !== true;
    if (isOpen && !this.#changing[GROUP_CHANNEL].has(id)) this.#openGroups.set(id, true);
    return isOpen;
  }

  joinSeq(uid: string, groupId: string): number | undefined {
    const stored = this.#tables.groups.get([uid, groupId]);
    return stored === undefined ? undefined : toJoinSeq(stored);
  }
}

function toJoinSeq(stored: Stored): number {
  return Number(fieldsOf(stored, GROUP_VERSION)[0] ?? 0);
}

function toRow({ type, id }: ChannelRef, stored: Stored): ChannelRecord {
  const fields = fieldsOf(stored, VERSION);
  const [ban, disband, sendBan, allowStranger, large, members, clientEvents] = fields;
  return {
    info: {
      id,
      type,
      ban: ban === true,
      disband: disband === true,
      sendBan: sendBan === true,
      allowStranger: allowStranger === true,
      large: large === true,
      clientEvents: clientEvents !== false,
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
