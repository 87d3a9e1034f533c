// Calls that create and change channels, their subscribers and their lists. The lists are named
// blacklist and whitelist on the wire, as in WuKongIM.

import { type Static, Type } from "typebox";
import type { Channels } from "../broker/channels.ts";
import { type ChannelFlags, type ChannelRef, GROUP_CHANNEL } from "../broker/model.ts";
import type { ChannelList, ListChange, Membership } from "../broker/ports.ts";
import { errorReply } from "./errors.ts";
import { channelId, channelType, flag, id, LOBBY, uids } from "./fields.ts";
import { okReply } from "./reply.ts";
import type { Outcome } from "./route.ts";

const channelFlags = {
  ban: Type.Optional(
    flag(
      "1: only the system and system accounts may send to the group, or to the owner of the personal channel",
    ),
  ),
  disband: Type.Optional(flag("1: disbands the channel permanently")),
  send_ban: Type.Optional(
    flag("1: no member may send. For a personal channel: its owner may not send, only receive"),
  ),
  allow_stranger: Type.Optional(
    flag("1: strangers may send to the owner. Only for personal channels"),
  ),
  large: Type.Optional(
    flag("1: a super-large group, for which no per-member state (such as unread counts) is kept"),
  ),
  client_events: Type.Optional(
    flag(
      "1: clients may send events to the group, or to the owner of the personal channel. Default at creation: 0 if large is 1, otherwise 1",
    ),
  ),
};

export const channelBodies = (maxSubscribers: number) => ({
  create: Type.Object(
    {
      channel_id: channelId,
      channel_type: channelType,
      ...channelFlags,
      subscribers: Type.Optional(uids("Initial subscribers", maxSubscribers)),
    },
    {
      title: "ChannelRequest",
      description: "Channel to create",
      examples: [{ ...LOBBY, subscribers: ["alice", "bob"] }],
    },
  ),
  update: Type.Object(
    {
      channel_id: channelId,
      channel_type: channelType,
      ...channelFlags,
    },
    {
      title: "ChannelInfoRequest",
      description: "Flags to change",
      examples: [{ ...LOBBY, ban: 1 }],
    },
  ),
  addSubscribers: Type.Object(
    {
      channel_id: channelId,
      channel_type: Type.Optional(channelType),
      subscribers: uids("Users to add. May be empty only if reset is 1", maxSubscribers),
      reset: Type.Optional(flag("1: these subscribers replace the existing ones")),
      temp_subscriber: Type.Optional(flag("1: the users become temporary subscribers")),
    },
    {
      title: "SubscriberAddRequest",
      description: "Subscribers to add",
      examples: [{ ...LOBBY, subscribers: ["carol"] }],
    },
  ),
  removeSubscribers: Type.Object(
    {
      channel_id: channelId,
      channel_type: channelType,
      subscribers: Type.Array(id("User id"), {
        minItems: 1,
        maxItems: maxSubscribers,
        description: "Users to remove. If one of them is not a subscriber, nobody is removed",
      }),
      temp_subscriber: Type.Optional(
        flag("Kind of membership to remove: 0 permanent, 1 temporary"),
      ),
    },
    {
      title: "SubscriberRemoveRequest",
      description: "Subscribers to remove",
      examples: [{ ...LOBBY, subscribers: ["carol"] }],
    },
  ),
  target: Type.Object(
    { channel_id: channelId, channel_type: channelType },
    { title: "ChannelTarget", description: "A channel", examples: [LOBBY] },
  ),
  listed: Type.Object(
    {
      channel_id: channelId,
      channel_type: channelType,
      uids: Type.Array(id("User id"), {
        minItems: 1,
        maxItems: maxSubscribers,
        description: "Users to add or remove",
      }),
    },
    {
      title: "ListRequest",
      description: "Users to add to a channel's blacklist or whitelist, or to remove from it",
      examples: [{ ...LOBBY, uids: ["carol"] }],
    },
  ),
  list: Type.Object(
    {
      channel_id: channelId,
      channel_type: channelType,
      uids: uids("The new list. An empty list removes all users", maxSubscribers),
    },
    {
      title: "ListSetRequest",
      description: "New content of a channel's blacklist or whitelist",
      examples: [{ ...LOBBY, uids: ["alice"] }],
    },
  ),
});

export const LISTS = {
  blacklist: "denylist",
  whitelist: "allowlist",
} as const satisfies Record<string, ChannelList>;

type Bodies = ReturnType<typeof channelBodies>;
type Body<Name extends keyof Bodies> = Static<Bodies[Name]>;

export function createListCalls(channels: Channels, list: ChannelList) {
  const changeWith =
    (kind: ListChange["kind"]) =>
    (body: Body<"target"> & { readonly uids?: readonly string[] }): Outcome => {
      const { uids = [] } = body;
      return channels.changeList(toRef(body), list, { kind, uids }).then(okReply);
    };
  return {
    add: changeWith("add"),
    remove: changeWith("remove"),
    set: changeWith("replace"),
    clear: ({ channel_id, channel_type }: Body<"target">): Outcome =>
      changeWith("replace")({ channel_id, channel_type }),
  };
}

export function createChannelCalls(channels: Channels) {
  return {
    create(body: Body<"create">): Outcome {
      const info = {
        ...toRef(body),
        ban: body.ban === 1,
        disband: body.disband === 1,
        sendBan: body.send_ban === 1,
        allowStranger: body.allow_stranger === 1,
        large: body.large === 1,
        clientEvents: (body.client_events ?? (body.large === 1 ? 0 : 1)) === 1,
      };
      return channels.create(info, body.subscribers ?? []).then(okReply);
    },

    update(body: Body<"update">): Outcome {
      return channels.update(toRef(body), flagsIn(body)).then(okReply);
    },

    addSubscribers(body: Body<"addSubscribers">): Outcome {
      const { subscribers, channel_type = GROUP_CHANNEL } = body;
      const reset = body.reset === 1;
      if (subscribers.length === 0 && !reset)
        return errorReply("bad_request", {
          message: "subscribers must not be empty unless reset is 1",
          details: [{ path: "subscribers", message: "is empty" }],
        });
      const options = { membership: toMembership(body), reset };
      const channel = { id: body.channel_id, type: channel_type };
      return channels.addSubscribers(channel, subscribers, options).then(okReply);
    },

    removeSubscribers(body: Body<"removeSubscribers">): Outcome {
      return channels
        .removeSubscribers(toRef(body), body.subscribers, toMembership(body))
        .then(okReply);
    },

    removeAllSubscribers(body: Body<"target">): Outcome {
      return channels.removeAllSubscribers(toRef(body)).then(okReply);
    },

    remove(body: Body<"target">): Outcome {
      if (body.channel_type !== GROUP_CHANNEL)
        return errorReply("bad_request", {
          message: "Only a group can be deleted, not a personal channel",
          details: [{ path: "channel_type", message: "must be 2" }],
        });
      return channels.update(toRef(body), { disband: true }).then(okReply);
    },
  };
}

function flagsIn(body: Body<"update">): ChannelFlags {
  const { ban, disband, send_ban, allow_stranger, large, client_events } = body;
  return {
    ...(ban === undefined ? {} : { ban: ban === 1 }),
    ...(disband === undefined ? {} : { disband: disband === 1 }),
    ...(send_ban === undefined ? {} : { sendBan: send_ban === 1 }),
    ...(allow_stranger === undefined ? {} : { allowStranger: allow_stranger === 1 }),
    ...(large === undefined ? {} : { large: large === 1 }),
    ...(client_events === undefined ? {} : { clientEvents: client_events === 1 }),
  };
}

function toRef(body: {
  readonly channel_id: string;
  readonly channel_type: ChannelRef["type"];
}): ChannelRef {
  return { id: body.channel_id, type: body.channel_type };
}

function toMembership(body: { readonly temp_subscriber?: 0 | 1 | undefined }): Membership {
  return body.temp_subscriber === 1 ? "temporary" : "permanent";
}
