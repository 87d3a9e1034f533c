// Channels, their members and the groups of each user. State: the tables, and what sends asked of them lately. Steps on one channel run one after the other; what a step
// changes is one transaction, decided on before its first write.

import { BrokerError } from "../../broker/errors.ts";
import {
  type ChannelInfo,
  type ChannelRef,
  type ChannelType,
  GROUP_CHANNEL,
  PERSON_CHANNEL,
} from "../../broker/model.ts";
import type { ChannelStore, Membership } from "../../broker/ports.ts";
import { BoundedMap } from "../../lib/bounded-map.ts";
import { fieldsOf, type Stored, type Tables } from "./database.ts";
import type { ControlParts } from "./transact.ts";

const VERSION = 1;
/** Channels whose rules are remembered, and uids of each whose membership is: what is being written to, not all there is. */
const MAX_KNOWN_CHANNELS = 4096;
const MAX_KNOWN_UIDS = 128;
/** Bits of a member's value. */
const PERMANENT = 1;
const TEMPORARY = 2;
/** Sorts behind every string in a key. */
const LAST = Buffer.from([0xff]);
/** Longest id: three of them fit a key. Edges refuse far shorter ones. */
const MAX_ID_UNITS = 256;

/** A channel with the number of uids that are members of either kind. */
interface Row {
  readonly info: ChannelInfo;
  readonly members: number;
}

/** uid → kinds of membership; 0 = none any more. */
type MemberChanges = ReadonlyMap<string, number>;

export function createChannelTables(parts: ControlParts): ChannelStore {
  const { lock, transact } = parts;
  const tables = new ChannelTables(parts.tables);
  const step = <T>(channel: ChannelRef, run: () => Promise<T>): Promise<T> =>
    lock.run(`channel ${channel.type} ${channel.id}`, () =>
      tables.changing(channel, run),
    );

  return {
    async channel(channel) {
      return tables.row(channel)?.info;
    },

    async createChannel(info, subscribers) {
      assertIds([info.id, ...subscribers]);
      return step(info, async () => {
        if (tables.row(info) !== undefined) return false;
        const changes = new Map(subscribers.map((uid) => [uid, PERMANENT]));
        await transact(() => {
          tables.put({ info, members: changes.size });
          tables.putMembers(info, changes);
        });
        return true;
      });
    },

    async updateChannel(channel, flags) {
      return step(channel, async () => {
        const row = tables.row(channel);
        if (row === undefined) return undefined;
        const { info, members } = row;
        const disband = info.disband || flags.disband === true;
        const changed = { ...info, ...flags, disband };
        await transact(() => tables.put({ info: changed, members }));
        return changed;
      });
    },

    async addSubscribers(channel, uids, { membership, reset }) {
      assertIds(uids);
      return step(channel, async () => {
        const row = tables.row(channel);
        if (row === undefined || row.info.disband) return undefined;
        const bit = bitOf(membership);
        const changes = new Map<string, number>();
        const dropped = reset ? tables.membersWith(channel, bit) : new Map();
        for (const [uid, kinds] of dropped) changes.set(uid, kinds & ~bit);
        for (const uid of uids)
          changes.set(uid, tables.kinds(channel, uid) | bit);
        const { added, gone } = tables.effect(channel, changes);
        const members = row.members + added.length - gone.length;
        await transact(() => {
          tables.put({ info: row.info, members });
          tables.putMembers(channel, changes);
        });
        return { added, gone };
      });
    },

    async removeSubscribers(channel, uids, membership) {
      return step(channel, async () => {
        const row = tables.row(channel);
        if (row === undefined) return { kind: "no_channel" };
        if (row.info.disband) return { kind: "disbanded" };
        const bit = bitOf(membership);
        const changes = new Map<string, number>();
        for (const uid of uids) changes.set(uid, tables.kinds(channel, uid));
        const strangers = [...changes].filter(([, kinds]) => !(kinds & bit));
        if (strangers.length > 0)
          return { kind: "not_members", uids: strangers.map(([uid]) => uid) };
        for (const [uid, kinds] of changes) changes.set(uid, kinds & ~bit);
        const { gone } = tables.effect(channel, changes);
        const members = row.members - gone.length;
        await transact(() => {
          tables.put({ info: row.info, members });
          tables.putMembers(channel, changes);
        });
        return { kind: "removed", gone };
      });
    },

    groupFacts(channelId, uid) {
      const channel: ChannelRef = { id: channelId, type: GROUP_CHANNEL };
      const info = tables.row(channel)?.info;
      const isMember = info !== undefined && tables.kinds(channel, uid) !== 0;
      return { info, isSubscriber: isMember };
    },

    personFacts(fromUid, toUid) {
      const to: ChannelRef = { id: toUid, type: PERSON_CHANNEL };
      const receiver = tables.row(to);
      const hasContacts = receiver !== undefined && receiver.members > 0;
      return {
        receiver: receiver?.info,
        receiverHasContacts: hasContacts,
        isContact: hasContacts && tables.kinds(to, fromUid) !== 0,
        sender: tables.row({ id: fromUid, type: PERSON_CHANNEL })?.info,
      };
    },

    async groupsOf(uid) {
      return tables.groupsOf(uid);
    },
  };
}

/** What is known of one channel without a read: its row, and some uids' kinds. */
interface Known {
  readonly row: Row | undefined;
  readonly kinds: BoundedMap<string, number>;
}

/** Reads, and writes to be called inside `transact`. Remembers what sends ask for, until the channel changes. */
class ChannelTables {
  readonly #tables: Tables;
  readonly #known: Record<ChannelType, BoundedMap<string, Known>> = {
    1: new BoundedMap(MAX_KNOWN_CHANNELS),
    2: new BoundedMap(MAX_KNOWN_CHANNELS),
  };
  /** Channels in the middle of a step: nothing of them is remembered, for a read may see them before or after. */
  readonly #changing: Record<ChannelType, Set<string>> = {
    1: new Set(),
    2: new Set(),
  };

  constructor(tables: Tables) {
    this.#tables = tables;
  }

  /** Runs a step that may change the channel; steps of one channel do not overlap. */
  async changing<T>(
    { type, id }: ChannelRef,
    run: () => Promise<T>,
  ): Promise<T> {
    this.#changing[type].add(id);
    this.#known[type].delete(id);
    try {
      return await run();
    } finally {
      this.#changing[type].delete(id);
    }
  }

  row(channel: ChannelRef): Row | undefined {
    return this.#lookUp(channel).row;
  }

  #lookUp({ type, id }: ChannelRef): Known {
    const known = this.#known[type].get(id);
    if (known !== undefined) return known;
    const stored = this.#tables.channels.get([type, id]);
    const row = stored === undefined ? undefined : toRow({ type, id }, stored);
    const found = {
      row,
      kinds: new BoundedMap<string, number>(MAX_KNOWN_UIDS),
    };
    if (!this.#changing[type].has(id)) this.#known[type].set(id, found);
    return found;
  }

  put({ info, members }: Row): void {
    void this.#tables.channels.put(
      [info.type, info.id],
      [
        VERSION,
        info.ban,
        info.disband,
        info.sendBan,
        info.allowStranger,
        info.large,
        members,
      ],
    );
  }

  /** Kinds of membership of `uid`, as bits. */
  kinds(channel: ChannelRef, uid: string): number {
    const known = this.#lookUp(channel).kinds;
    const remembered = known.get(uid);
    if (remembered !== undefined) return remembered;
    const { type, id } = channel;
    const kinds = toKinds(this.#tables.members.get([type, id, uid]));
    known.set(uid, kinds); // lost at once where the channel is changing
    return kinds;
  }

  /** All members that hold the kind `bit`, with all their kinds. */
  membersWith({ type, id }: ChannelRef, bit: number): Map<string, number> {
    const found = new Map<string, number>();
    for (const { key, value } of this.#tables.members.getRange({
      start: [type, id],
      end: [type, id, LAST] as unknown as (string | number)[], // a key part may be bytes; the table's type names what is stored
    })) {
      const kinds = toKinds(value);
      if (kinds & bit) found.set(String(key[2]), kinds);
    }
    return found;
  }

  /** Who becomes a member and who stops being one. */
  effect(
    channel: ChannelRef,
    changes: MemberChanges,
  ): { readonly added: string[]; readonly gone: string[] } {
    const added: string[] = [];
    const gone: string[] = [];
    for (const [uid, kinds] of changes) {
      const before = this.kinds(channel, uid);
      if (before === 0 && kinds !== 0) added.push(uid);
      if (before !== 0 && kinds === 0) gone.push(uid);
    }
    return { added, gone };
  }

  putMembers({ type, id }: ChannelRef, changes: MemberChanges): void {
    const { members, groups } = this.#tables;
    for (const [uid, kinds] of changes) {
      const key = [type, id, uid];
      if (kinds === 0) void members.remove(key);
      else void members.put(key, [VERSION, kinds]);
      if (type !== GROUP_CHANNEL) continue;
      if (kinds === 0) void groups.remove([uid, id]);
      else void groups.put([uid, id], [VERSION]);
    }
  }

  groupsOf(uid: string): string[] {
    const ids: string[] = [];
    for (const key of this.#tables.groups.getKeys({
      start: [uid],
      end: [uid, LAST] as unknown as string[], // as in membersWith
    })) {
      const id = String(key[1]);
      const row = this.row({ type: GROUP_CHANNEL, id });
      if (row !== undefined && !row.info.disband) ids.push(id);
    }
    return ids;
  }
}

function toRow({ type, id }: ChannelRef, stored: Stored): Row {
  const [ban, disband, sendBan, allowStranger, large, members] = fieldsOf(
    stored,
    VERSION,
  );
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

function toKinds(stored: Stored | undefined): number {
  return stored === undefined ? 0 : Number(fieldsOf(stored, VERSION)[0]);
}

function bitOf(membership: Membership): number {
  return membership === "permanent" ? PERMANENT : TEMPORARY;
}

/** A key that is too long would fail in the middle of a transaction. */
function assertIds(ids: readonly string[]): void {
  if (ids.some((id) => id.length > MAX_ID_UNITS))
    throw new BrokerError("bad_id");
}
