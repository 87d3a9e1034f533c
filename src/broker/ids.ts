// Checks ids, uids and labels, and builds the key of a channel that a user reads. The error
// messages are the same for every protocol [decisions: Limits].

import { BrokerError } from "./errors.ts";
import {
  type ChannelKey,
  type ChannelRef,
  channelKey,
  GROUP_CHANNEL,
  isId,
  isWellFormed,
  MAX_ID_LENGTH,
  SYSTEM_UID,
} from "./model.ts";

export function assertId(value: string, what: string): void {
  if (!isId(value))
    throw new BrokerError("bad_id", {
      message: `${what} must have 1 to ${MAX_ID_LENGTH} characters, no control characters and none of @ # &`,
      details: [{ path: what, message: "is not a valid id" }],
    });
}

export function assertLabel(value: string, what: string): void {
  if (value.length === 0 || value.length > MAX_ID_LENGTH || !isWellFormed(value))
    throw new BrokerError("bad_request", {
      message: `${what} must have 1 to ${MAX_ID_LENGTH} characters of well-formed Unicode`,
      details: [{ path: what, message: "has the wrong length or is not well-formed Unicode" }],
    });
}

export function assertUserUid(uid: string): void {
  assertId(uid, "uid");
  if (uid === SYSTEM_UID) throw new BrokerError("reserved_uid");
}

/** A channel and the user who reads it. `uid` is needed only for a personal channel. */
export interface ChannelView {
  readonly channel: ChannelRef;
  readonly uid: string | undefined;
}

export function viewedKey({ channel, uid }: ChannelView): ChannelKey {
  assertId(channel.id, "channel_id");
  if (channel.type !== GROUP_CHANNEL) assertId(uid ?? "", "uid");
  return channelKey(channel, uid ?? "");
}
