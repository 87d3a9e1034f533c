// Names of a channel's keys and topics, built once per channel because every message needs them. A
// single server has one counter of message ids for all channels, so that a call that stores into
// many channels reads one counter. In a Redis Cluster a script reaches only its own bucket, so each
// bucket has a counter (`redis/lua/shared.lua` assigns the ids). State: a cache of the names of
// recently used channels.

import { type ChannelKey, PERSON_CHANNEL } from "../../../broker/model.ts";
import { BoundedMap } from "../../../lib/bounded-map.ts";
import { BUCKETS, bucketOf, type Keys, usersOf } from "../../../redis/keys.ts";
import type { RedisLink } from "../../../redis/link.ts";

/** Maximum number of channels whose names are cached. */
const MAX_CHANNELS = 20_000;
/** Bucket number for scripts on a single server, whose message ids contain no bucket. */
const WHOLE_SERVER = -1;

/** The prefix of the keys, and whether they are on a Redis Cluster. */
type Location = Pick<RedisLink, "keys" | "isCluster">;

/** A counter of message ids. */
interface IdCounter {
  readonly key: string;
  /** Number of the bucket as scripts expect it. */
  readonly bucket: number;
}

/** Names of the keys and topics of one channel. */
export interface ChannelNames {
  readonly bucket: number;
  readonly head: string;
  readonly log: string;
  /** Counter of the channel's message ids. */
  readonly ids: IdCounter;
  /** Name of the bucket's key `due`. */
  readonly due: string;
  /**
   * True if the channel's users are in other slots. Then `publishToUsers` publishes to them, and
   * `topics`, `peerKeys` and `peers` are empty.
   */
  readonly isApart: boolean;
  /** Arguments of the append script for the channel (`lua/append.lua`). */
  readonly appendArgs: readonly string[];
  /** Number of users in `appendArgs`. */
  readonly users: number;
  /** Topics on which the channel's own scripts publish. */
  readonly topics: readonly string[];
  /** Names of the keys `peers` of a personal channel's users. */
  readonly peerKeys: readonly string[];
  /** Uid to add to each of `peerKeys`. */
  readonly peers: readonly string[];
}

/** Cache of channel names. */
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
    const topics = isApart ? [] : keys.topicsOf(key);
    return {
      bucket,
      head: keys.channel("head", key),
      log: keys.channel("log", key),
      ids: idCounterOf(this.#link, bucket),
      due: keys.bucket("due", bucket),
      isApart,
      topics,
      appendArgs: [
        ...[keys.ofChannel(key), key],
        users.length > 0 ? "" : (topics[0] ?? ""),
        ...users.flatMap((uid) => [
          ...[uid, keys.ofChannel(`${PERSON_CHANNEL}:${uid}`)],
          keys.ofUser(uid),
        ]),
      ],
      users: users.length,
      peerKeys: users.map((uid) => keys.user("peers", uid)),
      peers: users.map((uid) => otherUser(users, uid)),
    };
  }
}

/** Returns true if this is a personal channel whose users are in other slots than the channel. */
export function areUsersApart(
  { isCluster }: Pick<RedisLink, "isCluster">,
  key: ChannelKey,
): boolean {
  return isCluster && key.startsWith("1:");
}

/**
 * Returns the other user of a personal channel, or `uid` itself if the channel has no other user.
 */
export function otherUser(users: readonly string[], uid: string): string {
  return users.find((user) => user !== uid) ?? uid;
}

/** Returns the counter of message ids for the channels of a bucket. */
export function idCounterOf({ keys, isCluster }: Location, bucket: number): IdCounter {
  return isCluster
    ? { key: keys.bucket("messageIds", bucket), bucket }
    : { key: keys.shared("messageIds"), bucket: WHOLE_SERVER };
}

/** Returns the keys of all counters of message ids. */
export function idCounterKeys(link: Location): readonly string[] {
  const buckets = Array.from({ length: BUCKETS }, (_, bucket) => bucket);
  return [...new Set(buckets.map((bucket) => idCounterOf(link, bucket).key))];
}

/**
 * Returns the key of the dedupe record of (key, fromUid, clientMsgNo), in the channel's slot
 * (`lua/dedupe.lua` describes the record).
 */
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
