// Channels in Redis: records, permanent and temporary members, lists, and the facts that decide
// whether a user may send. Each change is one script in the channel's slot. A group is added to
// users' group indexes before a script makes the users members, and a script that removes members
// publishes the removal on the group's topic.

import {
  type ChannelRef,
  GROUP_CHANNEL,
  groupTopic,
  PERSON_CHANNEL,
} from "../../../broker/model.ts";
import type { ChannelStore } from "../../../broker/ports.ts";
import { loadScript } from "../../../redis/script.ts";
import { lua, type RedisStorePorts } from "../ports.ts";
import {
  changeOf,
  hasMembers,
  infoOf,
  isMember,
  isOpen,
  LIST_BITS,
  listFactsOf,
  recordKey,
} from "./channel-record.ts";
import { EVENT_LUA, eventParts } from "./events.ts";
import { type GroupIndex, UserGroups } from "./user-groups.ts";

const RECORD = lua("channel_record");
const MEMBERS = [RECORD, lua("members")];
const EVENTS = [...EVENT_LUA, lua("channel_events")];
const CREATE = loadScript(lua("channel_create"), ...MEMBERS, ...EVENTS);
const UPDATE = loadScript(lua("channel_update"), RECORD, ...EVENTS);
const FACTS = loadScript(lua("channel_facts"), RECORD);
const ADD = loadScript(lua("members_add"), ...MEMBERS, ...EVENTS);
const FORGET = loadScript(lua("members_forget"), ...MEMBERS);
const REMOVE = loadScript(lua("members_remove"), ...MEMBERS, ...EVENTS);
const AMONG = loadScript(lua("members_among"), ...MEMBERS);
const FEW = loadScript(lua("members_few"), ...MEMBERS);
const SIZES = loadScript(lua("channel_sizes"));
const CHANGE_LIST = loadScript(lua("list_change"), ...MEMBERS);
const SINCE = loadScript(lua("members_since"), ...MEMBERS);

/** Maximum number of members that one script reads. More members are read in pages. */
const MAX_READ_AT_ONCE = 5000;
const PAGE = 1000;
/**
 * Maximum number of replaced members whose data one call of `members_forget.lua` removes. A full
 * call takes about a millisecond.
 */
const PIECE = 1000;
/** Argument that makes `channel_facts.lua` check whether the channel has any members. */
const WITH_ANY = "1";

type Membership = "permanent" | "temporary";
const PERMANENT: Membership = "permanent";
const TEMPORARY: Membership = "temporary";
const FACTS_KEYS = ["head", "permanent", "temporary", "denylist", "allowlist"];
const MEMBERS_KEYS = ["joinSeqs", "positions", "replaced"];

// Values of the first item in the reply of `members_remove.lua`.
const NO_CHANNEL = 0;
const DISBANDED = 1;
const NOT_MEMBERS = 2;
/** Item in the reply of `members_since.lua` for a uid that is not a member. */
const NOT_A_MEMBER = -1;

interface RedisChannels extends ChannelStore {
  /** Repairs group indexes after a fail-over. Must be called periodically. */
  repairIndexes(isStopped: () => boolean): Promise<void>;
  readonly groupIndex: GroupIndex;
}

export function createRedisChannels(ports: RedisStorePorts): RedisChannels {
  const { link, waitForReplicas, observeReplicas } = ports;
  const groups = new UserGroups(ports);
  const keysOf = (channel: ChannelRef, ...names: readonly string[]) =>
    names.map((name) => link.keys.channel(name, recordKey(channel)));

  const waitForChannel = (channel: ChannelRef) =>
    waitForReplicas(link.keys.channel("head", recordKey(channel)));

  const memberKeys = (channel: ChannelRef, membership = PERMANENT) =>
    keysOf(channel, "head", ...kindsOf(membership), ...MEMBERS_KEYS);

  const eventsOf = (channel: ChannelRef) => eventParts(link, recordKey(channel));

  const groupArgs = ({ type, id }: ChannelRef): readonly [string, string] =>
    type === GROUP_CHANNEL ? [link.keys.topic(groupTopic(id)), id] : ["", ""];

  async function facts(
    channel: ChannelRef,
    args: readonly string[],
    otherHead: readonly string[] = [],
  ): Promise<readonly number[]> {
    const keys = [...keysOf(channel, ...FACTS_KEYS), ...otherHead];
    return (await link.run(FACTS, keys, args)) as number[]; // see the header of `channel_facts.lua`
  }

  async function recordBits(channel: ChannelRef): Promise<number> {
    const [bits = -1] = await facts(channel, [""]);
    return bits;
  }

  /**
   * Runs a script that adds members. For a group, first adds the group to the users' group indexes.
   * Resolves when the changes are durable.
   */
  async function addMembers(
    channel: ChannelRef,
    uids: readonly string[],
    script: () => Promise<unknown>,
  ): Promise<unknown> {
    const { id, type } = channel;
    if (type === GROUP_CHANNEL) {
      const replicated = observeReplicas(); // covers the group indexes, which are in other slots
      const reply = await groups.addBefore(id, uids, script);
      await replicated();
      return reply;
    }
    const reply = await script();
    await waitForChannel(channel);
    return reply;
  }

  /**
   * Removes the data that is stored for members who were replaced and are no longer members. If the
   * removal fails, the next `addSubscribers` call for the group completes it.
   */
  async function forgetReplaced(channel: ChannelRef): Promise<void> {
    const args = [...groupArgs(channel), PIECE];
    while (Number(await link.run(FORGET, memberKeys(channel), args)) > 0);
  }

  const membersAmong: ChannelStore["membersAmong"] = async (channel, uids) => {
    const unique = [...new Set(uids)];
    if (unique.length === 0) return [];
    const args = [JSON.stringify(unique)];
    return itemsAt(unique, await link.run(AMONG, memberKeys(channel), args));
  };

  return {
    async channel(channel) {
      return infoOf(channel, await recordBits(channel));
    },

    async createChannel(info, subscribers) {
      const uids = [...new Set(subscribers)];
      if (infoOf(info, await recordBits(info)) !== undefined) {
        // Writes the index entries again, because a fail-over may have lost them since the group
        // was created.
        if (info.type === GROUP_CHANNEL) await groups.add(info.id, await membersAmong(info, uids));
        return false;
      }
      const [bits] = changeOf(info);
      const events = eventsOf(info);
      const keys = [...memberKeys(info), ...events.keys];
      const args = [...groupArgs(info), JSON.stringify(uids), bits, ...events.args];
      const create = () => link.run(CREATE, keys, args);
      return (await addMembers(info, uids, create)) === 1;
    },

    async updateChannel(channel, flags) {
      const [head = ""] = keysOf(channel, "head");
      const events = eventsOf(channel);
      const args = [...changeOf(flags), ...events.args];
      const bits = await link.run(UPDATE, [head, ...events.keys], args);
      await waitForChannel(channel);
      return infoOf(channel, Number(bits));
    },

    async addSubscribers(channel, uids, { membership, reset }) {
      // The group is checked before the index is written, so that users who cannot be added get no
      // entries.
      if (!isOpen(await recordBits(channel))) return false;
      const unique = [...new Set(uids)];
      const list = JSON.stringify(unique);
      const events = eventsOf(channel);
      const keys = [...memberKeys(channel, membership), ...events.keys];
      const isTemporary = membership === TEMPORARY ? 1 : 0;
      const args = [...groupArgs(channel), list, reset ? 1 : 0, isTemporary, ...events.args];
      const reply = await addMembers(channel, unique, async () => {
        const remaining = await link.run(ADD, keys, args);
        // `remaining` is null if the channel does not exist or is disbanded.
        if (Number(remaining) > 0) await forgetReplaced(channel);
        return remaining;
      });
      return reply !== null;
    },

    async removeSubscribers(channel, uids, membership) {
      const unique = [...new Set(uids)];
      const events = eventsOf(channel);
      const keys = [...memberKeys(channel, membership), ...events.keys];
      const isTemporary = membership === TEMPORARY ? 1 : 0;
      const list = JSON.stringify(unique);
      const args = [...groupArgs(channel), list, isTemporary, ...events.args];
      const reply = await link.run(REMOVE, keys, args);
      await waitForChannel(channel);
      const [verdict, positions] = reply as readonly [number, unknown];
      if (verdict === NO_CHANNEL) return { kind: "no_channel" };
      if (verdict === DISBANDED) return { kind: "disbanded" };
      return verdict === NOT_MEMBERS
        ? { kind: "not_members", uids: itemsAt(unique, positions) }
        : { kind: "removed" };
    },

    async changeList(channel, list, { kind, uids }) {
      const keys = keysOf(channel, "head", list);
      const names = JSON.stringify([...new Set(uids)]);
      const isGroup = channel.type === GROUP_CHANNEL ? 1 : 0;
      const args = ["", "", names, kind, LIST_BITS[list], isGroup];
      const reply = await link.run(CHANGE_LIST, keys, args);
      await waitForChannel(channel);
      return reply === 1;
    },

    async channelSizes(channel) {
      const keys = keysOf(channel, ...FACTS_KEYS).slice(1);
      const reply = await link.run(SIZES, keys, []);
      const [members, denylist, allowlist] = reply as [number, number, number];
      return { members, denylist, allowlist };
    },

    listed: (channel, list) => scanned(link, keysOf(channel, list)),

    async groupFacts(channelId, uid) {
      const channel: ChannelRef = { id: channelId, type: GROUP_CHANNEL };
      const [bits = -1, lists = 0] = await facts(channel, [uid]);
      const info = infoOf(channel, bits);
      const inLists = listFactsOf(info === undefined ? 0 : lists);
      return { info, isSubscriber: isMember(bits), ...inLists };
    },

    async personFacts(fromUid, toUid) {
      const to: ChannelRef = { id: toUid, type: PERSON_CHANNEL };
      const from: ChannelRef = { id: fromUid, type: PERSON_CHANNEL };
      const [[bits = -1, lists = 0, senderHere = -1], senderElsewhere] = await Promise.all([
        facts(to, [fromUid, WITH_ANY], link.isCluster ? [] : keysOf(from, "head")),
        link.isCluster ? recordBits(from) : undefined,
      ]);
      return {
        receiver: infoOf(to, bits),
        receiverHasContacts: hasMembers(bits),
        isContact: isMember(bits),
        sender: infoOf(from, senderElsewhere ?? senderHere),
        ...listFactsOf(lists),
      };
    },

    async members(channel) {
      const uids = await link.run(FEW, memberKeys(channel), [MAX_READ_AT_ONCE]);
      if (uids !== null) return texts(uids);
      return scanned(link, keysOf(channel, ...kindsOf(PERMANENT)));
    },

    membersAmong,

    async joinSeqs(channelId, uids) {
      const keys = memberKeys({ id: channelId, type: GROUP_CHANNEL });
      const pieces: Promise<unknown>[] = [];
      for (let at = 0; at < uids.length; at += PAGE) {
        const piece = JSON.stringify(uids.slice(at, at + PAGE));
        pieces.push(link.run(SINCE, keys, [piece]));
      }
      const replies = await Promise.all(pieces);
      const seqs = replies.flat() as readonly number[]; // see the header of `members_since.lua`
      return seqs.map((seq) => (seq === NOT_A_MEMBER ? undefined : seq));
    },

    groupsOf: (uid) => groups.of(uid),
    repairIndexes: (isStopped) => groups.sweep(isStopped),
    groupIndex: groups,
  };
}

function kindsOf(membership: Membership): readonly Membership[] {
  return membership === PERMANENT ? [PERMANENT, TEMPORARY] : [TEMPORARY, PERMANENT];
}

/**
 * Returns the uids in the sets `keys`. Uids that are added or removed during the scan may be
 * missing.
 */
async function scanned(
  link: RedisStorePorts["link"],
  keys: readonly string[],
): Promise<readonly string[]> {
  const uids = new Set<string>();
  for (const key of keys) {
    let cursor = "0";
    do {
      const page = await link.call("sscan", key, cursor, "COUNT", PAGE);
      const [next, members] = page as readonly [Buffer, unknown]; // the reply of SSCAN
      for (const uid of texts(members)) uids.add(uid);
      cursor = next.toString();
    } while (cursor !== "0");
  }
  return [...uids];
}

function itemsAt(items: readonly string[], positions: unknown): readonly string[] {
  return (positions as readonly number[]).flatMap((position) => items[position - 1] ?? []);
}

function texts(reply: unknown): string[] {
  return (reply as readonly Buffer[]).map((text) => text.toString());
}
