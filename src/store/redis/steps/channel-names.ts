// The names of a channel's keys and where its publications go, made once per channel: every message
// needs them. On one server all channels share a counter of message ids, so that a call that stores
// into many of them reads one; on a Redis Cluster a step reaches its bucket only, which has a
// counter of its own (`redis/lua/shared.lua` is the other half). State: the names of the channels
// used lately.

import { type ChannelKey, PERSON_CHANNEL } from "../../../broker/model.ts";
import { BoundedMap } from "../../../lib/bounded-map.ts";
import { BUCKETS, bucketOf, type Keys, usersOf } from "../../../redis/keys.ts";
import type { RedisLink } from "../../../redis/link.ts";

const MAX_CHANNELS = 20_000;
/** What the steps take for the name of a bucket: ids of one server name none. */
const WHOLE_SERVER = -1;

type Place = Pick<RedisLink, "keys" | "isCluster">;

interface IdCounter {
  readonly key: string;
  /** As the steps are given it. */
  readonly bucket: number;
}

export interface ChannelNames {
  readonly bucket: number;
  readonly head: string;
  readonly log: string;
  /** The counter of its messages' ids. */
  readonly ids: IdCounter;
  /** The bucket's. */
  readonly due: string;
  /**
   * Its users are in other slots: `publishToUsers` reaches them, and `topics`, `peerKeys` and
   * `peers` are empty.
   */
  readonly isApart: boolean;
  /** What the step that appends is given of the channel (`lua/append.lua`). */
  readonly step: readonly string[];
  /** How many users are in it. */
  readonly users: number;
  /** Where its own scripts publish. */
  readonly topics: readonly string[];
  /** `peers` of the users of a personal channel, and whom to enter into each. */
  readonly peerKeys: readonly string[];
  readonly peers: readonly string[];
}

export class ChannelNamesOf {
  readonly #link: Place;
  readonly #known = new BoundedMap<ChannelKey, ChannelNames>(MAX_CHANNELS);

  constructor(link: Place) {
    this.#link = link;
  }

  get(key: ChannelKey): ChannelNames {
    const known = this.#known.get(key);
    if (known !== undefined) return known;
    const names = this.#make(key);
    this.#known.set(key, names);
    return names;
  }

  #make(key: ChannelKey): ChannelNames {
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
      step: [
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

/** A personal channel whose users are in other slots than the channel. */
export function areUsersApart(
  { isCluster }: Pick<RedisLink, "isCluster">,
  key: ChannelKey,
): boolean {
  return isCluster && key.startsWith("1:");
}

/** With whom `uid` has a personal channel of these users: the other one, or itself. */
export function otherUser(users: readonly string[], uid: string): string {
  return users.find((one) => one !== uid) ?? uid;
}

/** The counter of a bucket's channels. */
export function idCounterOf({ keys, isCluster }: Place, bucket: number): IdCounter {
  return isCluster
    ? { key: keys.bucket("messageIds", bucket), bucket }
    : { key: keys.shared("messageIds"), bucket: WHOLE_SERVER };
}

/** The keys of all counters. */
export function idCounterKeys(link: Place): readonly string[] {
  const buckets = Array.from({ length: BUCKETS }, (_, bucket) => bucket);
  return [...new Set(buckets.map((bucket) => idCounterOf(link, bucket).key))];
}

/**
 * Where (key, fromUid, clientMsgNo) is remembered: in the slot of the channel (`lua/dedupe.lua` has
 * what is kept there).
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
