// Which channels are conversations of a user, and a moment in which that cannot change. No state but the parts'.

import {
  type ChannelKey,
  type ChannelRef,
  channelKey,
  GROUP_CHANNEL,
  PERSON_CHANNEL,
} from "../../../broker/model.ts";
import type { KeyedLock } from "../../../lib/keyed-lock.ts";
import type { ChannelTables } from "./channel-tables.ts";
import { channelLock } from "./channels.ts";
import type { ConversationRows } from "./conversation-rows.ts";

/** A channel that is a conversation of a user. */
export interface Membership {
  readonly uid: string;
  readonly channel: ChannelRef;
  readonly key: ChannelKey;
  readonly isLarge: boolean;
  /** The channel's head when the user joined it. */
  readonly joinSeq: number;
}

export interface MembershipParts {
  readonly channelTables: ChannelTables;
  readonly conversationRows: ConversationRows;
  readonly lock: KeyedLock;
}

export class Memberships {
  readonly #parts: MembershipParts;

  constructor(parts: MembershipParts) {
    this.#parts = parts;
  }

  /** The user's groups, and everybody with whom there is a personal channel. */
  *of(uid: string): Generator<Membership> {
    const { channelTables, conversationRows } = this.#parts;
    for (const { id, joinSeq } of channelTables.groupsOf(uid)) {
      const channel: ChannelRef = { id, type: GROUP_CHANNEL };
      const isLarge = channelTables.row(channel)?.info.large === true;
      const key = channelKey(channel, uid);
      yield { uid, channel, key, isLarge, joinSeq };
    }
    for (const peer of conversationRows.peersOf(uid))
      yield membershipOfPair(uid, { id: peer, type: PERSON_CHANNEL });
  }

  /** Undefined: a group the user is no member of, or none any more. */
  one(uid: string, channel: ChannelRef): Membership | undefined {
    if (channel.type === PERSON_CHANNEL) return membershipOfPair(uid, channel);
    const { channelTables } = this.#parts;
    const info = channelTables.row(channel)?.info;
    if (info === undefined || info.disband) return undefined;
    const joinSeq = channelTables.joinSeq(uid, channel.id);
    if (joinSeq === undefined) return undefined;
    const { id, type, large } = info;
    const key = channelKey(channel, uid);
    return { uid, channel: { id, type }, key, isLarge: large, joinSeq };
  }

  /**
   * Runs `step`, which looks at the membership and issues its writes at once, when no change of the members is under way: a later change
   * issues its own writes later, so a position is never put behind the removal of its membership.
   */
  async whileSteady(
    channel: ChannelRef,
    step: () => Promise<void> | undefined,
  ): Promise<void> {
    const { channelTables, lock } = this.#parts;
    if (channelTables.isChanging(channel))
      await lock.run(channelLock(channel), async () => step());
    else await step();
  }
}

function membershipOfPair(uid: string, { id, type }: ChannelRef): Membership {
  const channel = { id, type };
  const key = channelKey(channel, uid);
  return { uid, channel, key, isLarge: false, joinSeq: 0 };
}
