// Channels in Redis: their records, their members of both kinds, their lists, and what deciding on a send needs
// to know. Each change is one script in the channel's slot, behind the entries in the indexes of
// new members' groups; it takes as long as the list it is given, and notifies the group's nodes of
// removed members. No state but the indexes' repairs.

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
import { UserGroups } from "./user-groups.ts";

const RECORD = lua("channel_record");
const MEMBERS = [RECORD, lua("members")];
const CREATE = loadScript(lua("channel_create"), ...MEMBERS);
const UPDATE = loadScript(lua("channel_update"), RECORD);
const FACTS = loadScript(lua("channel_facts"), RECORD);
const ADD = loadScript(lua("members_add"), ...MEMBERS);
const FORGET = loadScript(lua("members_forget"), ...MEMBERS);
const REMOVE = loadScript(lua("members_remove"), ...MEMBERS);
const AMONG = loadScript(lua("members_among"), ...MEMBERS);
const FEW = loadScript(lua("members_few"), ...MEMBERS);
const SIZES = loadScript(lua("channel_sizes"));
const CHANGE_LIST = loadScript(lua("list_change"), ...MEMBERS);
const SINCE = loadScript(lua("members_since"), ...MEMBERS);

/** Members read in one step; more are read in pages, others between them. */
const MAX_FEW = 5000;
const PAGE = 1000;
/** Members of a replaced list looked at in one script: about a millisecond. */
const PIECE = 1000;
const WITH_ANY = "1";

type Membership = "permanent" | "temporary";
const PERMANENT: Membership = "permanent";
const TEMPORARY: Membership = "temporary";
/** Keys of every script on members, behind `head` and the sets of both kinds. */
/** Keys of `channel_facts.lua`. */
const OF_FACTS = ["head", "permanent", "temporary", "denylist", "allowlist"];
const OF_MEMBERS = ["joinSeqs", "positions", "replaced"];

/** What `members_remove.lua` answers first. */
const NO_CHANNEL = 0;
const DISBANDED = 1;
const NOT_MEMBERS = 2;
/** What `members_since.lua` answers. */
const NO_MEMBER = -1;

interface RedisChannels extends ChannelStore {
  /**
   * Repairs indexes of users' groups that a fail-over may have taken entries from. To be called now
   * and then.
   */
  repairIndexes(isStopped: () => boolean): Promise<void>;
}

/**
 * The channels of a store on Redis. A write that is refused as `unavailable` may have happened:
 * doing it again is harmless.
 */
export function createRedisChannels(parts: RedisStorePorts): RedisChannels {
  const { link, written } = parts;
  const groups = new UserGroups(parts);
  const keysOf = (channel: ChannelRef, ...names: readonly string[]) =>
    names.map((name) => link.keys.channel(name, recordKey(channel)));

  /** Of every script on members, of one kind where it is about one. */
  const memberKeys = (channel: ChannelRef, membership = PERMANENT) =>
    keysOf(channel, "head", ...kindsOf(membership), ...OF_MEMBERS);

  /**
   * What a script needs to notify a group's nodes: its topic and id. Of what is no group nothing.
   */
  const groupArgs = ({ type, id }: ChannelRef): readonly [string, string] =>
    type === GROUP_CHANNEL ? [link.keys.topic(groupTopic(id)), id] : ["", ""];

  /**
   * What `channel_facts.lua` replies: bits of the channel, of the uid in its lists and, in the same
   * slot, of a second record.
   */
  async function facts(
    channel: ChannelRef,
    args: readonly string[],
    more: readonly string[] = [],
  ): Promise<readonly number[]> {
    const keys = [...keysOf(channel, ...OF_FACTS), ...more];
    return (await link.run(FACTS, keys, args)) as number[]; // as its header says
  }

  async function recordBits(channel: ChannelRef): Promise<number> {
    const [bits = -1] = await facts(channel, [""]);
    return bits;
  }

  /** Runs a script that may make the users members; its reply once that is durable. */
  async function admit(
    channel: ChannelRef,
    uids: readonly string[],
    script: () => Promise<unknown>,
  ): Promise<unknown> {
    const { id, type } = channel;
    if (type === GROUP_CHANNEL) {
      const reply = await groups.behind(id, uids, script);
      await written(); // the indexes are in other slots
      return reply;
    }
    const reply = await script();
    await written(keysOf(channel, "head")[0]);
    return reply;
  }

  /**
   * What a group keeps of removed members goes too. Cut off, the rest is left to the next call that
   * adds members.
   */
  async function forgetReplaced(channel: ChannelRef): Promise<void> {
    const args = [...groupArgs(channel), PIECE];
    while (Number(await link.run(FORGET, memberKeys(channel), args)) > 0);
  }

  const membersAmong: ChannelStore["membersAmong"] = async (channel, uids) => {
    const unique = [...new Set(uids)];
    if (unique.length === 0) return [];
    const args = [JSON.stringify(unique)];
    return at(unique, await link.run(AMONG, memberKeys(channel), args));
  };

  return {
    async channel(channel) {
      return infoOf(channel, await recordBits(channel));
    },

    async createChannel(info, subscribers) {
      const uids = [...new Set(subscribers)];
      if (infoOf(info, await recordBits(info)) !== undefined) {
        // A fail-over may have lost what the call before it entered.
        if (info.type === GROUP_CHANNEL) await groups.add(info.id, await membersAmong(info, uids));
        return false;
      }
      const [bits] = changeOf(info);
      const args = [...groupArgs(info), JSON.stringify(uids), bits];
      const create = () => link.run(CREATE, memberKeys(info), args);
      return (await admit(info, uids, create)) === 1;
    },

    async updateChannel(channel, flags) {
      const [head = ""] = keysOf(channel, "head");
      const bits = await link.run(UPDATE, [head], changeOf(flags));
      await written(head);
      return infoOf(channel, Number(bits));
    },

    async addSubscribers(channel, uids, { membership, reset }) {
      if (!isOpen(await recordBits(channel))) return false; // nothing is entered that cannot be
      const unique = [...new Set(uids)];
      const list = JSON.stringify(unique);
      const args = [...groupArgs(channel), list, reset ? 1 : 0];
      const reply = await admit(channel, unique, async () => {
        const left = await link.run(ADD, memberKeys(channel, membership), args);
        if (Number(left) > 0) await forgetReplaced(channel); // of no channel it is null
        return left;
      });
      return reply !== null;
    },

    async removeSubscribers(channel, uids, membership) {
      const unique = [...new Set(uids)];
      const keys = memberKeys(channel, membership);
      const args = [...groupArgs(channel), JSON.stringify(unique)];
      const reply = await link.run(REMOVE, keys, args);
      await written(keys[0]);
      const [verdict, positions] = reply as readonly [number, unknown]; // as its header says
      if (verdict === NO_CHANNEL) return { kind: "no_channel" };
      if (verdict === DISBANDED) return { kind: "disbanded" };
      return verdict === NOT_MEMBERS
        ? { kind: "not_members", uids: at(unique, positions) }
        : { kind: "removed" };
    },

    async changeList(channel, list, { kind, uids }) {
      const keys = keysOf(channel, "head", list);
      const names = JSON.stringify([...new Set(uids)]);
      const isGroup = channel.type === GROUP_CHANNEL ? 1 : 0;
      const args = ["", "", names, kind, LIST_BITS[list], isGroup];
      const reply = await link.run(CHANGE_LIST, keys, args);
      await written(keys[0]);
      return reply === 1;
    },

    async channelSizes(channel) {
      const keys = keysOf(channel, ...OF_FACTS).slice(1);
      const reply = await link.run(SIZES, keys, []);
      const [members, denylist, allowlist] = reply as [number, number, number]; // as its header says
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
      const [[bits = -1, lists = 0, same = -1], apart] = await Promise.all([
        facts(to, [fromUid, WITH_ANY], link.isCluster ? [] : keysOf(from, "head")),
        link.isCluster ? recordBits(from) : undefined,
      ]);
      return {
        receiver: infoOf(to, bits),
        receiverHasContacts: hasMembers(bits),
        isContact: isMember(bits),
        sender: infoOf(from, apart ?? same),
        ...listFactsOf(lists),
      };
    },

    async members(channel) {
      const few = await link.run(FEW, memberKeys(channel), [MAX_FEW]);
      if (few !== null) return texts(few);
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
      const seqs = replies.flat() as readonly number[]; // as its header says
      return seqs.map((seq) => (seq === NO_MEMBER ? undefined : seq));
    },

    groupsOf: (uid) => groups.of(uid),
    groupsAmong: (...asked) => groups.amongOf(...asked),
    repairIndexes: (isStopped) => groups.sweep(isStopped),
  };
}

/** The set of this kind, then that of the other. */
function kindsOf(membership: Membership): readonly Membership[] {
  return membership === PERMANENT ? [PERMANENT, TEMPORARY] : [TEMPORARY, PERMANENT];
}

/**
 * The uids of sets, page by page: one that is in all the time is there, one that comes or goes
 * meanwhile may be.
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
      const [next, some] = page as readonly [Buffer, unknown]; // SSCAN's reply
      for (const uid of texts(some)) uids.add(uid);
      cursor = next.toString();
    } while (cursor !== "0");
  }
  return [...uids];
}

/** The items at the positions, counted from 1, that a step answered. */
function at(items: readonly string[], positions: unknown): readonly string[] {
  return (positions as readonly number[]).flatMap((position) => items[position - 1] ?? []);
}

function texts(reply: unknown): string[] {
  return (reply as readonly Buffer[]).map((one) => one.toString());
}
