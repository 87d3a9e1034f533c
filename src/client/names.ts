// Names: new ones, that nobody else uses, and those of messages and streams among all of a client. No state.

import { type ChannelRef, channelKey } from "../broker/model.ts";

const BYTES = 12;

/** 24 random hexadecimal digits; also in pages that are no secure context, where `randomUUID` is not there. */
export function randomName(): string {
  let name = "";
  for (const byte of crypto.getRandomValues(new Uint8Array(BYTES)))
    name += byte.toString(16).padStart(2, "0");
  return name;
}

/** The one name of what `uid` knows by this clientMsgNo in this channel. */
export function entryId(
  uid: string,
  channel: ChannelRef,
  clientMsgNo: string,
): string {
  return `${channelKey(channel, uid)}\n${clientMsgNo}`;
}
