// Determines who receives a command, and whether the command is stored in inboxes or only pushed
// [decisions: sync_once, subscribers on send].

import { type ChannelRef, GROUP_CHANNEL, SYSTEM_UID } from "./model.ts";
import type { ChannelStore } from "./ports.ts";

export type Audience =
  | {
      readonly kind: "push";
      /** `undefined` means all users of the channel. */
      readonly recipients: readonly string[] | undefined;
    }
  | {
      readonly kind: "store";
      readonly recipients: readonly string[];
      /**
       * Contains the sender, whose other online sessions receive the command. Empty if the sender
       * is a recipient, if the sender is the system, or if the command has `subscribers`.
       */
      readonly pushOnlyRecipients: readonly string[];
    };

export interface CommandAddress {
  readonly fromUid: string;
  readonly channel: ChannelRef;
  /** Users to whom the command is restricted. Users outside the channel are ignored. */
  readonly subscribers: readonly string[] | undefined;
  readonly noPersist: boolean;
}

/**
 * Returns the recipients of a command. A command is not stored if its group is large or if
 * `noPersist` is true.
 */
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
  const users = channel.type === GROUP_CHANNEL ? await store.members(channel) : [channel.id];
  return {
    kind: "store",
    recipients: withoutSystem(users).filter((uid) => uid !== fromUid),
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

/** Returns the uids without the system's uid, which has no inbox and no devices. */
function withoutSystem(uids: readonly string[]): readonly string[] {
  return uids.filter((uid) => uid !== SYSTEM_UID);
}
