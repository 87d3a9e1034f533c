// A channel as somebody looks at it. State: none.

import { assertId } from "./ids.ts";
import {
  type ChannelKey,
  type ChannelRef,
  channelKey,
  GROUP_CHANNEL,
} from "./model.ts";

/** A personal channel needs the user whose conversation with `channel.id` it is. */
export interface ChannelView {
  readonly channel: ChannelRef;
  readonly uid: string | undefined;
}

/** Throws `bad_id`. */
export function viewedKey({ channel, uid }: ChannelView): ChannelKey {
  assertId(channel.id, "channel_id");
  if (channel.type !== GROUP_CHANNEL) assertId(uid ?? "", "uid");
  return channelKey(channel, uid ?? "");
}
