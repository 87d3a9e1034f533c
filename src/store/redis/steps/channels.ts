// Channels in Redis: their records, and what deciding on a send needs to know. Each change is one step in the channel's slot. No state.

import {
  type ChannelRef,
  GROUP_CHANNEL,
  PERSON_CHANNEL,
} from "../../../broker/model.ts";
import type {
  ChannelStore,
  GroupFacts,
  PersonFacts,
} from "../../../broker/ports.ts";
import { loadScript, type Script } from "../../../redis/script.ts";
import type { RedisStoreParts } from "../parts.ts";
import {
  changeOf,
  hasMembers,
  infoOf,
  isMember,
  recordKey,
} from "./channel-record.ts";
import { createMembers, groupArgs, memberScripts } from "./members.ts";
import { groupScripts, UserGroups } from "./user-groups.ts";

const lua = (name: string) => new URL(`../lua/${name}.lua`, import.meta.url);
const RECORD = lua("channel_record");
const CREATE = loadScript(lua("channel_create"), RECORD, lua("members"));
const UPDATE = loadScript(lua("channel_update"), RECORD);
const FACTS = loadScript(lua("channel_facts"), RECORD);

export const channelScripts: readonly Script[] = [
  ...[CREATE, UPDATE, FACTS],
  ...memberScripts,
  ...groupScripts,
];

const WITH_ANY = "1";

export interface RedisChannels extends ChannelStore {
  /** Repairs indexes of users' groups that a fail-over may have taken entries from. To be called now and then. */
  repairIndexes(isStopped: () => boolean): Promise<void>;
}

/** The channels of a store on Redis. A write that is refused as `unavailable` may have happened: doing it again is harmless. */
export function createRedisChannels(parts: RedisStoreParts): RedisChannels {
  const { link, written } = parts;
  const groups = new UserGroups(parts);
  const keysOf = (channel: ChannelRef, ...names: readonly string[]) =>
    names.map((name) => link.keys.channel(name, recordKey(channel)));

  /** Bits of what `channel_facts.lua` tells of the channel and, in the same slot, of a second record. */
  async function facts(
    channel: ChannelRef,
    args: readonly string[],
    more: readonly string[] = [],
  ): Promise<readonly number[]> {
    const keys = [...keysOf(channel, "head", "perm", "temp"), ...more];
    return (await link.run(FACTS, keys, args)) as number[]; // as its header says
  }

  async function recordBits(channel: ChannelRef): Promise<number> {
    const [bits = -1] = await facts(channel, [""]);
    return bits;
  }

  const members = createMembers(parts, groups, recordBits);

  return {
    ...members,

    async channel(channel) {
      return infoOf(channel, await recordBits(channel));
    },

    async createChannel(info, subscribers) {
      const uids = [...new Set(subscribers)];
      const isGroup = info.type === GROUP_CHANNEL;
      if (infoOf(info, await recordBits(info)) !== undefined) {
        // A fail-over may have lost what the call before it entered.
        if (isGroup)
          await groups.add(info.id, await members.membersAmong(info, uids));
        return false;
      }
      const keys = [
        ...keysOf(info, "head", "perm", "temp"),
        ...keysOf(info, "join", "pos"),
      ];
      const [key] = keys;
      const create = () =>
        link.run(CREATE, keys, [
          ...[...groupArgs(link, info), JSON.stringify(uids)],
          changeOf(info)[0],
        ]);
      const created = isGroup
        ? await groups.behind(info.id, uids, create)
        : await create();
      await written(isGroup ? undefined : key); // the indexes are in other slots
      return created === 1;
    },

    async updateChannel(channel, flags) {
      const [head = ""] = keysOf(channel, "head");
      const bits = await link.run(UPDATE, [head], changeOf(flags));
      await written(head);
      return infoOf(channel, Number(bits));
    },

    async groupFacts(channelId, uid): Promise<GroupFacts> {
      const channel: ChannelRef = { id: channelId, type: GROUP_CHANNEL };
      const [bits = -1] = await facts(channel, [uid]);
      return { info: infoOf(channel, bits), isSubscriber: isMember(bits) };
    },

    async personFacts(fromUid, toUid): Promise<PersonFacts> {
      const to: ChannelRef = { id: toUid, type: PERSON_CHANNEL };
      const from: ChannelRef = { id: fromUid, type: PERSON_CHANNEL };
      const [bits = -1, senderBits = -1] = link.isCluster
        ? await Promise.all([
            facts(to, [fromUid, WITH_ANY]).then(([first = -1]) => first),
            recordBits(from),
          ])
        : await facts(to, [fromUid, WITH_ANY], keysOf(from, "head"));
      return {
        receiver: infoOf(to, bits),
        receiverHasContacts: hasMembers(bits),
        isContact: isMember(bits),
        sender: infoOf(from, senderBits),
      };
    },

    groupsOf: (uid) => groups.of(uid),
    groupsAmong: (...asked) => groups.amongOf(...asked),
    repairIndexes: (isStopped) => groups.sweep(isStopped),
  };
}
