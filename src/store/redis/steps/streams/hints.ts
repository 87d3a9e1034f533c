// Which personal channels of a user may have an active stream: the user's `streams`, a hint that may name too many and never too few. On one server a
// stream's steps keep it themselves; on a Redis Cluster the user is in another slot, and it is kept around the start, as is the users' `peers`, which
// the stream's message needs. No state.

import type { ChannelKey } from "../../../../broker/model.ts";
import { usersOf } from "../../../../redis/keys.ts";
import type { RedisLink } from "../../../../redis/link.ts";
import { areUsersApart, otherUser } from "../channel-names.ts";

type Link = Pick<RedisLink, "keys" | "isCluster" | "call">;

/** The hints of `uid`. */
function hintsOf({ keys }: Pick<RedisLink, "keys">, uid: string): string {
  return keys.user("streams", uid);
}

/** The hints of the users of a channel that its own steps can reach. */
export function hintsInReach(
  link: Pick<RedisLink, "keys" | "isCluster">,
  key: ChannelKey,
): readonly string[] {
  if (areUsersApart(link, key)) return [];
  return usersOf(key).map((uid) => hintsOf(link, uid));
}

/** Enters the channel into the hints of its users, and each into the other's `peers`. Sent at once; throws as every call of the link. */
export async function addHints(
  link: Link,
  key: ChannelKey,
  nowMs: number,
): Promise<void> {
  const users = usersOf(key);
  const added = users.flatMap((uid) => [
    link.call("sadd", hintsOf(link, uid), key),
    link.call(
      ...(["zadd", link.keys.user("peers", uid)] as const),
      ...["GT", nowMs, otherUser(users, uid)],
    ),
  ]);
  await Promise.all(added);
}
