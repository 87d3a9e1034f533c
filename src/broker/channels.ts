// Creates and changes channels, their members and their lists. A call that adds members to a group
// notifies all users in the call, even users who were already members. This is necessary because
// the call may be a retry after a node died before it sent the notifications. The store notifies
// removed members.

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
  /**
   * Seq of a group's newest message, or 0 if no message was stored. Always 0 for a personal
   * channel.
   */
  readonly headSeq: number;
}

export interface PageBounds {
  /** Last id of the previous page, or "" for the first page. */
  readonly after: string;
  readonly limit: number;
}

export interface Page {
  readonly ids: readonly string[];
  readonly more: boolean;
  /** Number of ids on all pages. */
  readonly total: number;
}

/**
 * All methods throw `bad_id` for an invalid id. A method that adds members throws `unavailable` or
 * `overloaded` if a member could not be notified.
 */
export interface Channels {
  /**
   * Creates a channel. If the channel exists and `info.disband` is true, disbands it [decisions:
   * Create again]. If the channel exists and `info.disband` is false, notifies those `subscribers`
   * who are already members, and then throws `channel_exists`.
   */
  create(info: ChannelInfo, subscribers: readonly string[]): Promise<void>;
  update(channel: ChannelRef, flags: ChannelFlags): Promise<ChannelInfo>;
  /** Throws `channel_not_found` or `channel_disbanded`. */
  addSubscribers(
    channel: ChannelRef,
    uids: readonly string[],
    options: { readonly membership: Membership; readonly reset: boolean },
  ): Promise<void>;
  /**
   * Removes members. Throws `not_in_channel` if a uid does not have this membership. If `others` is
   * `skip`, ignores such a uid instead. Also throws `channel_not_found`, `channel_disbanded`, or
   * `bad_request` if `uids` is empty.
   */
  removeSubscribers(
    channel: ChannelRef,
    uids: readonly string[],
    membership: Membership,
    others?: "refuse" | "skip",
  ): Promise<void>;
  state(channel: ChannelRef): Promise<ChannelState>;
  /** Returns a page of uids. Each call reads the whole list. */
  uids(channel: ChannelRef, list: "members" | ChannelList, page: PageBounds): Promise<Page>;
  groupsOf(uid: string, page: PageBounds): Promise<Page>;
  /** Throws `channel_not_found` or `channel_disbanded`. */
  removeAllSubscribers(channel: ChannelRef): Promise<void>;
  /** Throws `channel_not_found` or `channel_disbanded`. */
  changeList(channel: ChannelRef, list: ChannelList, change: ListChange): Promise<void>;
}

export function createChannels(ports: {
  readonly store: ChannelStore & Pick<MessageStore, "headSeq">;
  readonly publisher: Announcer;
}): Channels {
  const { store, publisher } = ports;

  async function announce(channel: ChannelRef, uids: readonly string[]): Promise<void> {
    if (channel.type !== GROUP_CHANNEL) return; // no session joins a personal channel
    const channelId = channel.id;
    await publisher.announce(uids.map((uid) => ({ kind: "addition", uid, channelId })));
  }

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
      const uniqueUids = [...new Set(uids)];
      const isDone = await store.addSubscribers(channel, uniqueUids, options);
      if (!isDone) throw await missingOrDisbanded(store, channel);
      await announce(channel, uniqueUids);
    },

    async removeSubscribers(channel, uids, membership, others = "refuse") {
      checkNames(channel, uids, "subscribers");
      if (uids.length === 0)
        throw new BrokerError("bad_request", {
          message: "subscribers must not be empty",
        });
      let members: readonly string[] = [...new Set(uids)];
      let removal = await store.removeSubscribers(channel, members, membership);
      while (removal.kind === "not_members" && others === "skip") {
        const skipped = new Set(removal.uids);
        members = members.filter((uid) => !skipped.has(uid));
        if (members.length === 0) return;
        removal = await store.removeSubscribers(channel, members, membership);
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

    async uids(channel, list, page) {
      assertId(channel.id, "channel_id");
      const uids = list === "members" ? store.members(channel) : store.listed(channel, list);
      return pageOf(await uids, page);
    },

    async groupsOf(uid, page) {
      assertId(uid, "uid");
      return pageOf(await store.groupsOf(uid), page);
    },

    async removeAllSubscribers(channel) {
      assertId(channel.id, "channel_id");
      for (const membership of ["permanent", "temporary"] as const) {
        const options = { membership, reset: true };
        if (!(await store.addSubscribers(channel, [], options)))
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

/** Minimum number of ids that are processed before the time slice is checked again. */
const MIN_PIECE = 1000;

async function pageOf(ids: readonly string[], { after, limit }: PageBounds): Promise<Page> {
  const slice = new TimeSlice();
  let lowest: string[] = [];
  const size = Math.max(limit, MIN_PIECE);
  for (let at = 0; at < ids.length; at += size) {
    if (slice.shouldYield()) await slice.yield();
    const piece = ids.slice(at, at + size).filter((id) => id > after);
    lowest = [...lowest, ...piece].sort().slice(0, limit + 1);
  }
  return { ids: lowest.slice(0, limit), more: lowest.length > limit, total: ids.length };
}

async function missingOrDisbanded(store: ChannelStore, channel: ChannelRef): Promise<BrokerError> {
  const info = await store.channel(channel);
  return new BrokerError(info === undefined ? "channel_not_found" : "channel_disbanded");
}
