// The calls about channels and their subscribers. State: none. What a flag means when absent is decided here, once.

import type { Channels } from "../broker/channels.ts";
import {
  type ChannelFlags,
  type ChannelRef,
  GROUP_CHANNEL,
} from "../broker/model.ts";
import type { Membership } from "../broker/ports.ts";
import { errorReply } from "./errors.ts";
import { okReply } from "./reply.ts";
import type { Outcome } from "./route.ts";
import type { Body } from "./schemas.ts";

export interface ChannelParts {
  readonly channels: Channels;
}

export interface ChannelCalls {
  create(body: Body<"channel">): Outcome;
  update(body: Body<"channelInfo">): Outcome;
  addSubscribers(body: Body<"subscriberAdd">): Outcome;
  removeSubscribers(body: Body<"subscriberRemove">): Outcome;
}

export function createChannelCalls({ channels }: ChannelParts): ChannelCalls {
  return {
    create(body) {
      const info = {
        ...toRef(body),
        ban: body.ban === 1,
        disband: body.disband === 1,
        sendBan: body.send_ban === 1,
        allowStranger: body.allow_stranger === 1,
        large: body.large === 1,
      };
      return channels.create(info, body.subscribers ?? []).then(okReply);
    },

    update(body) {
      return channels.update(toRef(body), givenFlags(body)).then(okReply);
    },

    addSubscribers(body) {
      const { subscribers, channel_type = GROUP_CHANNEL } = body;
      const reset = body.reset === 1;
      if (subscribers.length === 0 && !reset)
        return errorReply("bad_request", {
          message: "subscribers must not be empty without reset 1",
          details: [{ path: "subscribers", message: "is empty" }],
        });
      const options = { membership: toMembership(body), reset };
      const channel = { id: body.channel_id, type: channel_type };
      return channels
        .addSubscribers(channel, subscribers, options)
        .then(okReply);
    },

    removeSubscribers(body) {
      return channels
        .removeSubscribers(toRef(body), body.subscribers, toMembership(body))
        .then(okReply);
    },
  };
}

/** Only the flags that were sent: the others stay as they are. */
function givenFlags(body: Body<"channelInfo">): ChannelFlags {
  const { ban, disband, send_ban, allow_stranger, large } = body;
  return {
    ...(ban === undefined ? {} : { ban: ban === 1 }),
    ...(disband === undefined ? {} : { disband: disband === 1 }),
    ...(send_ban === undefined ? {} : { sendBan: send_ban === 1 }),
    ...(allow_stranger === undefined
      ? {}
      : { allowStranger: allow_stranger === 1 }),
    ...(large === undefined ? {} : { large: large === 1 }),
  };
}

function toRef(body: {
  readonly channel_id: string;
  readonly channel_type: ChannelRef["type"];
}): ChannelRef {
  return { id: body.channel_id, type: body.channel_type };
}

function toMembership(body: {
  readonly temp_subscriber?: 0 | 1 | undefined;
}): Membership {
  return body.temp_subscriber === 1 ? "temporary" : "permanent";
}
