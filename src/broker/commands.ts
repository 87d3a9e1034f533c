// Who gets a command [decisions: sync_once, subscribers on send]: a copy to keep, or only word while online. State: none.

import { type ChannelRef, GROUP_CHANNEL, SYSTEM_UID } from "./model.ts";
import type { ChannelStore } from "./ports.ts";

/** `tell`: only who is online; `recipients` undefined: everyone in the channel. `keep`: a copy for each recipient. */
export type Audience =
  | {
      readonly kind: "tell";
      readonly recipients: readonly string[] | undefined;
    }
  | {
      readonly kind: "keep";
      readonly recipients: readonly string[];
      /** Told while online: the sender, whose other devices learn of it without a copy. */
      readonly alsoTell: readonly string[];
    };

/** A command as far as its audience goes. */
export interface CommandAddress {
  readonly fromUid: string;
  readonly channel: ChannelRef;
  /** The only ones to get it, as far as they belong to the channel; undefined: all of it. */
  readonly subscribers: readonly string[] | undefined;
  /** Not to be kept for anybody. */
  readonly noPersist: boolean;
}

/** In a large group nothing is kept per member: a command reaches who is online. */
export async function audienceOf(
  command: CommandAddress,
  store: Pick<ChannelStore, "groupFacts" | "members" | "membersAmong">,
): Promise<Audience> {
  const { channel, fromUid, noPersist, subscribers } = command;
  const listed =
    subscribers === undefined
      ? undefined
      : await belonging(command, subscribers, store);
  if (noPersist || (await isLarge(channel, store)))
    return { kind: "tell", recipients: listed };
  if (listed !== undefined)
    return { kind: "keep", recipients: listed, alsoTell: [] };
  if (channel.type !== GROUP_CHANNEL && channel.id === fromUid)
    return { kind: "keep", recipients: withoutSystem([fromUid]), alsoTell: [] };
  const all =
    channel.type === GROUP_CHANNEL
      ? await store.members(channel)
      : [channel.id];
  return {
    kind: "keep",
    recipients: withoutSystem(all).filter((uid) => uid !== fromUid),
    alsoTell: withoutSystem([fromUid]),
  };
}

async function belonging(
  { channel, fromUid }: CommandAddress,
  subscribers: readonly string[],
  store: Pick<ChannelStore, "membersAmong">,
): Promise<readonly string[]> {
  const listed = [...new Set(withoutSystem(subscribers))];
  if (channel.type === GROUP_CHANNEL)
    return store.membersAmong(channel, listed);
  return listed.filter((uid) => uid === channel.id || uid === fromUid);
}

async function isLarge(
  channel: ChannelRef,
  store: Pick<ChannelStore, "groupFacts">,
): Promise<boolean> {
  if (channel.type !== GROUP_CHANNEL) return false;
  const { info } = await store.groupFacts(channel.id, SYSTEM_UID);
  return info?.large ?? false;
}

/** The system has no inbox and no devices. */
function withoutSystem(uids: readonly string[]): readonly string[] {
  return uids.filter((uid) => uid !== SYSTEM_UID);
}
