// Channels, their members and the groups of each user: the steps of the port. Steps on one channel run one after the other; what a step
// changes is one transaction, decided on before its first write. State: beside the tables', the turns of long lists of groups.

import { setImmediate as nextTurn } from "node:timers/promises";
import { BrokerError } from "../../../broker/errors.ts";
import {
  type ChannelKey,
  type ChannelRef,
  GROUP_CHANNEL,
} from "../../../broker/model.ts";
import type {
  ChannelStore,
  Membership,
  Publisher,
} from "../../../broker/ports.ts";
import type { KeyedLock } from "../../../lib/keyed-lock.ts";
import { TimeSlice, Turns } from "../../../lib/time-slice.ts";
import type { Tables } from "../engine/database.ts";
import { transact } from "../engine/tables.ts";
import type {
  ChannelRecord,
  ChannelTables,
  MemberChanges,
  MembershipEffect,
} from "./channel-tables.ts";
import { groupFacts, personFacts } from "./permissions.ts";

/** Bits of a member's value. */
const PERMANENT = 1;
const TEMPORARY = 2;
/** Longest id: three of them fit a key. Edges refuse far shorter ones. */
const MAX_ID_UNITS = 256;
/** Members read in one event-loop turn. */
const MEMBERS_PER_TURN = 500;
/** A longer list of a user's groups waits for those under way: many may be asked for in one iteration of the event loop. */
const GROUPS_AT_ONCE = 20;

interface ChannelParts {
  readonly tables: Tables;
  readonly channelTables: ChannelTables;
  readonly lock: KeyedLock;
  /** The newest seq shown of a channel. */
  readonly headSeq: (key: ChannelKey) => number;
  /** Where removals from groups are published, once they are durable. */
  readonly publisher: Publisher;
  readonly onError: (error: Error, what: string) => void;
}

/** The lock of steps that change `channel`. */
export function channelLock({ type, id }: ChannelRef): string {
  return `channel ${type} ${id}`;
}

export function createChannels({
  tables,
  channelTables: channels,
  lock,
  headSeq,
  publisher,
  onError,
}: ChannelParts): ChannelStore {
  const step = <T>(channel: ChannelRef, run: () => Promise<T>): Promise<T> =>
    lock.run(channelLock(channel), () => channels.changing(channel, run));

  const listings = new Turns();

  /** Writes a channel with changed members, and publishes who is removed from a group. */
  async function put(
    { info, members }: ChannelRecord,
    changes: MemberChanges,
    effect: MembershipEffect,
  ): Promise<void> {
    const { type, id } = info;
    const headNow = type === GROUP_CHANNEL ? headSeq(`${type}:${id}`) : 0;
    await transact(tables, () => {
      channels.put({ info, members });
      channels.putMembers(info, changes, { ...effect, headSeq: headNow });
    });
    if (type === GROUP_CHANNEL && effect.removed.length > 0)
      publishRemoval(id, effect.removed);
  }

  function publishRemoval(channelId: string, uids: readonly string[]): void {
    try {
      publisher.publish({ kind: "removal", channelId, uids });
    } catch (error) {
      onError(error as Error, "A removal could not be published"); // a bug in a receiver: the members are removed all the same
    }
  }

  async function groupsOf(uid: string): Promise<readonly string[]> {
    const ids: string[] = [];
    const slice = new TimeSlice(undefined, listings);
    for (const { id } of channels.groupsOf(uid)) {
      const mustWait = ids.length === GROUPS_AT_ONCE && listings.isBusy;
      if (mustWait || slice.isUsedUp()) await slice.rest();
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
      return step(info, async () => {
        if (channels.row(info) !== undefined) return false;
        const changes = new Map(subscribers.map((uid) => [uid, PERMANENT]));
        const added = [...changes.keys()];
        const row = { info, members: added.length };
        await put(row, changes, { added, removed: [] });
        return true;
      });
    },

    async updateChannel(channel, flags) {
      return step(channel, async () => {
        const row = channels.row(channel);
        if (row === undefined) return undefined;
        const { info, members } = row;
        const disband = info.disband || flags.disband === true;
        const changed = { ...info, ...flags, disband };
        await transact(tables, () => channels.put({ info: changed, members }));
        return changed;
      });
    },

    async addSubscribers(channel, uids, { membership, reset }) {
      assertIds(uids);
      return step(channel, async () => {
        const row = channels.row(channel);
        if (row === undefined || row.info.disband) return false;
        const bit = bitOf(membership);
        const changes = new Map<string, number>();
        const dropped = reset ? channels.membersWith(channel, bit) : new Map();
        for (const [uid, kinds] of dropped) changes.set(uid, kinds & ~bit);
        for (const uid of uids)
          changes.set(uid, channels.kinds(channel, uid) | bit);
        const effect = channels.effect(channel, changes);
        const { added, removed } = effect;
        const members = row.members + added.length - removed.length;
        await put({ info: row.info, members }, changes, effect);
        return true;
      });
    },

    async removeSubscribers(channel, uids, membership) {
      return step(channel, async () => {
        const row = channels.row(channel);
        if (row === undefined) return { kind: "no_channel" };
        if (row.info.disband) return { kind: "disbanded" };
        const bit = bitOf(membership);
        const changes = new Map<string, number>();
        for (const uid of uids) changes.set(uid, channels.kinds(channel, uid));
        const strangers = [...changes].filter(([, kinds]) => !(kinds & bit));
        if (strangers.length > 0)
          return { kind: "not_members", uids: strangers.map(([uid]) => uid) };
        for (const [uid, kinds] of changes) changes.set(uid, kinds & ~bit);
        const effect = channels.effect(channel, changes);
        const members = row.members - effect.removed.length;
        await put({ info: row.info, members }, changes, effect);
        return { kind: "removed" };
      });
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

    members: (channel) =>
      lock.run(channelLock(channel), async () => {
        const uids: string[] = [];
        let some: string[];
        do {
          if (uids.length > 0) await nextTurn();
          some = channels.membersBehind(channel, uids.at(-1), MEMBERS_PER_TURN);
          for (const uid of some) uids.push(uid);
        } while (some.length === MEMBERS_PER_TURN);
        return uids;
      }),

    membersAmong: (channel, uids) =>
      lock.run(channelLock(channel), async () => {
        const found: string[] = [];
        let count = 0;
        for (const uid of new Set(uids)) {
          if (++count % MEMBERS_PER_TURN === 0) await nextTurn();
          if (channels.readKinds(channel, uid) !== 0) found.push(uid);
        }
        return found;
      }),
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
