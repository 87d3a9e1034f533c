// Channels, their members and lists: creating, changing, adding and removing. Notifies the live
// sessions of added members, also in a repeated call, because a node may have died between change
// and notification. The store's step notifies removed members. State: none; the store decides.

import { TimeSlice } from "../lib/time-slice.ts";
import { BrokerError } from "./errors.ts";
import { assertId } from "./ids.ts";
import {
  type ChannelFlags,
  type ChannelInfo,
  type ChannelRef,
  channelKey,
  GROUP_CHANNEL,
} from "./model.ts";
import type {
  Announcer,
  ChannelList,
  ChannelSizes,
  ChannelStore,
  ListChange,
  Membership,
  MessageStore,
} from "./ports.ts";

export interface ChannelState {
  readonly info: ChannelInfo;
  readonly sizes: ChannelSizes;
  /** The seq of a group's newest message; 0: no message, or a personal channel. */
  readonly headSeq: number;
}

export interface PageBounds {
  /** The last id of the page before; "": the first page. */
  readonly after: string;
  readonly limit: number;
}

export interface Page {
  readonly ids: readonly string[];
  /** There are ids behind the last one. */
  readonly more: boolean;
}

/**
 * If an added member could not be notified, calls throw `unavailable` or `overloaded`; a repeated
 * call notifies again.
 */
export interface Channels {
  /**
   * Creates a channel. Throws `channel_exists`; with `disband` set on an existing one disbands that
   * instead [decisions: Create again].
   */
  create(info: ChannelInfo, subscribers: readonly string[]): Promise<void>;
  /** Changes the given flags. Throws `channel_not_found`. */
  update(channel: ChannelRef, flags: ChannelFlags): Promise<ChannelInfo>;
  /**
   * Throws `channel_not_found`, `channel_disbanded`. Live sessions of the added users receive the
   * channel at once.
   */
  addSubscribers(
    channel: ChannelRef,
    uids: readonly string[],
    options: { readonly membership: Membership; readonly reset: boolean },
  ): Promise<void>;
  /**
   * All or nothing. Throws `channel_not_found`, `not_in_channel`, `channel_disbanded`. Live
   * sessions stop receiving at once. With `others` = `skip` uids that are not in it are left out.
   */
  removeSubscribers(
    channel: ChannelRef,
    uids: readonly string[],
    membership: Membership,
    others?: "refuse" | "skip",
  ): Promise<void>;
  /** Throws `channel_not_found`. */
  state(channel: ChannelRef): Promise<ChannelState>;
  /**
   * Some members, or uids on a list, in the order of their UTF-16 units; none of an unknown
   * channel. One that is there all the time is in one page. Each page reads all of them.
   */
  uids(channel: ChannelRef, of: "members" | ChannelList, page: PageBounds): Promise<Page>;
  /** Some of the groups `uid` is a member of, in the same way; disbanded ones left out. */
  groupsOf(uid: string, page: PageBounds): Promise<Page>;
  /**
   * Removes the members of both kinds, one kind after the other; live sessions stop receiving at
   * once. Throws `channel_not_found`, `channel_disbanded`.
   */
  removeAllSubscribers(channel: ChannelRef): Promise<void>;
  /**
   * Changes who may send: counts from the next message on; members on the denylist still receive.
   * Throws `channel_not_found`, `channel_disbanded`, of a personal channel neither.
   */
  changeList(channel: ChannelRef, list: ChannelList, change: ListChange): Promise<void>;
}

export function createChannels(ports: {
  readonly store: ChannelStore & Pick<MessageStore, "headSeq">;
  readonly publisher: Announcer;
}): Channels {
  const { store, publisher } = ports;

  async function announce(channel: ChannelRef, uids: readonly string[]): Promise<void> {
    if (channel.type !== GROUP_CHANNEL) return; // a contact list has no sessions
    const channelId = channel.id;
    await publisher.announce(uids.map((uid) => ({ kind: "addition", uid, channelId })));
  }

  /** Notifies the members among `uids`. */
  async function announceMembers(channel: ChannelRef, uids: readonly string[]): Promise<void> {
    if (channel.type !== GROUP_CHANNEL || uids.length === 0) return;
    if ((await store.channel(channel))?.disband !== false) return;
    await announce(channel, await store.membersAmong(channel, uids));
  }

  return {
    async create(info, subscribers) {
      checkNames(info, subscribers, "subscribers");
      const members = [...new Set(subscribers)];
      if (await store.createChannel(info, members)) {
        if (!info.disband) await announce(info, members);
        return;
      }
      if (!info.disband) {
        await announceMembers(info, members);
        throw new BrokerError("channel_exists");
      }
      await store.updateChannel(info, { disband: true });
    },

    async update(channel, flags) {
      assertId(channel.id, "channel_id");
      const info = await store.updateChannel(channel, flags);
      if (info === undefined) throw new BrokerError("channel_not_found");
      return info;
    },

    async addSubscribers(channel, uids, options) {
      checkNames(channel, uids, "subscribers");
      const all = [...new Set(uids)];
      const isDone = await store.addSubscribers(channel, all, options);
      if (!isDone) throw await missingOrDisbanded(store, channel);
      await announce(channel, all); // also earlier members: this may be a retry
    },

    async removeSubscribers(channel, uids, membership, others = "refuse") {
      checkNames(channel, uids, "subscribers");
      if (uids.length === 0)
        throw new BrokerError("bad_request", {
          message: "subscribers must not be empty",
        });
      let left: readonly string[] = [...new Set(uids)];
      let removal = await store.removeSubscribers(channel, left, membership);
      while (removal.kind === "not_members" && others === "skip") {
        const skipped = new Set(removal.uids);
        left = left.filter((uid) => !skipped.has(uid));
        if (left.length === 0) return;
        removal = await store.removeSubscribers(channel, left, membership);
      }
      switch (removal.kind) {
        case "removed":
          return;
        case "no_channel":
          throw new BrokerError("channel_not_found");
        case "disbanded":
          throw new BrokerError("channel_disbanded");
        case "not_members":
          throw new BrokerError("not_in_channel", {
            details: removal.uids
              .slice(0, 100)
              .map((uid) => ({ path: "subscribers", message: uid })),
          });
      }
    },

    async state(channel) {
      assertId(channel.id, "channel_id");
      const isGroup = channel.type === GROUP_CHANNEL;
      const [info, sizes, headSeq] = await Promise.all([
        store.channel(channel),
        store.channelSizes(channel),
        isGroup ? store.headSeq(channelKey(channel, "")) : 0,
      ]);
      if (info === undefined) throw new BrokerError("channel_not_found");
      return { info, sizes, headSeq };
    },

    async uids(channel, of, page) {
      assertId(channel.id, "channel_id");
      const all = of === "members" ? store.members(channel) : store.listed(channel, of);
      return pageOf(await all, page);
    },

    async groupsOf(uid, page) {
      assertId(uid, "uid");
      return pageOf(await store.groupsOf(uid), page);
    },

    async removeAllSubscribers(channel) {
      assertId(channel.id, "channel_id");
      for (const membership of ["permanent", "temporary"] as const) {
        const none = { membership, reset: true };
        if (!(await store.addSubscribers(channel, [], none)))
          throw await missingOrDisbanded(store, channel);
      }
    },

    async changeList(channel, list, change) {
      checkNames(channel, change.uids, "uids");
      const isDone = await store.changeList(channel, list, change);
      if (!isDone) throw await missingOrDisbanded(store, channel);
    },
  };
}

function checkNames(channel: ChannelRef, uids: readonly string[], field: string): void {
  assertId(channel.id, "channel_id");
  for (const uid of uids) assertId(uid, field);
}

/** Ids looked at between two looks at the clock, at least. */
const MIN_PIECE = 1000;

/** The least ids behind `after`: lists have no order, and a page holds no place in them. */
async function pageOf(ids: readonly string[], { after, limit }: PageBounds): Promise<Page> {
  const slice = new TimeSlice();
  let least: string[] = [];
  const size = Math.max(limit, MIN_PIECE);
  for (let at = 0; at < ids.length; at += size) {
    if (slice.isUsedUp()) await slice.rest();
    const some = ids.slice(at, at + size).filter((id) => id > after);
    least = [...least, ...some].sort().slice(0, limit + 1);
  }
  return { ids: least.slice(0, limit), more: least.length > limit };
}

async function missingOrDisbanded(store: ChannelStore, channel: ChannelRef): Promise<BrokerError> {
  const info = await store.channel(channel);
  return new BrokerError(info === undefined ? "channel_not_found" : "channel_disbanded");
}
