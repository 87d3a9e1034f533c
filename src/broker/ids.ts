// Checks of ids, uids, labels and channel names, with the same messages at every edge [decisions:
// Limits]. Pure.

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

/** Throws `bad_id`, naming the field as `what`. */
export function assertId(value: string, what: string): void {
  if (!isId(value))
    throw new BrokerError("bad_id", {
      message: `${what} must have 1 to ${MAX_ID_LENGTH} characters, no control characters and none of @ # &`,
      details: [{ path: what, message: "not a valid id" }],
    });
}

/** A client_msg_no or label: 1 to 128 characters; only its length and well-formedness matter. */
export function assertLabel(value: string, what: string): void {
  if (value.length === 0 || value.length > MAX_ID_LENGTH || !isWellFormed(value))
    throw new BrokerError("bad_request", {
      message: `${what} must have 1 to ${MAX_ID_LENGTH} characters`,
      details: [{ path: what, message: "has the wrong length" }],
    });
}

/** Throws `bad_id` or `reserved_uid`: the system's uid neither registers nor connects. */
export function assertUserUid(uid: string): void {
  assertId(uid, "uid");
  if (uid === SYSTEM_UID) throw new BrokerError("reserved_uid");
}

/** A channel as a reader names it; a personal one needs the reader's `uid`. */
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
