// Channel ids in the form in which WuKongIM's servers store them. In this form, the id of a
// personal channel consists of both uids, joined by `@`. A few calls accept or return such ids.

import { type ChannelRef, PERSON_CHANNEL } from "../../broker/model.ts";
import { crc32 } from "../../lib/crc32.ts";

const SEPARATOR = "@";

/** Returns the stored id of the channel that `uid` sees as `channel`. */
export function storedId(uid: string, { id, type }: ChannelRef): string {
  if (type !== PERSON_CHANNEL) return id;
  return rankOf(uid) > rankOf(id) ? `${uid}${SEPARATOR}${id}` : `${id}${SEPARATOR}${uid}`;
}

/** Parses a stored id of a personal channel. Returns `undefined` for any other id. */
export function usersOf(
  storedId: string,
): { readonly uid: string; readonly peer: string } | undefined {
  const [peer = "", uid = "", ...rest] = storedId.split(SEPARATOR);
  return peer === "" || uid === "" || rest.length > 0 ? undefined : { uid, peer };
}

function rankOf(uid: string): number {
  return crc32(Buffer.from(uid));
}
