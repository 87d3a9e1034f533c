// Names of a channel's keys and topics. They are cached, because every message needs them. State:
// the names of up to 20,000 channels.

import { bucketOf } from "../../../broker/log-frame.ts";
import { type ChannelKey, groupTopic, PERSON_CHANNEL } from "../../../broker/model.ts";
import { BoundedMap } from "../../../lib/bounded-map.ts";
import { type IdCounter, idCounterOf } from "../../../redis/id-counters.ts";
import { type Keys, usersOf } from "../../../redis/keys.ts";
import type { RedisLink } from "../../../redis/link.ts";

const MAX_CHANNELS = 20_000;

/**
 * Maximum difference between the times in two ids that different counters assign at the same
 * moment.
 */
export const COUNTERS_APART_MS = 2000;

type Location = Pick<RedisLink, "keys" | "isCluster">;

export interface ChannelNames {
  readonly bucket: number;
  readonly head: string;
  readonly ids: IdCounter;
  /** True if the channel is personal and its users are in other slots. */
  readonly isApart: boolean;
  readonly appendArgs: readonly string[];
  readonly users: number;
}

export class ChannelNamesOf {
  readonly #link: Location;
  readonly #cache = new BoundedMap<ChannelKey, ChannelNames>(MAX_CHANNELS);

  constructor(link: Location) {
    this.#link = link;
  }

  get(key: ChannelKey): ChannelNames {
    const cached = this.#cache.get(key);
    if (cached !== undefined) return cached;
    const names = this.#create(key);
    this.#cache.set(key, names);
    return names;
  }

  #create(key: ChannelKey): ChannelNames {
    const { keys } = this.#link;
    const bucket = bucketOf(key);
    const isApart = areUsersApart(this.#link, key);
    const users = isApart ? [] : usersOf(key);
    const topic = isApart || users.length > 0 ? "" : keys.topic(groupTopic(key.slice(2)));
    return {
      bucket,
      head: keys.channel("head", key),
      ids: idCounterOf(this.#link, bucket),
      isApart,
      appendArgs: [
        ...[keys.ofChannel(key), key, topic],
        ...users.flatMap((uid) => [
          ...[uid, keys.ofChannel(`${PERSON_CHANNEL}:${uid}`)],
          keys.ofUser(uid),
        ]),
      ],
      users: users.length,
    };
  }
}

export function areUsersApart(
  { isCluster }: Pick<RedisLink, "isCluster">,
  key: ChannelKey,
): boolean {
  return isCluster && key.startsWith("1:");
}

export function otherUser(users: readonly string[], uid: string): string {
  return users.find((user) => user !== uid) ?? uid;
}

export function dedupeKey(
  keys: Keys,
  {
    key,
    fromUid,
    clientMsgNo,
  }: {
    readonly key: ChannelKey;
    readonly fromUid: string;
    readonly clientMsgNo: string;
  },
): string {
  return keys.channel("dedupe", key, `${fromUid}\n${clientMsgNo}`);
}
