// Members of channels in Redis, of both kinds. Each change is one script in the channel's slot, behind the entries in the indexes of new members' groups.
// It takes as long as the list it is given, and notifies the group's nodes of removed members. No state.

import {
  type ChannelRef,
  GROUP_CHANNEL,
  groupTopic,
  type SubscriberRemoval,
} from "../../../broker/model.ts";
import type { ChannelStore } from "../../../broker/ports.ts";
import type { RedisLink } from "../../../redis/link.ts";
import { loadScript, type Script } from "../../../redis/script.ts";
import type { RedisStoreParts } from "../parts.ts";
import { isOpen, recordKey } from "./channel-record.ts";
import type { UserGroups } from "./user-groups.ts";

const lua = (name: string) => new URL(`../lua/${name}.lua`, import.meta.url);
const before = [lua("channel_record"), lua("members")];
const ADD = loadScript(lua("members_add"), ...before);
const FORGET = loadScript(lua("members_forget"), ...before);
const REMOVE = loadScript(lua("members_remove"), ...before);
const AMONG = loadScript(lua("members_among"), ...before);
const FEW = loadScript(lua("members_few"));
const SINCE = loadScript(lua("members_since"), ...before);

export const memberScripts: readonly Script[] = [
  ...[ADD, FORGET, REMOVE],
  ...[AMONG, FEW, SINCE],
];

/** Members read in one step; more are read in pages, others between them. */
const MAX_FEW = 5000;
const PAGE = 1000;
/** Members of a replaced list looked at in one script: about a millisecond. */
const PIECE = 1000;

/** What `members_remove.lua` answers first. */
const NO_CHANNEL = 0;
const DISBANDED = 1;
const NOT_MEMBERS = 2;
/** What `members_since.lua` answers. */
const NO_MEMBER = -1;

type Members = Pick<
  ChannelStore,
  | "addSubscribers"
  | "removeSubscribers"
  | "members"
  | "membersAmong"
  | "joinSeqs"
>;

/** `recordBits`: what the step on a channel's record answers. */
export function createMembers(
  { link, written }: RedisStoreParts,
  groups: UserGroups,
  recordBits: (channel: ChannelRef) => Promise<number>,
): Members {
  const keysOf = (channel: ChannelRef, ...names: readonly string[]) =>
    names.map((name) => link.keys.channel(name, recordKey(channel)));

  /** What a group keeps of removed members goes too. Cut off, the rest is left to the next call that adds members. */
  async function forgetReplaced(channel: ChannelRef): Promise<void> {
    const names = ["replaced", "perm", "temp", "join", "pos", "head"];
    const keys = keysOf(channel, ...names);
    while (Number(await link.run(FORGET, keys, [PIECE])) > 0);
  }

  return {
    async addSubscribers(channel, uids, { membership, reset }) {
      if (!isOpen(await recordBits(channel))) return false; // nothing is entered that cannot be
      const unique = [...new Set(uids)];
      const isGroup = channel.type === GROUP_CHANNEL;
      const keys = [
        ...keysOf(channel, "head", ...kindsOf(membership)),
        ...keysOf(channel, "join", "pos", "replaced"),
      ];
      const list = JSON.stringify(unique);
      const args = [...groupArgs(link, channel), list, reset ? 1 : 0];
      const add = () => link.run(ADD, keys, args);
      const reply = isGroup
        ? await groups.behind(channel.id, unique, add)
        : await add();
      if (Number(reply) > 0) await forgetReplaced(channel); // of no channel it is null
      await written(isGroup ? undefined : keys[0]); // the indexes are in other slots
      return reply !== null;
    },

    async removeSubscribers(
      channel,
      uids,
      membership,
    ): Promise<SubscriberRemoval> {
      const unique = [...new Set(uids)];
      const kinds = kindsOf(membership);
      const keys = [
        ...keysOf(channel, "head", ...kinds),
        ...keysOf(channel, "join", "pos"),
      ];
      const args = [...groupArgs(link, channel), JSON.stringify(unique)];
      const reply = await link.run(REMOVE, keys, args);
      await written(keys[0]);
      const [verdict, positions] = reply as readonly [number, unknown]; // as its header says
      if (verdict === NO_CHANNEL) return { kind: "no_channel" };
      if (verdict === DISBANDED) return { kind: "disbanded" };
      return verdict === NOT_MEMBERS
        ? { kind: "not_members", uids: at(unique, positions) }
        : { kind: "removed" };
    },

    async members(channel) {
      const keys = keysOf(channel, "perm", "temp");
      const few = await link.run(FEW, keys, [MAX_FEW]);
      return few === null ? manyMembers(link, keys) : texts(few);
    },

    async membersAmong(channel, uids) {
      const unique = [...new Set(uids)];
      if (unique.length === 0) return [];
      const keys = keysOf(channel, "perm", "temp");
      return at(unique, await link.run(AMONG, keys, [JSON.stringify(unique)]));
    },

    async joinSeqs(channelId, uids) {
      const channel: ChannelRef = { id: channelId, type: GROUP_CHANNEL };
      const keys = keysOf(channel, "head", "perm", "temp", "join");
      const pieces: Promise<unknown>[] = [];
      for (let at = 0; at < uids.length; at += PAGE) {
        const piece = JSON.stringify(uids.slice(at, at + PAGE));
        pieces.push(link.run(SINCE, keys, [piece]));
      }
      const replies = await Promise.all(pieces);
      const seqs = replies.flat() as readonly number[]; // as its header says
      return seqs.map((seq) => (seq === NO_MEMBER ? undefined : seq));
    },
  };
}

/** What a step needs to notify a group's nodes: its topic and id. Of what is no group nothing. */
export function groupArgs(
  { keys }: RedisLink,
  { type, id }: ChannelRef,
): readonly [string, string] {
  return type === GROUP_CHANNEL ? [keys.topic(groupTopic(id)), id] : ["", ""];
}

/** The set of this kind, then that of the other. */
function kindsOf(membership: "permanent" | "temporary"): readonly string[] {
  return membership === "permanent" ? ["perm", "temp"] : ["temp", "perm"];
}

/** Page by page: who is a member all the time is there, who comes or goes meanwhile may be. */
async function manyMembers(
  link: RedisStoreParts["link"],
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
  return (positions as readonly number[]).flatMap(
    (position) => items[position - 1] ?? [],
  );
}

function texts(reply: unknown): string[] {
  return (reply as readonly Buffer[]).map((one) => one.toString());
}
