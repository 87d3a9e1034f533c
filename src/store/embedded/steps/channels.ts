// Channels, their members and the groups of each user: the steps of the port. A change is one
// synchronous step inside a transaction. State: beside the tables', the turns of long lists of
// groups.

import { setImmediate as nextTurn } from "node:timers/promises";
import { BrokerError } from "../../../broker/errors.ts";
import {
  type ChannelKey,
  type ChannelRef,
  GROUP_CHANNEL,
  type SubscriberRemoval,
} from "../../../broker/model.ts";
import type {
  ChannelStore,
  Membership,
  Publisher,
} from "../../../broker/ports.ts";
import { TimeSlice, Turns } from "../../../lib/time-slice.ts";
import type {
  ChannelRecord,
  ChannelTables,
  MemberChange,
} from "./channel-tables.ts";
import { groupFacts, personFacts } from "./permissions.ts";

/** Bits of a member's value. */
const PERMANENT = 1;
const TEMPORARY = 2;
/** Longest id: three of them fit a key. Edges refuse far shorter ones. */
const MAX_ID_UNITS = 256;
/** Members read in one event-loop turn. */
const MEMBERS_PER_TURN = 500;
/**
 * A longer list of a user's groups waits for those under way: many may be asked for in one
 * iteration of the event loop.
 */
const GROUPS_AT_ONCE = 20;

interface ChannelParts {
  readonly channelTables: ChannelTables;
  /** The newest seq shown of a channel. */
  readonly headSeq: (key: ChannelKey) => number;
  /** Where removals from groups are published, once they are durable. */
  readonly publisher: Publisher;
}

export function createChannels({
  channelTables: channels,
  headSeq,
  publisher,
}: ChannelParts): ChannelStore {
  const listings = new Turns();

  /**
   * Writes the changed members of a channel that has `row`; returns whom it removes. To be called
   * inside a change.
   */
  function putMembers(
    { info, members }: ChannelRecord,
    changes: ReadonlyMap<string, MemberChange>,
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
    return removed;
  }

  /** To be called when the removal is durable. */
  function publishRemoval(
    { id: channelId, type }: ChannelRef,
    uids: readonly string[] = [],
  ): void {
    if (type !== GROUP_CHANNEL || uids.length === 0) return;
    publisher.publish({ kind: "removal", channelId, uids });
  }

  /** A login asks twice: before and after the node subscribed to the groups. */
  async function groupsOf(uid: string): Promise<readonly string[]> {
    const { listed } = channels;
    const found = listed?.get(uid);
    if (found !== undefined) return found;
    const ids: string[] = [];
    const slice = new TimeSlice(undefined, listings);
    for (const { id } of channels.groupsOf(uid)) {
      const mustWait = ids.length === GROUPS_AT_ONCE && listings.isBusy;
      if (mustWait || slice.isUsedUp()) await slice.rest();
      ids.push(id);
    }
    if (ids.length <= GROUPS_AT_ONCE) listed?.set(uid, ids);
    return ids;
  }

  return {
    async channel(channel) {
      return channels.row(channel)?.info;
    },

    async createChannel(info, subscribers) {
      assertIds([info.id, ...subscribers]);
      return channels.change(info, () => {
        if (channels.row(info) !== undefined) return false;
        const change = { before: 0, after: PERMANENT };
        const changes = new Map(subscribers.map((uid) => [uid, change]));
        putMembers({ info, members: 0 }, changes);
        return true;
      });
    },

    async updateChannel(channel, flags) {
      return channels.change(channel, () => {
        const row = channels.row(channel);
        if (row === undefined) return undefined;
        const { info, members } = row;
        const disband = info.disband || flags.disband === true;
        const changed = { ...info, ...flags, disband };
        channels.put({ info: changed, members });
        return changed;
      });
    },

    async addSubscribers(channel, uids, { membership, reset }) {
      assertIds(uids);
      const removed = await channels.change(channel, () => {
        const row = channels.row(channel);
        if (row === undefined || row.info.disband) return undefined;
        const bit = bitOf(membership);
        const changes = new Map<string, MemberChange>();
        if (reset)
          for (const [uid, before] of channels.membersWith(channel, bit))
            changes.set(uid, { before, after: before & ~bit });
        for (const uid of uids) {
          const { before = channels.readKinds(channel, uid) } =
            changes.get(uid) ?? {};
          changes.set(uid, { before, after: before | bit });
        }
        return putMembers(row, changes);
      });
      publishRemoval(channel, removed);
      return removed !== undefined;
    },

    async removeSubscribers(channel, uids, membership) {
      let removed: readonly string[] | undefined;
      const answer = await channels.change<SubscriberRemoval>(channel, () => {
        const row = channels.row(channel);
        if (row === undefined) return { kind: "no_channel" };
        if (row.info.disband) return { kind: "disbanded" };
        const bit = bitOf(membership);
        const changes = new Map<string, MemberChange>();
        for (const uid of uids) {
          const before = channels.readKinds(channel, uid);
          changes.set(uid, { before, after: before & ~bit });
        }
        const strangers = [...changes].filter(([, one]) => !(one.before & bit));
        if (strangers.length > 0)
          return { kind: "not_members", uids: strangers.map(([uid]) => uid) };
        removed = putMembers(row, changes);
        return { kind: "removed" };
      });
      publishRemoval(channel, removed);
      return answer;
    },

    groupFacts: (channelId, uid) => groupFacts(channels, channelId, uid),
    personFacts: (fromUid, toUid) => personFacts(channels, fromUid, toUid),

    async groupsAmong(uid, channelIds) {
      const own = new Set(await groupsOf(uid));
      const groups = channelIds.filter((id) => own.has(id));
      return { groups, isAll: groups.length === own.size };
    },

    groupsOf,

    async joinSeqs(channelId, uids) {
      const row = channels.row({ id: channelId, type: GROUP_CHANNEL });
      const isOpen = row !== undefined && !row.info.disband;
      return uids.map((uid) =>
        isOpen ? channels.joinSeq(uid, channelId) : undefined,
      );
    },

    async members(channel) {
      return channels.atOneMoment(async (snapshot) => {
        const page = { limit: MEMBERS_PER_TURN, snapshot };
        const uids: string[] = [];
        let some: string[];
        do {
          if (uids.length > 0) await nextTurn();
          some = channels.membersBehind(channel, uids.at(-1), page);
          for (const uid of some) uids.push(uid);
        } while (some.length === MEMBERS_PER_TURN);
        return uids;
      });
    },

    async membersAmong(channel, uids) {
      return channels.atOneMoment(async (snapshot) => {
        const found: string[] = [];
        let count = 0;
        for (const uid of new Set(uids)) {
          if (++count % MEMBERS_PER_TURN === 0) await nextTurn();
          if (channels.readKinds(channel, uid, snapshot) !== 0) found.push(uid);
        }
        return found;
      });
    },
  };
}

function bitOf(membership: Membership): number {
  return membership === "permanent" ? PERMANENT : TEMPORARY;
}

/** A key that is too long would fail in the middle of a transaction. */
function assertIds(ids: readonly string[]): void {
  if (ids.some((id) => id.length > MAX_ID_UNITS))
    throw new BrokerError("bad_id");
}
