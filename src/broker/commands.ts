// The audience of a command [decisions: sync_once, subscribers on send]: a kept copy each, or a
// push to online sessions only. State: none.

import { type ChannelRef, GROUP_CHANNEL, SYSTEM_UID } from "./model.ts";
import type { ChannelStore } from "./ports.ts";

/**
 * `tell`: online sessions only; `recipients` undefined: the whole channel. `keep`: a copy for each
 * recipient.
 */
export type Audience =
  | {
      readonly kind: "push";
      readonly recipients: readonly string[] | undefined;
    }
  | {
      readonly kind: "store";
      readonly recipients: readonly string[];
      /** The sender, whose other online devices get it without a copy. */
      readonly pushOnlyRecipients: readonly string[];
    };

export interface CommandAddress {
  readonly fromUid: string;
  readonly channel: ChannelRef;
  /** Its recipients, if they belong to the channel; undefined: the whole channel. */
  readonly subscribers: readonly string[] | undefined;
  /** No copies are kept. */
  readonly noPersist: boolean;
}

/** A large group keeps nothing per member: a command reaches online sessions only. */
export async function audienceOf(
  command: CommandAddress,
  store: Pick<ChannelStore, "groupFacts" | "members" | "membersAmong">,
): Promise<Audience> {
  const { channel, fromUid, noPersist, subscribers } = command;
  const listed =
    subscribers === undefined ? undefined : await belonging(command, subscribers, store);
  if (noPersist || (await isLarge(channel, store))) return { kind: "push", recipients: listed };
  if (listed !== undefined) return { kind: "store", recipients: listed, pushOnlyRecipients: [] };
  if (channel.type !== GROUP_CHANNEL && channel.id === fromUid)
    return { kind: "store", recipients: withoutSystem([fromUid]), pushOnlyRecipients: [] };
  const all = channel.type === GROUP_CHANNEL ? await store.members(channel) : [channel.id];
  return {
    kind: "store",
    recipients: withoutSystem(all).filter((uid) => uid !== fromUid),
    pushOnlyRecipients: withoutSystem([fromUid]),
  };
}

async function belonging(
  { channel, fromUid }: CommandAddress,
  subscribers: readonly string[],
  store: Pick<ChannelStore, "membersAmong">,
): Promise<readonly string[]> {
  const listed = [...new Set(withoutSystem(subscribers))];
  if (channel.type === GROUP_CHANNEL) return store.membersAmong(channel, listed);
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
