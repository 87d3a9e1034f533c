// Implements the port's calls on channels, their members and lists, and the groups of each user. A
// change is one synchronous step inside a transaction.

import { setImmediate as nextTurn } from "node:timers/promises";
import { BrokerError } from "../../../broker/errors.ts";
import {
  type ChannelKey,
  type ChannelRef,
  GROUP_CHANNEL,
  type SubscriberRemoval,
} from "../../../broker/model.ts";
import type { ChannelStore, ListChange, Membership, Publisher } from "../../../broker/ports.ts";
import type { MaybePromise } from "../../../lib/maybe-promise.ts";
import { TimeSlice, Turns } from "../../../lib/time-slice.ts";
import { emitChannel, emitMembers } from "./channel-events.ts";
import {
  ALLOWLIST,
  type BitChange,
  type ChannelRecord,
  type ChannelTables,
  DENYLIST,
  MEMBER,
  PERMANENT,
  TEMPORARY,
} from "./channel-tables.ts";
import type { Emit, EventOutbox } from "./event-outbox.ts";
import { groupFacts, personFacts } from "./permissions.ts";

const LIST_BITS = { denylist: DENYLIST, allowlist: ALLOWLIST } as const;
const MAX_ID_UNITS = 256;
const UIDS_PER_TURN = 500;
/** Number of groups at which a list counts as long. A long list is read in slices. */
const GROUPS_AT_ONCE = 20;

interface ChannelPorts {
  readonly channelTables: ChannelTables;
  readonly outbox: Pick<EventOutbox, "commit">;
  readonly headSeq: (key: ChannelKey) => number;
  readonly publisher: Publisher;
}

export interface EmbeddedChannels extends ChannelStore {
  /**
   * Returns the user's groups. A short list (see `GROUPS_AT_ONCE`) is returned without a promise. A
   * long list is read in slices, which do not block the event loop.
   */
  groupsNow(uid: string): MaybePromise<readonly string[]>;
}

export function createEmbeddedChannels({
  channelTables: channels,
  outbox,
  headSeq,
  publisher,
}: ChannelPorts): EmbeddedChannels {
  const longLists = new Turns();

  /**
   * Stores changed memberships, emits their events and returns the uids that left. Must be called
   * inside `change`.
   */
  function putMembers(
    { info, members }: ChannelRecord,
    changes: ReadonlyMap<string, BitChange>,
    { emit, bit }: { readonly emit: Emit | undefined; readonly bit: number },
  ): readonly string[] {
    const { type, id } = info;
    let added = 0;
    const removed: string[] = [];
    for (const [uid, { before, after }] of changes) {
      if (before === 0 && after > 0) added++;
      if (before > 0 && after === 0) removed.push(uid);
    }
    channels.put({ info, members: members + added - removed.length });
    const headNow = type === GROUP_CHANNEL ? headSeq(`${type}:${id}`) : 0;
    channels.putMembers(info, changes, headNow);
    if (emit !== undefined) {
      const isTemporary = bit === TEMPORARY;
      const uidsThat = (has: (bits: BitChange) => boolean) =>
        [...changes].filter(([, bits]) => has(bits)).map(([uid]) => uid);
      const left = uidsThat(({ before, after }) => (before & ~after & bit) !== 0);
      const joined = uidsThat(({ before, after }) => (after & ~before & bit) !== 0);
      emitMembers(emit, "channel.members_removed", info, { uids: left, isTemporary });
      emitMembers(emit, "channel.members_added", info, { uids: joined, isTemporary });
    }
    return removed;
  }

  /**
   * Returns the bits of each affected uid before and after the change. Must be called inside
   * `change`.
   */
  function changesOf(
    table: "members" | "lists",
    channel: ChannelRef,
    bit: number,
    { kind, uids }: ListChange,
  ): Map<string, BitChange> {
    const changes = new Map<string, BitChange>();
    if (kind === "replace")
      for (const [uid, before] of channels.uidsWith(table, channel, bit))
        changes.set(uid, { before, after: before & ~bit });
    for (const uid of uids) {
      const { before = channels.readBits(table, channel, uid) } = changes.get(uid) ?? {};
      const after = kind === "remove" ? before & ~bit : before | bit;
      changes.set(uid, { before, after });
    }
    return changes;
  }

  async function uidsOf(
    table: "members" | "lists",
    channel: ChannelRef,
    bits: number,
  ): Promise<readonly string[]> {
    return channels.withSnapshot(async (snapshot) => {
      const pageOptions = { limit: UIDS_PER_TURN, snapshot };
      const uids: string[] = [];
      let after: string | undefined;
      let page: (readonly [uid: string, bits: number])[];
      do {
        if (after !== undefined) await nextTurn();
        page = channels.uidsAfter(table, channel, after, pageOptions);
        for (const [uid, uidBits] of page) if (uidBits & bits) uids.push(uid);
        after = page.at(-1)?.[0];
      } while (page.length === UIDS_PER_TURN);
      return uids;
    });
  }

  /** Publishes the removal of members. Must be called after the removal is committed. */
  function publishRemoval({ id: channelId, type }: ChannelRef, uids: readonly string[] = []): void {
    if (type !== GROUP_CHANNEL || uids.length === 0) return;
    publisher.publish({ kind: "removal", channelId, uids });
  }

  const groupsNow = (uid: string) => channels.groupLists.get(uid, () => readGroupsOf(uid));

  function readGroupsOf(uid: string): MaybePromise<readonly string[]> {
    const { groups, isAll } = channels.firstGroupsOf(uid, GROUPS_AT_ONCE);
    return isAll ? groups : readLongList(uid);
  }

  async function readLongList(uid: string): Promise<readonly string[]> {
    const ids: string[] = [];
    const slice = new TimeSlice(undefined, longLists);
    for (const { id } of channels.groupsOf(uid)) {
      const mustWait = ids.length === GROUPS_AT_ONCE && longLists.isBusy;
      if (mustWait || slice.shouldYield()) await slice.yield();
      ids.push(id);
    }
    return ids;
  }

  return {
    async channel(channel) {
      return channels.row(channel)?.info;
    },

    async createChannel(info, subscribers) {
      assertIds([info.id, ...subscribers]);
      return channels.change(info, outbox, (emit) => {
        if (channels.row(info) !== undefined) return false;
        const bits = { before: 0, after: PERMANENT };
        const changes = new Map(subscribers.map((uid) => [uid, bits]));
        if (emit !== undefined) emitChannel(emit, undefined, info);
        putMembers({ info, members: 0 }, changes, { emit, bit: PERMANENT });
        return true;
      });
    },

    async updateChannel(channel, flags) {
      return channels.change(channel, outbox, (emit) => {
        const row = channels.row(channel);
        if (row === undefined) return undefined;
        const { info, members } = row;
        const disband = info.disband || flags.disband === true;
        const changed = { ...info, ...flags, disband };
        channels.put({ info: changed, members });
        if (emit !== undefined) emitChannel(emit, info, changed);
        return changed;
      });
    },

    async addSubscribers(channel, uids, { membership, reset }) {
      assertIds(uids);
      const add = (emit: Emit | undefined) => {
        const row = channels.row(channel);
        if (row === undefined || row.info.disband) return undefined;
        const kind = reset ? "replace" : "add";
        const bit = bitOf(membership);
        const changes = changesOf("members", channel, bit, { kind, uids });
        return putMembers(row, changes, { emit, bit });
      };
      const removed = await channels.change(channel, outbox, add, (left) =>
        publishRemoval(channel, left),
      );
      return removed !== undefined;
    },

    async removeSubscribers(channel, uids, membership) {
      let removed: readonly string[] | undefined;
      const remove = (emit: Emit | undefined): SubscriberRemoval => {
        const row = channels.row(channel);
        if (row === undefined) return { kind: "no_channel" };
        if (row.info.disband) return { kind: "disbanded" };
        const bit = bitOf(membership);
        const changes = changesOf("members", channel, bit, { kind: "remove", uids });
        const strangers = [...changes].filter(([, bits]) => !(bits.before & bit));
        if (strangers.length > 0)
          return { kind: "not_members", uids: strangers.map(([uid]) => uid) };
        removed = putMembers(row, changes, { emit, bit });
        return { kind: "removed" };
      };
      return channels.change(channel, outbox, remove, () => publishRemoval(channel, removed));
    },

    async changeList(channel, list, listChange) {
      assertIds([channel.id, ...listChange.uids]);
      return channels.change(channel, outbox, () => {
        const isGroup = channel.type === GROUP_CHANNEL;
        if (isGroup && channels.row(channel)?.info.disband !== false) return false;
        const bit = LIST_BITS[list];
        channels.putLists(channel, changesOf("lists", channel, bit, listChange));
        return true;
      });
    },

    async channelSizes(channel) {
      const { denied, allowed } = channels.listSizes(channel);
      const members = channels.row(channel)?.members ?? 0;
      return { members, denylist: denied, allowlist: allowed };
    },

    listed: (channel, list) => uidsOf("lists", channel, LIST_BITS[list]),

    groupFacts: (channelId, uid) => groupFacts(channels, channelId, uid),
    personFacts: (fromUid, toUid) => personFacts(channels, fromUid, toUid),

    groupsNow,
    groupsOf: async (uid) => groupsNow(uid),

    async joinSeqs(channelId, uids) {
      const row = channels.row({ id: channelId, type: GROUP_CHANNEL });
      const isOpen = row !== undefined && !row.info.disband;
      return uids.map((uid) => (isOpen ? channels.joinSeq(uid, channelId) : undefined));
    },

    members: (channel) => uidsOf("members", channel, MEMBER),

    async membersAmong(channel, uids) {
      return channels.withSnapshot(async (snapshot) => {
        const members: string[] = [];
        let count = 0;
        for (const uid of new Set(uids)) {
          if (++count % UIDS_PER_TURN === 0) await nextTurn();
          const bits = channels.readBits("members", channel, uid, snapshot);
          if (bits !== 0) members.push(uid);
        }
        return members;
      });
    },
  };
}

function bitOf(membership: Membership): number {
  return membership === "permanent" ? PERMANENT : TEMPORARY;
}

function assertIds(ids: readonly string[]): void {
  if (ids.some((id) => id.length > MAX_ID_UNITS)) throw new BrokerError("bad_id");
}
